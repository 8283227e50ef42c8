"""A background response as a record: what is written of it, when, and how it may end. Pure.

The gateway that runs the turn writes through a `Recorder`. Storage ends what was cancelled, or lost
its gateway, with `cancelled` and `lost`.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import orjson
from msgspec import Raw

from turnwire.pipelines.messages import (
    AppendTurn,
    BackgroundStatus,
    BeginBackground,
    EndBackground,
    Json,
    RecordEvents,
    Save,
)
from turnwire.pipelines.protocol.errors import ApiError, EventsGone, Internal, Overloaded
from turnwire.pipelines.protocol.events import event_type

RUNNING: Final = frozenset({"queued", "in_progress"})

Write = BeginBackground | RecordEvents | EndBackground

_STATES: Final[dict[bytes, BackgroundStatus]] = {
    b"response.created": "queued",
    b"response.queued": "queued",
    b"response.in_progress": "in_progress",
    b"response.failed": "failed",
}
"""Events that carry the response object. A turn that succeeds is concluded before it says so."""
_TERMINAL: Final[dict[str, bytes]] = {
    "completed": b"response.completed",
    "incomplete": b"response.incomplete",
    "failed": b"response.failed",
    # The API has no event of that name; its clients take the object of this one as the last.
    "cancelled": b"response.incomplete",
}


class _State(msgspec.Struct, frozen=True):
    response: Raw


class _Object(msgspec.Struct, frozen=True):
    status: BackgroundStatus
    background: bool | None = None


_ACCEPTED = 2
"""Events that begin a response: `created` and `queued`."""

_states = msgspec.json.Decoder(_State)
_objects = msgspec.json.Decoder(_Object)


def terminal_event(status: BackgroundStatus, number: int, response: Json) -> Json:
    """The one terminal event of a response, as its turn would send it."""
    kind = _TERMINAL[status]
    return b'{"type":"%b","sequence_number":%d,"response":%b}' % (kind, number, response)


def cancelled(response: Json) -> Json:
    """The object of a running response after it was cancelled."""
    return orjson.dumps(orjson.loads(response) | {"status": "cancelled"})


def lost(response: Json) -> Json:
    """The object of a running response whose gateway is gone."""
    error = Internal("The server that ran this response was lost; create it again.")
    return _failed(response, error)


def is_background(response: Json) -> bool:
    """Was a stored response made in the background?"""
    return bool(_objects.decode(response).background)


def is_running(response: Json) -> bool:
    return _objects.decode(response).status in RUNNING


def events_gone(first: int | None = None) -> EventsGone:
    """`first`: the number of the first event that is kept, if any are."""
    if first is None:
        message = "The events of this response are not kept any more: leave 'starting_after' out."
    else:
        message = (
            "The first events of this response are not kept: stream with 'starting_after' "
            f"{first - 1} or more, or retrieve it without 'stream'."
        )
    return EventsGone(message, "starting_after")


def _failed(response: Json, error: ApiError) -> Json:
    found: dict[str, Any] = orjson.loads(response)
    told = {"code": error.code, "message": error.message}
    return orjson.dumps(found | {"status": "failed", "error": told})


@dataclass
class Recorder:
    """What is to be written of one running response: `next`, then `written` with that write.

    The writes are made one after another. The first is `BeginBackground`, the last `EndBackground`.
    """

    tenant: str
    response_id: str
    owner: str
    created_at: int
    lease_s: float
    max_running: int
    max_unsaved_bytes: int
    input: Json = b"[]"
    begun: bool = False
    over: bool = False
    """Nothing is left to write."""
    unsaved_bytes: int = 0
    accepted: Json = b""
    """The response object as it was queued; empty until there is one."""
    _response: Json = b""
    _status: BackgroundStatus = "queued"
    _status_is_new: bool = False
    _saved: int = 0
    _unsaved: list[Json] = field(default_factory=list)
    _in_flight: int = 0
    _ended: bool = False
    _kept: Save | AppendTurn | None = None
    """How a complete answer is to be kept."""
    _before: tuple[BackgroundStatus, Json] = "queued", b""
    """Status and response before the answer was complete."""

    @property
    def leased(self) -> bool:
        """Is there a record that lives by the owner's lease?"""
        return self.begun and not self.over

    @property
    def ending(self) -> bool:
        """The last write is made, or about to be."""
        return self._ended

    def add(self, events: list[Json]) -> None:
        """Events as the turn sends them. Raises Overloaded when too many wait to be written."""
        for event in events:
            if self._ended:
                return
            self._add(event)
        if self.unsaved_bytes > self.max_unsaved_bytes:
            raise Overloaded("the storage does not take the events of this response")

    def conclude(self, kept: Save | AppendTurn) -> None:
        """The answer is complete. Its terminal event is added here: what is stored must have it."""
        save = kept if isinstance(kept, Save) else kept.save
        assert save is not None, "a background response is stored"
        self._before = self._status, self._response
        self._end(_objects.decode(save.response).status, save.response)
        self._kept = kept

    def refused(self) -> None:
        """The last write was: the answer is not kept. The response runs on, only to fail."""
        assert self._kept is not None, "only what is to be kept is refused"
        self.unsaved_bytes -= len(self._unsaved.pop())
        self._in_flight, self._ended, self._kept = 0, False, None
        self._status, self._response = self._before

    def fail(self, error: ApiError) -> None:
        """End it as failed, when its turn could not do so itself."""
        if not self._ended:
            self._end("failed", _failed(self._response, error))

    def next(self) -> Write | None:
        """What to write now, with all that waits; None: nothing."""
        if not self._unsaved or self._in_flight:
            return None
        self._in_flight = len(self._unsaved) if self.begun else _ACCEPTED
        events = tuple(self._unsaved[: self._in_flight])
        if not self.begun:
            return BeginBackground(
                self.tenant,
                self.response_id,
                self.owner,
                self.created_at,
                self.accepted,
                self.input,
                events,
                self.lease_s,
                self.max_running,
            )
        names = self.tenant, self.response_id, self.owner, self._saved, events
        if self._ended:
            kept = self._kept
            save, append = (None, kept) if isinstance(kept, AppendTurn) else (kept, None)
            return EndBackground(*names, self._status, self._response, save, append)
        response = self._response if self._status_is_new else None
        return RecordEvents(*names, self._status, response, self.lease_s)

    def written(self, write: Write) -> None:
        """`write` is committed."""
        gone, self._unsaved = self._unsaved[: self._in_flight], self._unsaved[self._in_flight :]
        self._saved += self._in_flight
        self._in_flight = 0
        self.unsaved_bytes -= sum(map(len, gone))
        self.begun = True
        if isinstance(write, EndBackground):
            self.over = True
        elif isinstance(write, RecordEvents) and write.response is self._response:
            self._status_is_new = False

    def _add(self, event: Json) -> None:
        state = _STATES.get(event_type(event))
        if state is not None:
            response = bytes(_states.decode(event).response)
            self.accepted = self.accepted or response
            self._status_is_new = self._status_is_new or state != self._status
            self._status, self._response = state, response
            self._ended = state not in RUNNING
        self._keep(event)

    def _end(self, status: BackgroundStatus, response: Json) -> None:
        number = self._saved + len(self._unsaved)
        self._keep(terminal_event(status, number, response))
        self._status, self._response, self._ended = status, response, True

    def _keep(self, event: Json) -> None:
        self._unsaved.append(event)
        self.unsaved_bytes += len(event)
