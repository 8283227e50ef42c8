"""A connection over the pure core: performs what its session decides, as a gateway does."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from scripted_ports import KEYRING, LocalConnection
from turn_worlds import check_event, check_events

from turnwire.gateway.render import error_frame, hidden
from turnwire.pipelines import effects as e
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ConnectionSettings, SessionSettings
from turnwire.pipelines.connection import ConnectionState
from turnwire.pipelines.limits import ByteBudget
from turnwire.pipelines.routes import Routes
from turnwire.pipelines.services import Clock, Services
from turnwire.pipelines.session import Session
from turnwire.pipelines.turn import Turn
from turnwire.pipelines.turn_request import Memory, TurnRequest

Say = Callable[[dict[str, Any] | str], None]


@dataclass(frozen=True, slots=True)
class Gateway:
    """What connections share."""

    services: Services
    clock: Clock
    inbound: ByteBudget
    settings: dict[str, str]


class CoreClient:
    """`say` is given what goes out: an event, or words about the socket's end."""

    def __init__(
        self, gateway: Gateway, connection: LocalConnection, tenant: str, say: Say
    ) -> None:
        self.connection = connection
        self.tasks: list[asyncio.Task[None]] = []
        self.asked: set[str] = set()
        self._gateway = gateway
        self._tenant = tenant
        self._say = say
        self._sent: defaultdict[str | None, list[dict[str, Any]]] = defaultdict(list)
        self._turns: dict[str, tuple[Turn, asyncio.Task[None]]] = {}
        clock, chosen = gateway.clock, gateway.settings
        routes = Routes(gateway.services.router, clock)
        self._memory = Memory(connection, connection.id, routes)
        settings = SessionSettings.model_validate(
            {name: chosen[name] for name in chosen if name in SessionSettings.model_fields}
        )
        max_message_bytes = int(chosen.get("max_message_bytes", 100_000))
        self._session = Session(settings, gateway.inbound, max_message_bytes, clock.now_s())
        if "max_context_bytes" in chosen:
            self._forget(ConnectionSettings(max_context_bytes=int(chosen["max_context_bytes"])))

    def receive(self, frame: bytes, response_id: str) -> None:
        self.asked.add(response_id)
        self._perform(self._session.received(frame, response_id, self._gateway.clock.now_s()))

    def binary(self) -> None:
        self._perform(self._session.received_binary())

    def tick(self, now_s: float) -> None:
        self._perform(self._session.tick(now_s))
        for turn, _ in tuple(self._turns.values()):
            turn.beat(now_s)

    def drain(self, *, over: bool) -> None:
        self._perform(self._session.expired() if over else self._session.drain())

    def leave(self) -> None:
        self._perform(self._session.disconnected())
        for turn, _ in self._turns.values():
            turn.left()

    def lose_actor(self) -> None:
        self._forget(ConnectionSettings())

    def check(self) -> None:
        """Every response had its events in order, and one end; a cancelled one has none."""
        for event in self._sent.pop(None, ()):
            check_event(event)
        for events in self._sent.values():
            check_events(events, ended=events[-1]["type"].rpartition(".")[2] in _ENDS)

    def _forget(self, settings: ConnectionSettings) -> None:
        self.connection.state = ConnectionState(self._tenant, settings, bytes, keyring=KEYRING)

    # --- what turns report ------------------------------------------------------------------------

    def send(self, events: list[m.Json], response_id: str | None = None) -> None:
        for event in events:
            decoded = orjson.loads(event)
            self._sent[response_id].append(decoded)
            self._say(decoded)

    def prepared(self, response_id: str) -> None:
        self._session.prepared(response_id)

    def finished(self, response_id: str) -> None:
        self._perform(self._session.finished(response_id, self._gateway.clock.now_s()))

    # --- performing -------------------------------------------------------------------------------

    def _perform(self, effects: list[e.Effect]) -> None:
        for effect in effects:
            match effect:
                case e.StartTurn(accepted):
                    self._start(accepted)
                case e.CancelTurn(response_id):
                    self._turns[response_id][1].cancel()
                case e.EndTurn(response_id, error):
                    self._turns[response_id][0].end(error)
                case e.SendError(error, lane):
                    self.send([error_frame(error, lane)])
                case e.SendEvent(event):
                    self.send([event])
                case e.CloseSocket(code, reason):
                    self._say(f"close {code} {reason}")

    def _start(self, accepted: e.Accepted) -> None:
        request = TurnRequest(
            accepted.response_id,
            accepted.frame,
            self._tenant,
            "key_1",
            accepted.model,
            accepted.lane,
            received_s=accepted.received_s,
        )
        listener = _Listener(self, accepted.response_id)
        turn = Turn(request, self._memory, self._gateway.services, listener)
        task = asyncio.create_task(self._run(turn, accepted.lane))
        self._turns[turn.id] = turn, task
        self.tasks.append(task)

    async def _run(self, turn: Turn, lane: str | None) -> None:
        try:
            await turn.run()
        except Exception as error:
            if not turn.created:
                self.send([error_frame(hidden(error, turn.id), lane)])
        finally:
            del self._turns[turn.id]
            self.finished(turn.id)


_ENDS = ("completed", "incomplete", "failed")


@dataclass(frozen=True, slots=True)
class _Listener:
    client: CoreClient
    response_id: str

    def events(self, events: list[m.Json], *, now: bool = True) -> None:
        self.client.send(events, self.response_id)

    def prepared(self, prepared: m.Prepared) -> None:
        self.client.prepared(self.response_id)

    def ended(self) -> None:
        self.client.finished(self.response_id)
