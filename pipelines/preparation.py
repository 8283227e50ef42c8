"""A frame becomes a prepared turn: at the connection's actor, with storage for a parent it lost."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from turnwire.pipelines.messages import (
    Abort,
    CountTokens,
    Json,
    Load,
    ParentUnknown,
    Prepare,
    Prepared,
    TokenCount,
)
from turnwire.pipelines.ports import Connection, Store
from turnwire.pipelines.protocol.codec import parent_named
from turnwire.pipelines.protocol.errors import NotFound, PreviousResponseNotFound
from turnwire.pipelines.turn_request import TurnRequest

Command = TypeVar("Command", Prepare, CountTokens)
Answer = TypeVar("Answer", Prepared, TokenCount)


async def prepare(command: Prepare, connection: Connection, store: Store, tenant: str) -> Prepared:
    """Raises what the actor refuses, or PreviousResponseNotFound. The parent is pinned after it."""
    return await _with_parent(connection.prepare, command, store, tenant)


async def count(
    command: CountTokens, connection: Connection, store: Store, tenant: str
) -> TokenCount:
    """Raises what the actor refuses, or PreviousResponseNotFound."""
    return await _with_parent(connection.count, command, store, tenant)


async def _with_parent(
    ask: Callable[[Command], Awaitable[Answer | ParentUnknown]],
    command: Command,
    store: Store,
    tenant: str,
) -> Answer:
    answer = await ask(command)
    if isinstance(answer, ParentUnknown):
        parent_id = answer.response_id
        try:
            chain = await store.load(Load(tenant, parent_id))
        except (NotFound, PreviousResponseNotFound):
            raise _unknown(parent_id) from None
        answer = await ask(msgspec.structs.replace(command, chain=chain))
        if isinstance(answer, ParentUnknown):
            raise _unknown(parent_id)
    return answer


def given_up(request: TurnRequest, unseen: Json, connection_id: str, evict: bool) -> Abort:
    """`unseen`: the frame of a turn that failed before its connection saw it, else empty.

    Then the connection cannot know which parent it named.
    """
    names_parent = evict and request.transport == "websocket"
    parent_id = parent_named(unseen) if names_parent else None
    response_id, lane = request.response_id, request.lane
    return Abort(connection_id, response_id, evict, parent_id=parent_id, lane=lane)


def _unknown(response_id: str) -> PreviousResponseNotFound:
    return PreviousResponseNotFound(
        f"Previous response with id '{response_id[:128]}' not found.", "previous_response_id"
    )
