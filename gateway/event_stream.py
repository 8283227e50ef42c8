"""A response's events to one client that follows it, as server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnwire.actors.backoff import Backoff
from turnwire.gateway import render
from turnwire.gateway.background import BackgroundTurns
from turnwire.gateway.sse import DONE, EVENT_STREAM, head, sse
from turnwire.gateway.turns import Clients
from turnwire.pipelines import messages as m
from turnwire.pipelines.ports import BackgroundStore
from turnwire.pipelines.protocol.errors import ApiError, Overloaded

Pages = AsyncGenerator[tuple[m.Json, ...], None]


async def followed(
    store: BackgroundStore,
    command: m.FollowBackground,
    patience_s: float,
    now_s: Callable[[], float],
) -> Pages:
    """All events behind `after`, as they come. The first page may be empty, and comes at once.

    A storage that is lost is followed again, for `patience_s` at most: a response may have been
    silent for longer. Raises what it refuses.
    """
    backoff, begun = Backoff(), False
    give_up_s: float | None = None
    while True:
        try:
            async with store.follow(command) as pages:
                async for page in pages:
                    begun, give_up_s = True, None
                    backoff.reset()
                    command = msgspec.structs.replace(command, after=page.last)
                    yield page.events
            return
        except Overloaded:
            if give_up_s is None:
                give_up_s = now_s() + patience_s
            if not begun or now_s() > give_up_s:
                raise
        await asyncio.sleep(backoff.next_s())


async def at_once(events: list[m.Json]) -> Pages:
    """One page of events that are there already."""
    yield tuple(events)


class EventStream(Response):
    """Sends pages until there are no more or the client leaves; a slow client is waited for."""

    def __init__(
        self,
        response_id: str,
        pages: Pages,
        clients: Clients,
        turns: BackgroundTurns,
        over: Callable[[], None],
    ) -> None:
        """`over` is called once it is sent, or cannot be."""
        super().__init__()
        self._over = over
        self._id = response_id
        self._pages = pages
        self._first: tuple[m.Json, ...] = ()
        self._clients = clients
        self._turns = turns
        self._sending: asyncio.Task[None] | None = None

    async def begun(self) -> "EventStream":
        """Itself, once there is something to send. Raises what the pages raise before that."""
        self._first = await anext(self._pages, ())
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._clients.enter(self)
        try:
            async with aclosing(self._pages), asyncio.TaskGroup() as tasks:
                self._sending = tasks.create_task(self._send(send))
                leaving = tasks.create_task(_left(receive))
                await asyncio.wait((self._sending, leaving), return_when=asyncio.FIRST_COMPLETED)
                self._sending.cancel()
                leaving.cancel()
        finally:
            self._clients.leave(self)
            self._over()

    async def _send(self, send: Send) -> None:
        await send(head(self._id, EVENT_STREAM))
        if self._first:
            await _send_events(send, self._first)
        end = DONE
        try:
            async for page in self._pages:
                await _send_events(send, page)
        except ApiError as error:
            end = b"event: error\ndata: %b\n\n" % render.error_frame(error, None)
        await send({"type": "http.response.body", "body": end})

    # --- turns.Client ---------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Its events come from elsewhere."""

    def drain(self) -> None:
        """One that runs here will end; another is followed through another gateway."""
        if self._id not in self._turns:
            self.expired()

    def expired(self) -> None:
        if self._sending is not None:
            self._sending.cancel()


async def _send_events(send: Send, events: tuple[m.Json, ...]) -> None:
    body = b"".join(map(sse, events))
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
