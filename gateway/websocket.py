"""One WebSocket: a reader that never waits for a turn, turns as tasks, one writer below them."""

import asyncio
import logging
from contextlib import suppress
from typing import assert_never

from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocket, WebSocketDisconnect

from turnwire.gateway import render
from turnwire.gateway.auth import Principal
from turnwire.gateway.caller import caller_of
from turnwire.gateway.observation import ObservedTurn
from turnwire.gateway.turns import LeasedConnection, Serving, restarting
from turnwire.gateway.wire import WIRE, SocketWire
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
from turnwire.pipelines.messages import Json, Prepared
from turnwire.pipelines.protocol.errors import ApiError, UpgradeRequired
from turnwire.pipelines.session import Session
from turnwire.pipelines.turn import Turn
from turnwire.pipelines.turn_request import TurnRequest

TIMINGS_HEADER = "x-turnwire-timings"

_TOO_BIG = 1009

logger = logging.getLogger("turnwire.gateway")


async def serve_websocket(websocket: WebSocket, serving: Serving) -> None:
    """From the upgrade to the last task of the connection."""
    # A client may leave before it is answered: then there is nobody to tell.
    with suppress(WebSocketDisconnect, ClientDisconnect):
        try:
            principal = admit(websocket, serving)
            serving.places.take()
        except ApiError as error:
            await websocket.send_denial_response(render.error_response(error))
            return
        try:
            await _serve_admitted(websocket, serving, principal)
        finally:
            serving.places.give_back()


def admit(websocket: WebSocket, serving: Serving) -> Principal:
    """Raises the ApiError with which the upgrade is refused."""
    if not serving.settings.websocket:
        raise UpgradeRequired("WebSocket is switched off here; use POST /v1/responses.")
    principal = serving.door.admit(websocket.headers)
    if serving.clients.draining:
        raise restarting()
    return principal


async def _serve_admitted(websocket: WebSocket, serving: Serving, principal: Principal) -> None:
    accepted = False
    try:
        async with serving.ports.leases.lease(principal.tenant) as leased:
            await websocket.accept()
            accepted = True
            client = SocketClient(websocket, serving, principal, leased)
            serving.clients.enter(client)
            try:
                await client.serve()
            except Exception as error:
                # A bug of ours: said before the socket goes, since turns may be running on it.
                client.wire.send_events([render.error_frame(render.hidden(error, leased.id), None)])
                client.wire.close(1011, "internal error")
            finally:
                serving.clients.leave(client)
    except ApiError as error:
        if accepted:
            raise
        await websocket.send_denial_response(render.error_response(error))


class _TurnListener:
    """Carries what a turn reports to its connection."""

    def __init__(self, client: "SocketClient", response_id: str, observed: ObservedTurn) -> None:
        self._client = client
        self._response_id = response_id
        self._observed = observed

    def events(self, events: list[Json], *, now: bool = True) -> None:
        self._client.wire.send_events(events, now=now)

    def prepared(self, prepared: Prepared) -> None:
        self._observed.prepared(prepared)
        self._client.frame_released(self._response_id)

    def ended(self) -> None:
        self._client.turn_ended(self._response_id)


class SocketClient:
    """Performs what the connection's `Session` decides."""

    def __init__(
        self,
        websocket: WebSocket,
        serving: Serving,
        principal: Principal,
        leased: LeasedConnection,
    ) -> None:
        settings = serving.settings
        self.wire: SocketWire = websocket.scope["state"][WIRE]
        self._serving = serving
        self._principal = principal
        self._memory = serving.memory(leased, websocket.headers)
        self._caller = caller_of(websocket.headers, "websocket", principal.tenant, leased.id)
        self._timings = websocket.headers.get(TIMINGS_HEADER) == "1"
        self._clock = serving.clock
        self._session = Session(
            settings.session, serving.inbound, settings.max_message_bytes, self._clock.now_s()
        )
        self._turns: dict[str, tuple[Turn, asyncio.Task[None]]] = {}

    async def serve(self) -> None:
        """Returns when the client is gone and every task of the connection has ended."""
        async with asyncio.TaskGroup() as self._tasks:
            try:
                self._log_end(await self.wire.read(self))
            finally:
                self._perform(self._session.disconnected())
                for turn, _ in self._turns.values():
                    turn.left()

    # --- wire.Reader ----------------------------------------------------------------------------

    def text_received(self, frame: Json, began_s: float) -> None:
        if len(frame) > self._serving.settings.max_message_bytes:
            where = self._memory.connection_id, len(frame)
            logger.warning("request.too_big %s: %d bytes", *where)
        response_id = self._serving.response_id()
        effects = self._session.received(frame, response_id, self._clock.now_s(), began_s)
        self._perform(effects)

    def binary_received(self) -> None:
        self._perform(self._session.received_binary())

    def _log_end(self, code: int) -> None:
        """Clients often leave without a close frame, so only what we could not take is news."""
        level = logging.WARNING if code == _TOO_BIG else logging.DEBUG
        logger.log(level, "connection.ended %s: code %d", self._memory.connection_id, code)

    # --- what turns report ----------------------------------------------------------------------

    def frame_released(self, response_id: str) -> None:
        self._session.prepared(response_id)

    def turn_ended(self, response_id: str) -> None:
        self._perform(self._session.finished(response_id, self._clock.now_s()))

    # --- turns.Client ---------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        self._perform(self._session.tick(now_s))
        for turn, _ in tuple(self._turns.values()):
            turn.beat(now_s)

    def drain(self) -> None:
        self._perform(self._session.drain())

    def expired(self) -> None:
        self._perform(self._session.expired())

    # --- performing -----------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case StartTurn(accepted):
                    self._start(accepted)
                case CancelTurn(response_id):
                    self._turns[response_id][1].cancel()
                case EndTurn(response_id, error):
                    self._turns[response_id][0].end(error)
                case SendError(error, lane):
                    self._serving.observation.refused(self._caller.on_lane(lane), error)
                    self.wire.send_events([render.error_frame(error, lane)])
                case SendEvent(event):
                    self.wire.send_events([event])
                case CloseSocket(code, reason):
                    self.wire.close(code, reason)
                case _:
                    assert_never(effect)

    def _start(self, accepted: Accepted) -> None:
        request = TurnRequest(
            response_id=accepted.response_id,
            frame=accepted.frame,
            tenant=self._principal.tenant,
            key_id=self._principal.key_id,
            model=accepted.model,
            lane=accepted.lane,
            timings=self._timings,
            received_s=accepted.received_s,
            began_s=accepted.began_s,
        )
        observed = ObservedTurn(self._serving.observation, self._caller.on_lane(accepted.lane))
        listener = _TurnListener(self, accepted.response_id, observed)
        turn = Turn(request, self._memory, self._serving.services, listener)
        task = self._tasks.create_task(self._run(turn, accepted.lane, observed))
        self._turns[turn.id] = turn, task

    async def _run(self, turn: Turn, lane: str | None, observed: ObservedTurn) -> None:
        """One turn; its faults never reach the connection's other turns."""
        refusal: ApiError | None = None
        try:
            await turn.run()
        except Exception as error:
            told = render.hidden(error, turn.id)
            if not turn.created:
                refusal = told
                self.wire.send_events([render.error_frame(told, lane)])
        finally:
            observed.ended(turn, refusal)
            del self._turns[turn.id]
            self.turn_ended(turn.id)
