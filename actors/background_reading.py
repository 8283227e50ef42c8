"""Background responses as they are read: their state, and the events behind a number. Blocking."""

from typing import Any

import sqlalchemy as sa

from turnwire.actors.background_schema import background_events, background_responses, events_after
from turnwire.actors.database import read
from turnwire.actors.stored_responses import unknown
from turnwire.pipelines import messages as m
from turnwire.pipelines.background import events_gone

PAGE_ROWS = 64
"""Rows of events in one message to a follower."""

_records, _events = background_responses.c, background_events.c


class BackgroundReading:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def fetch(self, command: m.Fetch) -> m.Stored | None:
        """The response as its record has it; None where there is none."""
        query = sa.select(_records.response, _records.input).where(*_of(_records, command))
        row = read(self._engine, lambda connection: connection.execute(query).one_or_none())
        return None if row is None else m.Stored(row.response, row.input)

    def runs(self, command: m.Load) -> bool:
        query = sa.select(_records.status).where(
            *_of(_records, command), _records.ended_at_ms.is_(None)
        )
        return read(self._engine, lambda connection: connection.execute(query).first()) is not None

    def page(self, command: m.FollowBackground) -> tuple[m.BackgroundEvents, bool]:
        """Some of the events behind `after`, and whether the response has no more than those.

        Raises NotFound, or EventsGone where the next one is not kept.
        """
        return read(self._engine, lambda connection: _page(connection, command))


def _page(
    connection: sa.Connection, command: m.FollowBackground
) -> tuple[m.BackgroundEvents, bool]:
    # The state first: where others write meanwhile, the events are then newer and never older.
    state = connection.execute(
        sa.select(_records.last_event, _records.ended_at_ms).where(*_of(_records, command))
    ).one_or_none()
    if state is None:
        raise unknown(command)
    rows = connection.execute(
        sa.select(background_events)
        .where(*_of(_events, command), _events.last > command.after)
        .order_by(_events.first)
        .limit(PAGE_ROWS)
    ).all()
    first = rows[0].first if rows else state.last_event + 1
    if first > command.after + 1:
        raise events_gone(first if rows else None)
    events = [event for row in rows for event in events_after(row, command.after)]
    last = rows[-1].last if rows else command.after
    is_over = state.ended_at_ms is not None and last >= state.last_event
    return m.BackgroundEvents(tuple(events), last), is_over


def _of(
    columns: Any,  # noqa: ANN401 -- a table's
    command: m.Fetch | m.Load | m.FollowBackground,
) -> tuple[sa.ColumnElement[bool], ...]:
    return columns.tenant == command.tenant, columns.response_id == command.response_id
