"""A frame becomes a prepared turn: at the connection's actor, with storage for a parent it lost."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from turnwire.pipelines.messages import (
    Abort,
    ConversationAt,
    CountTokens,
    Json,
    Load,
    LoadConversation,
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
    Overloaded,
    PreviousResponseNotFound,
)
from turnwire.pipelines.protocol.ids import is_plain
from turnwire.pipelines.turn_request import TurnRequest

_MAX_LOADS = 32
"""A turn may name one parent, or items of so many responses that its connection has lost."""

Command = TypeVar("Command", Prepare, CountTokens)
Answer = TypeVar("Answer", Prepared, TokenCount)

_TRIES = 4
"""A conversation that its actor forgot between two questions is loaded anew."""


def _anyone(conversation_id: str) -> None:
    pass


async def prepare(
    command: Prepare,
    connection: Connection,
    store: Store,
    tenant: str,
    enter: Callable[[str], None] = _anyone,
) -> Prepared:
    """Raises what the actor refuses, or PreviousResponseNotFound. The parent is pinned after it.

    `enter` is told the conversation of the turn before it is loaded; what it raises is raised.
    """
    return await _with_parent(connection.prepare, command, store, tenant, enter)


async def count(
    command: CountTokens, connection: Connection, store: Store, tenant: str
) -> TokenCount:
    """Raises what the actor refuses, or PreviousResponseNotFound."""
    return await _with_parent(connection.count, command, store, tenant)


async def _with_parent(
    ask: Callable[[Command], Awaitable[Answer | ParentUnknown | ConversationAt]],
    command: Command,
    store: Store,
    tenant: str,
    enter: Callable[[str], None] = _anyone,
) -> Answer:
    loaded: set[str] = set()
    for _ in range(_MAX_LOADS + _TRIES):
        answer = await ask(command)
        if isinstance(answer, ParentUnknown):
            wanted = answer.response_id
            if wanted in loaded or len(loaded) == _MAX_LOADS or not is_plain(wanted):
                raise _unknown(answer)
            try:
                chain = await store.load(Load(tenant, answer.response_id))
            except (NotFound, PreviousResponseNotFound):
                raise _unknown(answer) from None
            loaded.add(answer.response_id)
            command = msgspec.structs.replace(command, chain=chain)
        elif isinstance(answer, ConversationAt):
            enter(answer.conversation_id)
            load = LoadConversation(tenant, answer.conversation_id, answer.version)
            tail = await store.load_conversation(load)
            command = msgspec.structs.replace(command, conversation=tail)
        else:
            return answer
    raise Overloaded("The conversation does not stay in memory; try again in a moment.")


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
