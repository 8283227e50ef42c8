"""One connection's protocol, without I/O.

Rule 1: every state change of a session happens in this file.
Rule 2: no clock, no randomness, no ids, no await: they come in as arguments.
Rule 3: methods return effects in the order to perform them, and never raise for peer input.

A lane is FIFO and has at most one running turn; lanes run side by side up to `max_running`, and
those that wait for a place get it in the order in which they became ready.
"""

from collections import deque
from dataclasses import dataclass, field

import orjson

from turnwire.pipelines.config import SessionSettings
from turnwire.pipelines.effects import (
    Accepted,
    CancelTurn,
    CloseSocket,
    Effect,
    EndTurn,
    SendError,
    SendEvent,
    StartTurn,
)
from turnwire.pipelines.limits import ByteBudget
from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.codec import Envelope, decode_envelope
from turnwire.pipelines.protocol.errors import (
    ApiError,
    ConnectionLimitReached,
    InvalidRequest,
    Overloaded,
    StreamLimitReached,
    UnknownEventType,
)
from turnwire.pipelines.protocol.events import steer_failed


@dataclass(frozen=True, slots=True)
class _Running:
    lane: str | None
    held_bytes: int


@dataclass(frozen=True, slots=True)
class _Ending:
    """No turn is admitted any more; with the last one the socket is closed."""

    refusal: ApiError
    close: CloseSocket


@dataclass
class Session:
    """The protocol state of one connection, open since `opened_s`."""

    settings: SessionSettings
    inbound: ByteBudget
    max_message_bytes: int
    opened_s: float
    _running: dict[str, _Running] = field(default_factory=dict)
    _busy_lanes: set[str | None] = field(default_factory=set)
    _waiting: dict[str | None, deque[Accepted]] = field(default_factory=dict)
    _ready_lanes: deque[str | None] = field(default_factory=deque)
    """Lanes that are not busy and have a turn waiting, because `max_running` are running."""
    _queued: int = 0
    _queued_bytes: int = 0
    _named_lanes: set[str] = field(default_factory=set)
    _ending: _Ending | None = None
    _aged: bool = False
    """Has `max_age_s` passed? Turns that wait may still start before."""
    _refuses: bool = False
    """Is what waits refused instead of started?"""
    _expired: bool = False
    _closed: bool = False
    _idle_since_s: float = 0.0

    def __post_init__(self) -> None:
        self._idle_since_s = self.opened_s

    @property
    def idle(self) -> bool:
        return not self._running and not self._queued

    def received(
        self, frame: Json, response_id: str, now_s: float, began_s: float = 0.0
    ) -> list[Effect]:
        """A text frame arrived. `response_id` names the response, if it asks for one.

        `began_s`: when its first bytes came, where that is known.
        """
        if self._closed:
            return []
        if len(frame) > self.max_message_bytes:
            return [SendError(self.too_big(len(frame)))]
        try:
            envelope = decode_envelope(frame)
        except InvalidRequest as error:
            return [SendError(error)]
        lane = envelope.stream_id
        match envelope.type:
            case "response.create":
                turn = self._turn(envelope, frame, response_id, now_s, began_s)
                return self._create(turn, now_s)
            case "response.processed":
                return []
            case "response.steer":
                return [self._steer(frame, lane)]
            case "":
                return [SendError(InvalidRequest("The event has no type.", "type"), lane)]
            case unknown:
                message = f"Unknown event type: {unknown[:64]!r}."
                return [SendError(UnknownEventType(message, "type"), lane)]

    def received_binary(self) -> list[Effect]:
        return [SendError(InvalidRequest("Binary frames are not supported; send JSON text."))]

    def too_big(self, size_bytes: int) -> InvalidRequest:
        return InvalidRequest(
            f"The message has {size_bytes} bytes; the limit is {self.max_message_bytes}."
        )

    def prepared(self, response_id: str) -> None:
        """The turn's frame is not held any more."""
        running = self._running[response_id]
        self.inbound.give_back(running.held_bytes)
        self._running[response_id] = _Running(running.lane, 0)

    def finished(self, response_id: str, now_s: float) -> list[Effect]:
        """The turn ended, in whatever way: its lane goes on."""
        running = self._running.pop(response_id, None)
        if running is None:
            return []
        self.inbound.give_back(running.held_bytes)
        self._busy_lanes.discard(running.lane)
        if running.lane in self._waiting:
            self._ready_lanes.append(running.lane)
        effects = self._refuse_ready() if self._refuses else self._start_ready()
        if self.idle:
            self._idle_since_s = now_s
            effects += self._close_if_ending()
        return effects

    def tick(self, now_s: float) -> list[Effect]:
        """Time passed: a connection may have become too old, or idle for too long."""
        if self._closed:
            return []
        age_s = now_s - self.opened_s
        if not self._aged and age_s >= self.settings.max_age_s:
            return self._too_old()
        if age_s >= self.settings.max_age_s + self.settings.age_grace_s:
            return self.expired()
        idle_s = self.settings.idle_s
        if idle_s and self.idle and now_s - self._idle_since_s >= idle_s:
            return self._close(CloseSocket(1000, "idle"))
        return []

    def drain(self) -> list[Effect]:
        """The server stops: running turns finish, clients are told to open another connection."""
        refusal = ConnectionLimitReached("The server is restarting; open a new connection.")
        return self._end(_Ending(refusal, CloseSocket(1012, "service restart")))

    def expired(self) -> list[Effect]:
        """The time to finish is over: end what still runs, once."""
        if self._ending is None or self._expired or self._closed:
            return []
        self._expired = True
        return [EndTurn(response_id, self._ending.refusal) for response_id in self._running]

    def disconnected(self) -> list[Effect]:
        """The client is gone: nothing waits any more, and nothing needs to run on."""
        self._closed = True
        self._drop_waiting()
        return [CancelTurn(response_id) for response_id in self._running]

    def _turn(
        self, envelope: Envelope, frame: Json, response_id: str, now_s: float, began_s: float
    ) -> Accepted:
        generate = envelope.generate is not False
        lane, model = envelope.stream_id, envelope.model
        return Accepted(response_id, frame, lane, model, generate, now_s, began_s)

    def _steer(self, frame: Json, lane: str | None) -> Effect:
        try:
            return SendEvent(steer_failed(orjson.loads(frame), lane))
        except ValueError:
            return SendError(InvalidRequest("The request is not valid JSON."), lane)

    def _create(self, turn: Accepted, now_s: float) -> list[Effect]:
        if (refusal := self._refusal(turn, now_s)) is not None:
            return [SendError(refusal, turn.lane), *self._close_if_ending()]
        try:
            self.inbound.take(len(turn.frame))
        except Overloaded as error:
            return [SendError(error, turn.lane)]
        if turn.lane is not None:
            self._named_lanes.add(turn.lane)
        at_once = turn.lane not in self._busy_lanes and turn.lane not in self._waiting
        if at_once and len(self._running) < self.settings.max_running:
            return [self._start(turn)]
        self._waiting.setdefault(turn.lane, deque()).append(turn)
        self._queued += 1
        self._queued_bytes += len(turn.frame)
        if at_once:
            self._ready_lanes.append(turn.lane)
        return []

    def _refusal(self, turn: Accepted, now_s: float) -> ApiError | None:
        settings = self.settings
        if (
            turn.lane is not None
            and turn.lane not in self._named_lanes
            and len(self._named_lanes) >= settings.max_lanes
        ):
            message = f"A connection may use {settings.max_lanes} stream_ids; open another one."
            return StreamLimitReached(message, "stream_id")
        if self._ending is None and now_s - self.opened_s >= self._admit_age_s:
            self._ending = self._old_age()
        if self._ending is not None:
            return self._ending.refusal
        waits = turn.lane in self._busy_lanes or len(self._running) >= settings.max_running
        if waits and (
            self._queued >= settings.max_queued
            or self._queued_bytes + len(turn.frame) > settings.max_queued_bytes
        ):
            return Overloaded(f"{self._queued} requests wait on this connection already.")
        return None

    def _start(self, turn: Accepted) -> StartTurn:
        self._running[turn.response_id] = _Running(turn.lane, len(turn.frame))
        self._busy_lanes.add(turn.lane)
        return StartTurn(turn)

    def _start_ready(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._ready_lanes and len(self._running) < self.settings.max_running:
            lane = self._ready_lanes.popleft()
            waiting = self._waiting[lane]
            turn = waiting.popleft()
            if not waiting:
                del self._waiting[lane]
            self._queued -= 1
            self._queued_bytes -= len(turn.frame)
            effects.append(self._start(turn))
        return effects

    @property
    def _admit_age_s(self) -> float:
        return min(self.settings.admit_age_s, self.settings.max_age_s)

    def _old_age(self) -> _Ending:
        minutes = round(self.settings.max_age_s / 60)
        refusal = ConnectionLimitReached(
            f"This connection has reached its limit of {minutes} minutes; open a new one."
        )
        return _Ending(refusal, CloseSocket(1000, "connection limit reached"))

    def _too_old(self) -> list[Effect]:
        self._aged = True
        ending = self._ending or self._old_age()
        unsolicited: list[Effect] = [SendError(ending.refusal)] if self.idle else []
        return unsolicited + self._end(ending)

    def _end(self, ending: _Ending) -> list[Effect]:
        self._ending = ending
        self._refuses = True
        return [*self._refuse_ready(), *self._close_if_ending()]

    def _refuse_ready(self) -> list[Effect]:
        """What waits behind a running turn is refused after it: a lane's answers keep order."""
        assert self._ending is not None, "nothing is refused before the end"
        effects: list[Effect] = []
        for lane in self._ready_lanes:
            waiting = self._waiting.pop(lane)
            effects += [SendError(self._ending.refusal, lane) for _ in waiting]
            self._dropped(waiting)
        self._ready_lanes.clear()
        return effects

    def _drop_waiting(self) -> None:
        for waiting in self._waiting.values():
            self._dropped(waiting)
        self._waiting.clear()
        self._ready_lanes.clear()

    def _dropped(self, turns: deque[Accepted]) -> None:
        size_bytes = sum(len(turn.frame) for turn in turns)
        self.inbound.give_back(size_bytes)
        self._queued -= len(turns)
        self._queued_bytes -= size_bytes

    def _close_if_ending(self) -> list[Effect]:
        if self._ending is None or self._running or self._closed:
            return []
        return self._close(self._ending.close)

    def _close(self, effect: CloseSocket) -> list[Effect]:
        self._closed = True
        return [effect]

    def __repr__(self) -> str:
        lanes = " ".join(f"{running.lane or '-'}" for running in self._running.values())
        return f"<Session running [{lanes}] | {self._queued} queued {self._queued_bytes} B>"
