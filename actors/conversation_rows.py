"""The rows of conversations, as reads and changes find them. Blocking: in threads only.

Everything is scoped by tenant: another tenant's id looks exactly like an unknown one.
"""

from typing import Any

import msgspec
import sqlalchemy as sa

from turnwire.actors.conversation_schema import (
    conversation_items,
    conversation_turns,
    conversations,
    turns_of,
)
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import StorageSettings
from turnwire.pipelines.protocol.errors import InvalidRequest, NotFound

ConversationRead = m.FetchConversation | m.LoadConversation | m.ListItems | m.FetchItem
ConversationWrite = (
    m.CreateConversation
    | m.UpdateConversation
    | m.DeleteConversation
    | m.AddItems
    | m.DeleteItem
    | m.AppendTurn
)
About = ConversationWrite | ConversationRead
_metadata = msgspec.json.Decoder(dict[str, str])


def turns_before(
    connection: sa.Connection, tenant: str, conversation_id: str, response_id: str
) -> tuple[m.StoredTurn, ...] | None:
    """What came before that response's turn; None where turn or conversation is gone."""
    place = m.FetchConversation(tenant, conversation_id)
    version = version_made_by(connection, place, response_id)
    return None if version is None else turns_between(connection, place, 0, version - 1)


def turns_between(
    connection: sa.Connection, command: About, since: int, until: int
) -> tuple[m.StoredTurn, ...]:
    items, turns = conversation_items, conversation_turns
    same = (
        (items.c.tenant == turns.c.tenant)
        & (items.c.conversation_id == turns.c.conversation_id)
        & (items.c.version == turns.c.version)
    )
    query = (
        sa.select(
            items.c.version,
            items.c.output,
            items.c.item,
            turns.c.response_id,
            turns.c.model,
            turns.c.sampled,
            turns.c.finish,
        )
        .join_from(items, turns, same)
        .where(*within(items, command), items.c.version > since, items.c.version <= until)
        .order_by(items.c.position)
    )
    return turns_of(connection.execute(query))


def conversation_row(connection: sa.Connection, command: About) -> sa.Row[Any]:
    row = connection.execute(row_query(command)).one_or_none()
    if row is None:
        message = f"Conversation with id '{command.conversation_id}' not found."
        raise NotFound(message, "conversation")
    return row


def locked_row(connection: sa.Connection, command: About) -> sa.Row[Any]:
    """Nobody else changes the conversation before this transaction ends."""
    # On SQLite the whole database is locked already.
    query = sa.select(conversations.c.tenant).where(*within(conversations, command))
    connection.execute(query.with_for_update())
    return conversation_row(connection, command)


def row_query(command: About) -> sa.Select[Any]:
    return sa.select(conversations).where(*within(conversations, command))


def version_made_by(connection: sa.Connection, command: About, response_id: str) -> int | None:
    """The version that a turn made, if it was written before."""
    turns = conversation_turns
    query = sa.select(turns.c.version).where(
        *within(turns, command), turns.c.response_id == response_id
    )
    found: int | None = connection.scalar(query)
    return found


def item_query(command: About, item_id: str, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    items = conversation_items
    return sa.select(*columns).where(*within(items, command), items.c.item_id == item_id)


def set_on(connection: sa.Connection, command: About, **values: object) -> None:
    update = sa.update(conversations).where(*within(conversations, command))
    connection.execute(update.values(values))


def within(table: sa.Table, command: About) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        table.c.tenant == command.tenant,
        table.c.conversation_id == command.conversation_id,
    )


def place_of(command: About) -> dict[str, str]:
    return {"tenant": command.tenant, "conversation_id": command.conversation_id}


def shown(row: sa.Row[Any]) -> m.Conversation:
    return m.Conversation(row.conversation_id, row.created_at, _metadata.decode(row.metadata))


def full(most: StorageSettings, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"A conversation holds at most {most.max_conversation_items} items of "
        f"{most.max_conversation_bytes} bytes in all: delete items, or start another one.",
        param,
    )


def no_item(command: m.FetchItem | m.DeleteItem) -> NotFound:
    return NotFound(f"Conversation item with id '{command.item_id[:128]}' not found.", "item_id")
