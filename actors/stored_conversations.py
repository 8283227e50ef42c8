"""The stored conversations, over a connection that is handed in. Blocking: in threads only.

Everything is scoped by tenant: another tenant's id looks exactly like an unknown one. A change
locks its conversation's row first, and refuses before it writes anything, so a refusal leaves the
transaction, which may hold other writes, as it was.
"""

from collections.abc import Mapping
from typing import Any, assert_never, get_args

import msgspec
import sqlalchemy as sa

from turnwire.actors.conversation_rows import (
    ConversationRead,
    ConversationWrite,
    conversation_row,
    full,
    item_query,
    locked_row,
    no_item,
    place_of,
    row_query,
    set_on,
    shown,
    turns_between,
    version_made_by,
    within,
)
from turnwire.actors.conversation_schema import (
    conversation_items,
    conversation_turns,
    conversations,
    item_rows,
    turn_row,
)
from turnwire.actors.database import read
from turnwire.actors.fenced_writer import Transaction, Write
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import StorageSettings
from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.errors import ConversationLocked, InvalidRequest
from turnwire.pipelines.protocol.item_list import item_id, items_of

Change = m.Conversation | m.Appended | m.Done


class StoredConversations:
    """Reads from the engine; its `writes` are carried out by the writer in charge.

    `save` stores the response of a turn that is appended. What conversations hold is not counted
    among the bytes of stored responses: these come and go with their age, conversations do not.
    """

    def __init__(self, engine: sa.Engine, settings: StorageSettings, save: Write) -> None:
        self._engine = engine
        self._settings = settings
        self._save = save

    @property
    def writes(self) -> Mapping[type, Write]:
        return dict.fromkeys(get_args(ConversationWrite), self._write)

    def _write(self, transaction: Transaction, command: ConversationWrite) -> Change:
        answer = self.change(transaction.connection, command)
        if isinstance(command, m.AppendTurn) and command.save is not None:
            self._save(transaction, command.save)
        return answer

    def read(self, command: ConversationRead) -> m.Message:
        """Raises as the command says."""
        return read(self._engine, lambda connection: self._answer(connection, command))

    def _answer(self, connection: sa.Connection, command: ConversationRead) -> m.Message:
        match command:
            case m.FetchConversation():
                return shown(conversation_row(connection, command))
            case m.LoadConversation():
                return self._load(connection, command)
            case m.ListItems():
                return _page(connection, command)
            case m.FetchItem():
                conversation_row(connection, command)
                item = connection.scalar(
                    item_query(command, command.item_id, conversation_items.c.item)
                )
                if item is None:
                    raise no_item(command)
                return m.ItemPage((item,))
            case _:
                assert_never(command)

    def change(self, connection: sa.Connection, write: ConversationWrite) -> Change:
        """Raises NotFound, ConversationLocked or InvalidRequest, and then has changed nothing."""
        match write:
            case m.CreateConversation():
                return self._create(connection, write)
            case m.UpdateConversation():
                row = locked_row(connection, write)
                encoded = msgspec.json.encode(write.metadata)
                set_on(connection, write, metadata=encoded)
                return m.Conversation(row.conversation_id, row.created_at, write.metadata)
            case m.DeleteConversation():
                locked_row(connection, write)
                for table in (conversation_items, conversation_turns, conversations):
                    connection.execute(sa.delete(table).where(*within(table, write)))
                return m.Done()
            case m.AddItems():
                return self._add(connection, write)
            case m.DeleteItem():
                return _delete_item(connection, write)
            case m.AppendTurn():
                return _append(connection, write)
            case _:
                assert_never(write)

    def _load(self, connection: sa.Connection, command: m.LoadConversation) -> m.ConversationTail:
        row = conversation_row(connection, command)
        most = self._settings
        if (
            row.items >= most.max_conversation_items
            or row.item_bytes >= most.max_conversation_bytes
        ):
            raise full(most, "conversation")
        known = command.known
        since = known if row.rewritten <= known <= row.version else 0
        turns = turns_between(connection, command, since, row.version)
        return m.ConversationTail(command.conversation_id, row.version, since, turns)

    def _create(self, connection: sa.Connection, write: m.CreateConversation) -> m.Conversation:
        known = connection.execute(row_query(write)).one_or_none()
        if known is not None:
            return shown(known)
        count = sa.select(sa.func.count()).select_from(conversations)
        held = connection.scalar(count.where(conversations.c.tenant == write.tenant)) or 0
        if held >= self._settings.max_conversations:
            raise InvalidRequest(
                f"There are {held} conversations, and no more are kept: delete some first."
            )
        self._check_room(0, 0, write.items)
        row = place_of(write) | {
            "created_at": write.created_at,
            "metadata": msgspec.json.encode(write.metadata),
            **dict.fromkeys(("version", "rewritten", "added", "items", "item_bytes"), 0),
        }
        connection.execute(sa.insert(conversations).values(row))
        if write.items:
            made = connection.execute(row_query(write)).one()
            turn = m.StoredTurn(write.conversation_id, b"", b"")
            _write_turn(connection, write, made, turn, write.items, ())
        return m.Conversation(write.conversation_id, write.created_at, write.metadata)

    def _add(self, connection: sa.Connection, write: m.AddItems) -> m.Done:
        row = locked_row(connection, write)
        if version_made_by(connection, write, write.addition_id) is not None:
            return m.Done()
        self._check_room(row.items, row.item_bytes, write.items)
        ids = [item_id(item) for item in write.items]
        items = conversation_items
        query = sa.select(items.c.item_id).where(*within(items, write), items.c.item_id.in_(ids))
        known = connection.scalars(query.limit(1)).one_or_none()
        if known is not None:
            raise InvalidRequest(
                f"Invalid 'items[{ids.index(known)}].id': the conversation has an item with that "
                "id already.",
                "items",
            )
        turn = m.StoredTurn(write.addition_id, b"", b"")
        _write_turn(connection, write, row, turn, write.items, ())
        return m.Done()

    def _check_room(self, held: int, held_bytes: int, items: tuple[Json, ...]) -> None:
        most = self._settings
        size = held_bytes + sum(map(len, items))
        if held + len(items) > most.max_conversation_items or size > most.max_conversation_bytes:
            raise full(most, "items")


def _page(connection: sa.Connection, command: m.ListItems) -> m.ItemPage:
    conversation_row(connection, command)
    items = conversation_items
    query = sa.select(items.c.item).where(*within(items, command)).limit(command.limit + 1)
    at = items.c.position
    query = query.order_by(at.desc() if command.descending else at)
    if command.after is not None:
        last = connection.scalar(item_query(command, command.after, at))
        if last is None:
            message = "Invalid 'after': no item of this conversation has that id."
            raise InvalidRequest(message, "after")
        query = query.where(at < last if command.descending else at > last)
    found = tuple(connection.scalars(query))
    return m.ItemPage(found[: command.limit], len(found) > command.limit)


def _append(connection: sa.Connection, write: m.AppendTurn) -> m.Appended:
    row = locked_row(connection, write)
    made = version_made_by(connection, write, write.turn.response_id)
    if made is not None:
        return m.Appended(made)
    if row.version != write.version:
        raise ConversationLocked(
            "The conversation was changed while this response was made, so the response was not "
            "added to it. Please retry.",
            "conversation",
        )
    given, output = items_of(write.turn.input), items_of(write.turn.output)
    return m.Appended(_write_turn(connection, write, row, write.turn, given, output))


def _write_turn(
    connection: sa.Connection,
    write: m.CreateConversation | m.AddItems | m.AppendTurn,
    row: sa.Row[Any],
    turn: m.StoredTurn,
    given: tuple[Json, ...],
    output: tuple[Json, ...],
) -> int:
    """The version that it makes."""
    place = place_of(write)
    version: int = row.version + 1
    rows = item_rows(place, version, row.added, given, output)
    connection.execute(sa.insert(conversation_turns).values(turn_row(place, version, turn)))
    if rows:
        connection.execute(sa.insert(conversation_items), rows)
    set_on(
        connection,
        write,
        version=version,
        added=row.added + len(rows),
        items=row.items + len(rows),
        item_bytes=row.item_bytes + sum(len(made["item"]) for made in rows),
    )
    return version


def _delete_item(connection: sa.Connection, write: m.DeleteItem) -> m.Conversation:
    row = locked_row(connection, write)
    items, turns = conversation_items, conversation_turns
    found = connection.execute(
        item_query(
            write, write.item_id, items.c.position, items.c.version, items.c.output, items.c.item
        )
    ).one_or_none()
    if found is None:
        raise no_item(write)
    connection.execute(
        sa.delete(items).where(*within(items, write), items.c.position == found.position)
    )
    if found.output:
        # What was sampled stands for all of the answer.
        turn = sa.update(turns).where(*within(turns, write), turns.c.version == found.version)
        connection.execute(turn.values(sampled=b""))
    set_on(
        connection,
        write,
        version=row.version + 1,
        rewritten=row.version + 1,
        items=row.items - 1,
        item_bytes=row.item_bytes - len(found.item),
    )
    return shown(row)
