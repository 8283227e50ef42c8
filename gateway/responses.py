"""What is asked of a response after it was created: to be shown, streamed, cancelled, deleted."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import Response

from turnwire.gateway.auth import Principal
from turnwire.gateway.background import BackgroundTurns
from turnwire.gateway.event_stream import EventStream, at_once, followed
from turnwire.gateway.observation import ObservedTurn
from turnwire.gateway.turns import Serving
from turnwire.pipelines import messages as m
from turnwire.pipelines.background import events_gone, is_background, is_running
from turnwire.pipelines.open_items import reasoning_kind
from turnwire.pipelines.protocol.errors import EventsGone, InvalidRequest, NotFound
from turnwire.pipelines.protocol.ids import is_plain
from turnwire.pipelines.protocol.include import included, shown
from turnwire.pipelines.protocol.item_list import item_page, page_query
from turnwire.pipelines.replay import replayed
from turnwire.pipelines.turn_request import TurnRequest

_YES, _NO = frozenset({"1", "true", "True"}), frozenset({"", "0", "false", "False"})
_NUMBER = re.compile(r"\d{1,18}\Z", re.ASCII)


class ResponsePages:
    """Guarded as `Pages` are. `create` answers for those that run on in the background."""

    def __init__(self, serving: Serving, turns: BackgroundTurns) -> None:
        self._serving = serving
        self._turns = turns

    async def create(
        self, request: TurnRequest, observed: ObservedTurn, headers: Mapping[str, str]
    ) -> Response:
        """The answer to a request with `background`. Raises what it is refused with."""
        turn = await self._turns.create(request, observed, headers)
        if turn.streams:
            # The request that makes a response has its place already.
            return await self._stream_of(m.FollowBackground(turn.tenant, turn.id), lambda: None)
        answer = {"x-request-id": turn.id, "cache-control": "no-store"}
        return Response(turn.recorder.accepted, 200, answer, "application/json")

    async def retrieve(self, request: Request, principal: Principal) -> object:
        query = request.query_params
        asked = included(query.multi_items())
        after = _after(query.get("starting_after"))
        response_id = _response_id(request)
        if _flag(query.get("stream", "")):
            with self._placed() as over:
                return await self._streamed(principal.tenant, response_id, after, over)
        command = m.Fetch(principal.tenant, response_id)
        return shown((await self._serving.ports.store.fetch(command)).response, asked)

    async def input_items(self, request: Request, principal: Principal) -> object:
        query = page_query(request.query_params)
        include = included(request.query_params.multi_items())
        command = m.Fetch(principal.tenant, _response_id(request))
        stored = await self._serving.ports.store.fetch(command)
        return item_page(stored.input, query, include)

    async def cancel(self, request: Request, principal: Principal) -> object:
        response_id = _response_id(request)
        command = m.CancelBackground(principal.tenant, response_id)
        stored = await self._serving.ports.background.cancel(command)
        self._turns.stop(response_id)
        return stored.response

    async def delete(self, request: Request, principal: Principal) -> object:
        response_id = _response_id(request)
        leases = self._serving.ports.leases
        try:
            await self._serving.ports.store.delete(m.Delete(principal.tenant, response_id))
        except NotFound:
            # One that had to be sent again finds nothing, and nobody was told yet.
            leases.forget(principal.tenant, response_id)
            raise
        self._turns.stop(response_id)
        leases.forget(principal.tenant, response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @contextmanager
    def _placed(self) -> Iterator[Callable[[], None]]:
        """A stream takes a place among all connections, until it is over or never comes to be."""
        places = self._serving.places
        places.take()
        try:
            yield places.give_back
        except BaseException:
            places.give_back()
            raise

    async def _streamed(
        self, tenant: str, response_id: str, after: int | None, over: Callable[[], None]
    ) -> EventStream:
        """The events as they were sent. Where they are not kept, those of the finished object."""
        serving = self._serving
        command = m.FollowBackground(tenant, response_id, -1 if after is None else after)
        try:
            return await self._stream_of(command, over)
        except (NotFound, EventsGone) as error:
            stored = await serving.ports.store.fetch(m.Fetch(tenant, response_id))
            if is_running(stored.response):
                raise
            if after is not None:
                raise _no_numbers(stored.response, error) from None
        reasoning = reasoning_kind(serving.settings.reasoning_events)
        pages = at_once(replayed(stored.response, reasoning))
        return EventStream(response_id, pages, serving.clients, self._turns, over)

    async def _stream_of(
        self, command: m.FollowBackground, over: Callable[[], None]
    ) -> EventStream:
        """Raises what storage refuses, before anything is sent."""
        serving = self._serving
        patience_s = serving.settings.background.storage_wait_s
        store, now_s = serving.ports.background, serving.clock.now_s
        pages = followed(store, command, patience_s, now_s)
        stream = EventStream(command.response_id, pages, serving.clients, self._turns, over)
        return await stream.begun()


def _response_id(request: Request) -> str:
    response_id: str = request.path_params["response_id"]
    if not is_plain(response_id):
        raise NotFound(f"Response with id {response_id[:128]!r} not found.", "response_id")
    return response_id


def _no_numbers(response: m.Json, error: Exception) -> InvalidRequest:
    if is_background(response):
        return error if isinstance(error, EventsGone) else events_gone()
    return InvalidRequest(
        "Only a response made with 'background' can be resumed: leave 'starting_after' out.",
        "starting_after",
    )


def _flag(value: str) -> bool:
    if value in _YES or value in _NO:
        return value in _YES
    raise InvalidRequest("Invalid 'stream': expected true or false.", "stream")


def _after(value: str | None) -> int | None:
    if value is None:
        return None
    if _NUMBER.match(value) is None:
        raise InvalidRequest(
            "Invalid 'starting_after': expected the sequence_number of an event.", "starting_after"
        )
    return int(value)
