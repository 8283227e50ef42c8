"""The stored responses as one database connection sees them. Blocking: called in threads only.

Everything is scoped by tenant: another tenant's id looks exactly like an unknown one.
"""

from typing import Any

import sqlalchemy as sa

from turnwire.actors.database import insert_missing, open_database
from turnwire.actors.storage_schema import (
    VERSION,
    chain_query,
    metadata,
    response_row,
    responses,
    stored_turns,
)
from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import InvalidRequest, NotFound, PreviousResponseNotFound

MAX_CHAIN_TURNS = 10_000
MAX_CHAIN_BYTES = 128 * 1024 * 1024


class StoredResponses:
    """Opens the database on construction; raises Internal when that cannot be done."""

    def __init__(self, url: str) -> None:
        self._engine = open_database(url, metadata, "storage", VERSION)

    def close(self) -> None:
        self._engine.dispose()

    def commit(self, writes: list[m.Save | m.Delete]) -> list[bool]:
        """One transaction, in order. A result says whether the response was there to delete."""
        results = []
        with self._engine.begin() as connection:
            for write in writes:
                if isinstance(write, m.Save):
                    insert_missing(connection, responses, [response_row(write)])
                    results.append(True)
                else:
                    gone = connection.execute(sa.delete(responses).where(*_key(write)))
                    results.append(gone.rowcount > 0)
        return results

    def load(self, command: m.Load) -> m.Chain:
        """The whole chain, oldest first, or PreviousResponseNotFound when any link is missing."""
        newest_first: list[list[m.StoredTurn]] = []
        size = 0
        last: sa.Row[Any] | None = None
        query = chain_query(command.tenant, command.response_id, MAX_CHAIN_TURNS)
        with self._reading() as connection:
            for last in connection.execute(query):
                size += sum(map(len, (last.input, last.output, last.sampled, last.context or b"")))
                if size > MAX_CHAIN_BYTES:
                    raise InvalidRequest(
                        f"the conversation before {command.response_id!r} is too large to load; "
                        "send the input in full",
                        "previous_response_id",
                    )
                newest_first.append(stored_turns(last))
        if last is None or (last.context is None and last.parent_id is not None):
            raise PreviousResponseNotFound(
                f"Previous response with id {command.response_id!r} not found.",
                "previous_response_id",
            )
        return m.Chain(tuple(turn for turns in reversed(newest_first) for turn in turns))

    def fetch(self, command: m.Fetch) -> m.Stored:
        query = sa.select(responses.c.response, responses.c.input).where(*_key(command))
        with self._reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise unknown(command)
        return m.Stored(row.response, row.input)

    def _reading(self) -> sa.Connection:
        return self._engine.connect().execution_options(read_only=True)


def unknown(command: m.Fetch | m.Delete) -> NotFound:
    return NotFound(f"Response with id {command.response_id!r} not found.", "response_id")


def _key(command: m.Fetch | m.Delete) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        responses.c.tenant == command.tenant,
        responses.c.response_id == command.response_id,
    )
