"""Background responses as they are read: their state, and the events behind a number. Blocking."""

from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa

from turnwire.actors.background_schema import background_events, background_responses, events_after
from turnwire.actors.database import persistently
from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import EventsGone, NotFound

PAGE_ROWS = 64
"""Rows of events in one message to a follower."""

_records, _events = background_responses.c, background_events.c

Answer = TypeVar("Answer")


class BackgroundReading:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def fetch(self, command: m.Fetch) -> m.Stored | None:
        """The response as its record has it; None where there is none."""
        query = sa.select(_records.response, _records.input).where(*_of(_records, command))
        row = self._read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else m.Stored(row.response, row.input)

    def runs(self, command: m.Load) -> bool:
        query = sa.select(_records.status).where(
            *_of(_records, command), _records.ended_at_ms.is_(None)
        )
        return self._read(lambda connection: connection.execute(query).first()) is not None

    def page(self, command: m.FollowBackground) -> tuple[m.BackgroundEvents, bool]:
        """Some of the events behind `after`, and whether the response has no more than those.

        Raises NotFound, or EventsGone where the next one is not kept.
        """
        return self._read(lambda connection: _page(connection, command))

    def _read(self, query: Callable[[sa.Connection], Answer]) -> Answer:
        def attempt() -> Answer:
            with self._engine.connect().execution_options(read_only=True) as connection:
                return query(connection)

        return persistently(attempt)


def _page(
    connection: sa.Connection, command: m.FollowBackground
) -> tuple[m.BackgroundEvents, bool]:
    # The state first: where others write meanwhile, the events are then newer and never older.
    state = connection.execute(
        sa.select(_records.last_event, _records.ended_at_ms).where(*_of(_records, command))
    ).one_or_none()
    if state is None:
        raise NotFound(f"Response with id {command.response_id!r} not found.", "response_id")
    rows = connection.execute(
        sa.select(background_events)
        .where(*_of(_events, command), _events.last > command.after)
        .order_by(_events.first)
        .limit(PAGE_ROWS)
    ).all()
    first = rows[0].first if rows else state.last_event + 1
    if first > command.after + 1:
        raise _gone(first if rows else None)
    events = [event for row in rows for event in events_after(row, command.after)]
    last = rows[-1].last if rows else command.after
    is_over = state.ended_at_ms is not None and last >= state.last_event
    return m.BackgroundEvents(tuple(events), last), is_over


def _gone(first: int | None) -> EventsGone:
    if first is None:
        message = "The events of this response are not kept any more: leave 'starting_after' out."
    else:
        message = (
            "The first events of this response are not kept: stream with 'starting_after' "
            f"{first - 1} or more, or retrieve it without 'stream'."
        )
    return EventsGone(message, "starting_after")


def _of(
    columns: Any,  # noqa: ANN401 -- a table's
    command: m.Fetch | m.Load | m.FollowBackground,
) -> tuple[sa.ColumnElement[bool], ...]:
    return columns.tenant == command.tenant, columns.response_id == command.response_id
