"""`POST /v1/responses` over HTTP: the same turn, answered as JSON or as server-sent events."""

import asyncio
from collections.abc import Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from turnwire.gateway import render
from turnwire.gateway.auth import Principal
from turnwire.gateway.body import read_body
from turnwire.gateway.caller import caller_of
from turnwire.gateway.observation import ObservedTurn
from turnwire.gateway.responses import ResponsePages
from turnwire.gateway.sse import DONE, EVENT_STREAM, head, sse
from turnwire.gateway.turns import Serving, cut_short, restarting
from turnwire.gateway.websocket import TIMINGS_HEADER
from turnwire.gateway.wire import WIRE, HttpWire
from turnwire.pipelines.messages import Json, Prepared
from turnwire.pipelines.protocol.codec import decode_envelope
from turnwire.pipelines.protocol.errors import ApiError
from turnwire.pipelines.turn import Turn
from turnwire.pipelines.turn_request import TurnRequest


class Outbox:
    """What the client of a request is still to be sent. Listens to a turn."""

    def __init__(
        self, max_bytes: int, cut_off: Callable[[], None], prepared: Callable[[Prepared], None]
    ) -> None:
        """`cut_off` is called when more than `max_bytes` wait for a client that does not read."""
        self._prepared = prepared
        self._streams = False
        self.is_over = False
        self._max_bytes = max_bytes
        self._cut_off = cut_off
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        self._news = asyncio.Event()

    def events(self, events: list[Json], *, now: bool = True) -> None:
        if not self._streams:
            return
        if self._held_bytes > self._max_bytes:
            # Counted before these events: they alone may be more, and nobody could have read them.
            self._cut_off()
            return
        for event in events:
            chunk = sse(event)
            self._chunks.append(chunk)
            self._held_bytes += len(chunk)
        self._news.set()

    def prepared(self, prepared: Prepared) -> None:
        self._streams = prepared.stream
        self._prepared(prepared)

    def ended(self) -> None:
        self.is_over = True
        self._news.set()

    async def next(self) -> bytes | None:
        """All there is, as soon as there is any; None at the end."""
        while not self._chunks:
            if self.is_over:
                return None
            self._news.clear()
            await self._news.wait()
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._held_bytes = 0
        return data


class TurnExchange:
    """One request that makes a response: reads it, runs its turn, answers."""

    def __init__(self, serving: Serving, responses: ResponsePages) -> None:
        self._serving = serving
        self._responses = responses
        self._turn: Turn | None = None
        self._observed: ObservedTurn | None = None
        self._held_bytes = 0
        self._refusal: ApiError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        serving = self._serving
        try:
            principal = serving.door.admit(request.headers)
            if serving.clients.draining:
                raise restarting()
            serving.places.take()
        except ApiError as error:
            await render.error_response(error)(scope, receive, send)
            return
        try:
            answer = await self._admitted(request, principal, send)
            if answer is not None:
                await answer(scope, receive, send)
        except ApiError as error:
            await render.error_response(error)(scope, receive, send)
        except ClientDisconnect:
            return
        finally:
            serving.places.give_back()

    def frame(self, body: Json) -> Json:
        """The create body that a request stands for. Raises InvalidRequest."""
        return body

    def answer(self, response: Json) -> Json:
        """What is answered for a final response object."""
        return response

    # --- turns.Client ---------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        if self._turn is not None:
            self._turn.beat(now_s)

    def drain(self) -> None:
        """It finishes; nothing else can come on it."""

    def expired(self) -> None:
        if self._turn is not None:
            self._turn.end(cut_short())

    # --- inside ---------------------------------------------------------------------------------

    async def _admitted(
        self, request: Request, principal: Principal, send: Send
    ) -> Response | None:
        """Answers, unless it returns the answer of a turn that runs on in the background.

        Raises the ApiError of a request that is refused before anything was sent.
        """
        began_s = self._serving.clock.now_s()
        body = await read_body(request, self._serving)
        self._held_bytes = len(body)
        try:
            body = self.frame(body)
            envelope = decode_envelope(body)
            caller = caller_of(request.headers, "http", principal.tenant)
            observed = self._observed = ObservedTurn(self._serving.observation, caller)
            turn_request = TurnRequest(
                response_id=self._serving.response_id(),
                frame=body,
                tenant=principal.tenant,
                key_id=principal.key_id,
                model=envelope.model,
                transport="http",
                timings=request.headers.get(TIMINGS_HEADER) == "1",
                received_s=self._serving.clock.now_s(),
                began_s=began_s,
            )
            if envelope.background:
                self._held_bytes = 0  # the turn gives them back
                return await self._responses.create(turn_request, observed, request.headers)
            async with self._serving.ports.leases.shared(principal.tenant) as leased:
                outbox = self._outbox(request)
                memory = self._serving.memory(leased, request.headers)
                self._turn = Turn(turn_request, memory, self._serving.services, outbox)
                # From here on the turn alone keeps the body, and only until it is prepared.
                del body, turn_request
                await self._exchange(self._turn, outbox, request, send)
        finally:
            self._frame_released()
        return None

    def _outbox(self, request: Request) -> Outbox:
        wire: HttpWire = request.scope["state"][WIRE]
        return Outbox(self._serving.settings.max_send_bytes, wire.cut_off, self._prepared)

    def _prepared(self, prepared: Prepared) -> None:
        if self._observed is not None:
            self._observed.prepared(prepared)
        self._frame_released()

    def _frame_released(self) -> None:
        self._serving.inbound.give_back(self._held_bytes)
        self._held_bytes = 0

    async def _exchange(self, turn: Turn, outbox: Outbox, request: Request, send: Send) -> None:
        self._serving.clients.enter(self)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(self._run(turn, outbox))
                watcher = tasks.create_task(self._watch(request, outbox, running))
                await self._answer(turn, outbox, request, send)
                watcher.cancel()
        finally:
            self._serving.clients.leave(self)
        if self._refusal is not None:
            raise self._refusal

    async def _run(self, turn: Turn, outbox: Outbox) -> None:
        try:
            await turn.run()
        except Exception as error:
            told = render.hidden(error, turn.id)
            self._refusal = None if turn.created else told
        finally:
            if self._observed is not None:
                self._observed.ended(turn, self._refusal)
            outbox.ended()

    async def _watch(self, request: Request, outbox: Outbox, running: asyncio.Task[None]) -> None:
        """Cancels the turn when the client hangs up before it was answered."""
        message: Message = await request.receive()
        while message["type"] != "http.disconnect":
            message = await request.receive()
        if not outbox.is_over:
            running.cancel()

    async def _answer(self, turn: Turn, outbox: Outbox, request: Request, send: Send) -> None:
        """At once when there is an end: the turn may still wait for a verdict then."""
        data = await outbox.next()
        if data is None:
            if turn.failure is not None:
                failed = render.error_response(turn.failure)
                await failed(request.scope, request.receive, send)
            elif turn.response is not None:
                await _send_json(send, turn.id, self.answer(turn.response))
            return
        await send(head(turn.id, EVENT_STREAM))
        while data is not None:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            data = await outbox.next()
        await send({"type": "http.response.body", "body": DONE})


async def _send_json(send: Send, response_id: str, body: Json) -> None:
    await send(head(response_id, b"application/json"))
    await send({"type": "http.response.body", "body": body})
