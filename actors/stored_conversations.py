"""The stored conversations, over a connection that is handed in. Blocking: in threads only.

Everything is scoped by tenant: another tenant's id looks exactly like an unknown one. A change
locks its conversation's row first, and refuses before it writes anything, so a refusal leaves the
transaction, which may hold other writes, as it was.
"""

from collections.abc import Mapping
from typing import Any, assert_never, get_args

import msgspec
import sqlalchemy as sa

from turnwire.actors.conversation_schema import (
    conversation_items,
    conversation_turns,
    conversations,
    item_rows,
    turn_row,
    turns_of,
)
from turnwire.actors.database import read
from turnwire.actors.fenced_writer import Transaction, Write
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import StorageSettings
from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.errors import ConversationLocked, InvalidRequest, NotFound
from turnwire.pipelines.protocol.item_list import item_id, items_of

ConversationRead = m.FetchConversation | m.LoadConversation | m.ListItems | m.FetchItem
ConversationWrite = (
    m.CreateConversation
    | m.UpdateConversation
    | m.DeleteConversation
    | m.AddItems
    | m.DeleteItem
    | m.AppendTurn
)
Change = m.Conversation | m.Appended | m.Done

_About = ConversationWrite | ConversationRead
_metadata = msgspec.json.Decoder(dict[str, str])


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
                return _shown(_found(connection, command))
            case m.LoadConversation():
                return self._load(connection, command)
            case m.ListItems():
                return _page(connection, command)
            case m.FetchItem():
                _found(connection, command)
                item = connection.scalar(_item(command, command.item_id, conversation_items.c.item))
                if item is None:
                    raise _no_item(command)
                return m.ItemPage((item,))
            case _:
                assert_never(command)

    def change(self, connection: sa.Connection, write: ConversationWrite) -> Change:
        """Raises NotFound, ConversationLocked or InvalidRequest, and then has changed nothing."""
        match write:
            case m.CreateConversation():
                return self._create(connection, write)
            case m.UpdateConversation():
                row = _locked(connection, write)
                encoded = msgspec.json.encode(write.metadata)
                _set(connection, write, metadata=encoded)
                return m.Conversation(row.conversation_id, row.created_at, write.metadata)
            case m.DeleteConversation():
                _locked(connection, write)
                for table in (conversation_items, conversation_turns, conversations):
                    connection.execute(sa.delete(table).where(*_in(table, write)))
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
        row = _found(connection, command)
        most = self._settings
        if (
            row.items >= most.max_conversation_items
            or row.item_bytes >= most.max_conversation_bytes
        ):
            raise _full(most, "conversation")
        known = command.known
        since = known if row.rewritten <= known <= row.version else 0
        turns = _turns(connection, command, since, row.version)
        return m.ConversationTail(command.conversation_id, row.version, since, turns)

    def _create(self, connection: sa.Connection, write: m.CreateConversation) -> m.Conversation:
        known = connection.execute(_row(write)).one_or_none()
        if known is not None:
            return _shown(known)
        count = sa.select(sa.func.count()).select_from(conversations)
        held = connection.scalar(count.where(conversations.c.tenant == write.tenant)) or 0
        if held >= self._settings.max_conversations:
            raise InvalidRequest(
                f"There are {held} conversations, and no more are kept: delete some first."
            )
        self._check_room(0, 0, write.items)
        row = _place(write) | {
            "created_at": write.created_at,
            "metadata": msgspec.json.encode(write.metadata),
            **dict.fromkeys(("version", "rewritten", "added", "items", "item_bytes"), 0),
        }
        connection.execute(sa.insert(conversations).values(row))
        if write.items:
            made = connection.execute(_row(write)).one()
            turn = m.StoredTurn(write.conversation_id, b"", b"")
            _write_turn(connection, write, made, turn, write.items, ())
        return m.Conversation(write.conversation_id, write.created_at, write.metadata)

    def _add(self, connection: sa.Connection, write: m.AddItems) -> m.Done:
        row = _locked(connection, write)
        if _made(connection, write, write.addition_id) is not None:
            return m.Done()
        self._check_room(row.items, row.item_bytes, write.items)
        ids = [item_id(item) for item in write.items]
        items = conversation_items
        query = sa.select(items.c.item_id).where(*_in(items, write), items.c.item_id.in_(ids))
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
            raise _full(most, "items")


def turns_before(
    connection: sa.Connection, tenant: str, conversation_id: str, response_id: str
) -> tuple[m.StoredTurn, ...] | None:
    """What came before that response's turn; None where turn or conversation is gone."""
    place = m.FetchConversation(tenant, conversation_id)
    version = _made(connection, place, response_id)
    return None if version is None else _turns(connection, place, 0, version - 1)


def _page(connection: sa.Connection, command: m.ListItems) -> m.ItemPage:
    _found(connection, command)
    items = conversation_items
    query = sa.select(items.c.item).where(*_in(items, command)).limit(command.limit + 1)
    at = items.c.position
    query = query.order_by(at.desc() if command.descending else at)
    if command.after is not None:
        last = connection.scalar(_item(command, command.after, at))
        if last is None:
            message = "Invalid 'after': no item of this conversation has that id."
            raise InvalidRequest(message, "after")
        query = query.where(at < last if command.descending else at > last)
    found = tuple(connection.scalars(query))
    return m.ItemPage(found[: command.limit], len(found) > command.limit)


def _append(connection: sa.Connection, write: m.AppendTurn) -> m.Appended:
    row = _locked(connection, write)
    made = _made(connection, write, write.turn.response_id)
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
    place = _place(write)
    version: int = row.version + 1
    rows = item_rows(place, version, row.added, given, output)
    connection.execute(sa.insert(conversation_turns).values(turn_row(place, version, turn)))
    if rows:
        connection.execute(sa.insert(conversation_items), rows)
    _set(
        connection,
        write,
        version=version,
        added=row.added + len(rows),
        items=row.items + len(rows),
        item_bytes=row.item_bytes + sum(len(made["item"]) for made in rows),
    )
    return version


def _delete_item(connection: sa.Connection, write: m.DeleteItem) -> m.Conversation:
    row = _locked(connection, write)
    items, turns = conversation_items, conversation_turns
    found = connection.execute(
        _item(write, write.item_id, items.c.position, items.c.version, items.c.output, items.c.item)
    ).one_or_none()
    if found is None:
        raise _no_item(write)
    connection.execute(
        sa.delete(items).where(*_in(items, write), items.c.position == found.position)
    )
    if found.output:
        # What was sampled stands for all of the answer.
        turn = sa.update(turns).where(*_in(turns, write), turns.c.version == found.version)
        connection.execute(turn.values(sampled=b""))
    _set(
        connection,
        write,
        version=row.version + 1,
        rewritten=row.version + 1,
        items=row.items - 1,
        item_bytes=row.item_bytes - len(found.item),
    )
    return _shown(row)


def _turns(
    connection: sa.Connection, command: _About, since: int, until: int
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
        .where(*_in(items, command), items.c.version > since, items.c.version <= until)
        .order_by(items.c.position)
    )
    return turns_of(connection.execute(query))


def _found(connection: sa.Connection, command: _About) -> sa.Row[Any]:
    row = connection.execute(_row(command)).one_or_none()
    if row is None:
        message = f"Conversation with id '{command.conversation_id}' not found."
        raise NotFound(message, "conversation")
    return row


def _locked(connection: sa.Connection, command: _About) -> sa.Row[Any]:
    """Nobody else changes the conversation before this transaction ends."""
    # On SQLite the whole database is locked already.
    query = sa.select(conversations.c.tenant).where(*_in(conversations, command))
    connection.execute(query.with_for_update())
    return _found(connection, command)


def _row(command: _About) -> sa.Select[Any]:
    return sa.select(conversations).where(*_in(conversations, command))


def _made(connection: sa.Connection, command: _About, response_id: str) -> int | None:
    """The version that a turn made, if it was written before."""
    turns = conversation_turns
    query = sa.select(turns.c.version).where(
        *_in(turns, command), turns.c.response_id == response_id
    )
    found: int | None = connection.scalar(query)
    return found


def _item(command: _About, item_id: str, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    items = conversation_items
    return sa.select(*columns).where(*_in(items, command), items.c.item_id == item_id)


def _set(connection: sa.Connection, command: _About, **values: object) -> None:
    update = sa.update(conversations).where(*_in(conversations, command))
    connection.execute(update.values(values))


def _in(table: sa.Table, command: _About) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        table.c.tenant == command.tenant,
        table.c.conversation_id == command.conversation_id,
    )


def _place(command: _About) -> dict[str, str]:
    return {"tenant": command.tenant, "conversation_id": command.conversation_id}


def _shown(row: sa.Row[Any]) -> m.Conversation:
    return m.Conversation(row.conversation_id, row.created_at, _metadata.decode(row.metadata))


def _full(most: StorageSettings, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"A conversation holds at most {most.max_conversation_items} items of "
        f"{most.max_conversation_bytes} bytes in all: delete items, or start another one.",
        param,
    )


def _no_item(command: m.FetchItem | m.DeleteItem) -> NotFound:
    return NotFound(f"Conversation item with id '{command.item_id[:128]}' not found.", "item_id")
