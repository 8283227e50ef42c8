"""The rows of one background response, as writes lock, extend and delete them. Blocking."""

from typing import Any, Final

import sqlalchemy as sa

from turnwire.actors.background_schema import background_events, background_responses, event_rows
from turnwire.actors.database import insert_missing
from turnwire.pipelines import messages as m

TRIM_ROWS = 64
"""Rows of events that are looked at together when the oldest are to go."""

_records, _events = background_responses.c, background_events.c

STATE: Final = (
    _records.tenant,
    _records.response_id,
    _records.owner,
    _records.status,
    _records.last_event,
    _records.event_bytes,
    _records.ended_at_ms,
)
"""What a write looks at. Input and response may be large, and events are written often."""

Key = tuple[str, str]
"""Tenant and response id."""


def key_of(
    write: m.BeginBackground | m.RecordEvents | m.EndBackground | m.CancelBackground | m.Delete,
) -> Key:
    return write.tenant, write.response_id


def of(columns: Any, key: Key) -> tuple[sa.ColumnElement[bool], ...]:  # noqa: ANN401 -- a table's
    return columns.tenant == key[0], columns.response_id == key[1]


def locked(connection: sa.Connection, key: Key, *more: sa.ColumnElement[Any]) -> sa.Row[Any] | None:
    """Its state, locked, and `more` of it."""
    query = sa.select(*STATE, *more).where(*of(_records, key)).with_for_update()
    return connection.execute(query).one_or_none()


def extend(
    connection: sa.Connection,
    row: sa.Row[Any],
    first: int,
    events: tuple[m.Json, ...],
    changed: dict[str, Any],
    max_bytes: int,
) -> None:
    """Add the events that are new, numbered from `first`; drop the oldest beyond `max_bytes`.

    `row`: its state. `changed`: what becomes of it besides.
    """
    key = (row.tenant, row.response_id)
    new = list(events[max(0, row.last_event + 1 - first) :])
    if new:
        added = event_rows(*key, row.last_event + 1, new)
        insert_missing(connection, background_events, added)
        kept = row.event_bytes + sum(row["bytes"] for row in added)
        kept -= _trimmed(connection, key, kept - max_bytes, added[-1]["first"])
        changed |= {"last_event": added[-1]["last"], "event_bytes": kept}
    update = sa.update(background_responses).where(*of(_records, key))
    connection.execute(update.values(**changed))


def forget(connection: sa.Connection, key: Key, *, record: bool) -> None:
    """The events, and the `record` too, or it without them."""
    connection.execute(sa.delete(background_events).where(*of(_events, key)))
    ours = of(_records, key)
    if record:
        connection.execute(sa.delete(background_responses).where(*ours))
    else:
        connection.execute(sa.update(background_responses).where(*ours).values(event_bytes=0))


def _trimmed(connection: sa.Connection, key: Key, excess_bytes: int, newest: int) -> int:
    """Drop the oldest rows of events, but never the newest; how many bytes that were."""
    dropped, up_to = 0, -1
    while dropped < excess_bytes:
        within = _events.first > up_to, _events.first < newest
        rows = sa.select(_events.first, _events.bytes).where(*of(_events, key), *within)
        found = connection.execute(rows.order_by(_events.first).limit(TRIM_ROWS)).all()
        if not found:
            break
        for row in found:
            if dropped < excess_bytes:
                dropped, up_to = dropped + row.bytes, row.first
    if dropped:
        old = sa.delete(background_events).where(*of(_events, key), _events.first <= up_to)
        connection.execute(old)
    return dropped
