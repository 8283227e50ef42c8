"""The stored responses as one database connection sees them. Blocking: called in threads only.

Everything is scoped by tenant: another tenant's id looks exactly like an unknown one.
"""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from turnwire.actors.conversation_rows import turns_before
from turnwire.actors.database import missing, read
from turnwire.actors.fenced_writer import Transaction, Write
from turnwire.actors.storage_schema import (
    chain_query,
    conversation_before,
    response_row,
    responses,
    stored_turns,
)
from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import InvalidRequest, NotFound, PreviousResponseNotFound

MAX_CHAIN_TURNS = 10_000
MAX_CHAIN_BYTES = 128 * 1024 * 1024


class StoredResponses:
    """Reads from the engine; its `writes` are carried out by the writer in charge."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    @property
    def writes(self) -> Mapping[type, Write]:
        return {m.Save: self._save, m.Delete: self._delete}

    def _save(self, transaction: Transaction, command: m.Save) -> m.Done:
        row = response_row(command)
        insert = missing(transaction.connection, responses)
        if transaction.connection.execute(insert, row).rowcount:
            transaction.bytes_added += row["bytes"]
        return m.Done()

    def _delete(self, transaction: Transaction, command: m.Delete) -> m.Done:
        gone = sa.delete(responses).where(*_key(command)).returning(responses.c.bytes)
        size = transaction.connection.execute(gone).scalar_one_or_none()
        if size is None:
            raise unknown(command)
        transaction.bytes_added -= size
        return m.Done()

    def load(self, command: m.Load) -> m.Chain:
        """The whole chain, oldest first, or PreviousResponseNotFound when any link is missing."""
        return read(self._engine, lambda connection: _chain(connection, command))

    def fetch(self, command: m.Fetch) -> m.Stored:
        query = sa.select(responses.c.response, responses.c.input).where(*_key(command))
        row = read(self._engine, lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise unknown(command)
        return m.Stored(row.response, row.input)


def _chain(connection: sa.Connection, command: m.Load) -> m.Chain:
    newest_first: list[list[m.StoredTurn]] = []
    size = 0
    last: sa.Row[Any] | None = None
    for last in connection.execute(
        chain_query(command.tenant, command.response_id, MAX_CHAIN_TURNS)
    ):
        size += last.bytes
        if size > MAX_CHAIN_BYTES:
            raise InvalidRequest(
                f"the conversation before {command.response_id!r} is too large to load; "
                "send the input in full",
                "previous_response_id",
            )
        newest_first.append(stored_turns(last))
    if last is None:
        raise PreviousResponseNotFound(
            f"Previous response with id {command.response_id!r} not found.",
            "previous_response_id",
        )
    if last.context is None and last.parent_id is not None:
        raise PreviousResponseNotFound(
            f"Previous response with id {command.response_id!r} cannot be continued: the response "
            f"{last.parent_id!r} before it was deleted or has expired. Send the input in full.",
            "previous_response_id",
        )
    conversation_id = conversation_before(last)
    if conversation_id is not None:
        turns = turns_before(connection, command.tenant, conversation_id, last.response_id)
        if turns is None:
            raise PreviousResponseNotFound(
                f"Previous response with id {command.response_id!r} cannot be continued: the "
                f"conversation {conversation_id!r} before it was deleted. Send the input in full.",
                "previous_response_id",
            )
        newest_first.append([*turns])
    return m.Chain(tuple(turn for turns in reversed(newest_first) for turn in turns))


def unknown(command: m.Fetch | m.Delete | m.CancelBackground | m.FollowBackground) -> NotFound:
    return NotFound(f"Response with id {command.response_id!r} not found.", "response_id")


def _key(command: m.Fetch | m.Delete) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        responses.c.tenant == command.tenant,
        responses.c.response_id == command.response_id,
    )
