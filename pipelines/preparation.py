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
from turnwire.pipelines.protocol.errors import (
    InvalidRequest,
    NotFound,
    PreviousResponseNotFound,
)
from turnwire.pipelines.turn_request import TurnRequest

_MAX_LOADS = 32
"""A turn may name one parent, or items of so many responses that its connection has lost."""

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
    loaded: set[str] = set()
    while isinstance(answer, ParentUnknown):
        if answer.response_id in loaded or len(loaded) == _MAX_LOADS:
            raise _unknown(answer)
        try:
            chain = await store.load(Load(tenant, answer.response_id))
        except (NotFound, PreviousResponseNotFound):
            raise _unknown(answer) from None
        loaded.add(answer.response_id)
        answer = await ask(msgspec.structs.replace(command, chain=chain))
    return answer


def given_up(request: TurnRequest, unseen: Json, connection_id: str, evict: bool) -> Abort:
    """`unseen`: the frame of a turn that failed before its connection saw it, else empty.

    Then the connection cannot know which parent it named.
    """
    names_parent = evict and request.transport == "websocket"
    parent_id = parent_named(unseen) if names_parent else None
    response_id, lane = request.response_id, request.lane
    return Abort(connection_id, response_id, evict, parent_id=parent_id, lane=lane)


def _unknown(wanted: ParentUnknown) -> InvalidRequest:
    if wanted.item_id:
        return InvalidRequest(
            f"Item with id '{wanted.item_id[:128]}' not found. Items of responses with `store: "
            "false` are not kept.",
            "input",
        )
    return PreviousResponseNotFound(
        f"Previous response with id '{wanted.response_id[:128]}' not found.", "previous_response_id"
    )
