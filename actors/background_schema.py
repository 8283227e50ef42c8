"""The tables of background responses: a row for each, and rows of their events."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from turnwire.actors.schema import Schema
from turnwire.pipelines.messages import Json

if TYPE_CHECKING:
    from alembic.operations import Operations

MAX_ROW_BYTES = 16 * 1024
"""Events share a row up to here; a bigger one has a row of its own."""

metadata = sa.MetaData()

background_responses = sa.Table(
    "background_responses",
    metadata,
    sa.Column("tenant", sa.String(256), primary_key=True),
    sa.Column("response_id", sa.String(256), primary_key=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("response", sa.LargeBinary, nullable=False),
    sa.Column("input", sa.LargeBinary, nullable=False),
    sa.Column("last_event", sa.BigInteger, nullable=False),
    sa.Column("event_bytes", sa.BigInteger, nullable=False),
    sa.Column("ended_at_ms", sa.BigInteger),
    sa.Index("background_responses_by_tenant", "tenant", "ended_at_ms"),
    sa.Index("background_responses_by_lease", "ended_at_ms", "lease_until_ms"),
)
"""`event_bytes`: of the events that are kept. `ended_at_ms`: null while it runs."""

background_events = sa.Table(
    "background_events",
    metadata,
    sa.Column("tenant", sa.String(256), primary_key=True),
    sa.Column("response_id", sa.String(256), primary_key=True),
    sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("events", sa.LargeBinary, nullable=False),
)
"""`events`: MessagePack of those numbered `first` to `last`, each as JSON bytes."""


def _create(op: "Operations") -> None:
    op.create_table(
        "background_responses",
        sa.Column("tenant", sa.String(256), primary_key=True),
        sa.Column("response_id", sa.String(256), primary_key=True),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("response", sa.LargeBinary, nullable=False),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("last_event", sa.BigInteger, nullable=False),
        sa.Column("event_bytes", sa.BigInteger, nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger),
        sa.Index("background_responses_by_tenant", "tenant", "ended_at_ms"),
        sa.Index("background_responses_by_lease", "ended_at_ms", "lease_until_ms"),
    )
    op.create_table(
        "background_events",
        sa.Column("tenant", sa.String(256), primary_key=True),
        sa.Column("response_id", sa.String(256), primary_key=True),
        sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("events", sa.LargeBinary, nullable=False),
    )


SCHEMA = Schema("background", metadata, (_create,))

_packed_events = msgspec.msgpack.Decoder(list[bytes])


def event_rows(
    tenant: str, response_id: str, first: int, events: list[Json]
) -> list[dict[str, Any]]:
    """`events` are numbered from `first`."""
    rows = []
    for group in _groups(events):
        packed = msgspec.msgpack.encode(group)
        last = first + len(group) - 1
        rows.append(
            {
                "tenant": tenant,
                "response_id": response_id,
                "first": first,
                "last": last,
                "bytes": len(packed),
                "events": packed,
            }
        )
        first = last + 1
    return rows


def _groups(events: list[Json]) -> Iterator[list[Json]]:
    group: list[Json] = []
    size = 0
    for event in events:
        if group and size + len(event) > MAX_ROW_BYTES:
            yield group
            group, size = [], 0
        group.append(event)
        size += len(event)
    if group:
        yield group


def events_after(row: sa.Row[Any], after: int) -> list[Json]:
    """The events of a row whose numbers are above `after`."""
    return _packed_events.decode(row.events)[max(0, after + 1 - row.first) :]
