"""The ledger's table and its one write. Blocking: called in the writer's thread only."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from turnwire.actors.database import insert_missing, open_database, persistently
from turnwire.actors.schema import Schema
from turnwire.pipelines import messages as m

if TYPE_CHECKING:
    from alembic.operations import Operations

metadata = sa.MetaData()

usage_records = sa.Table(
    "usage_records",
    metadata,
    sa.Column("response_id", sa.String(256), primary_key=True),
    sa.Column("tenant", sa.String(256), nullable=False),
    sa.Column("key_id", sa.String(256), nullable=False),
    sa.Column("model", sa.String(256), nullable=False),
    sa.Column("status", sa.String(32), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("input_tokens", sa.BigInteger, nullable=False),
    sa.Column("cached_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("reasoning_tokens", sa.BigInteger, nullable=False),
    sa.Column("flagged", sa.Text, nullable=False),
    sa.Index("usage_records_by_tenant", "tenant", "created_at"),
)
"""`response_id` is unique: a record sent twice is one row. `flagged`: categories, by commas."""


def _create(op: "Operations") -> None:
    op.create_table(
        "usage_records",
        sa.Column("response_id", sa.String(256), primary_key=True),
        sa.Column("tenant", sa.String(256), nullable=False),
        sa.Column("key_id", sa.String(256), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger, nullable=False),
        sa.Column("flagged", sa.Text, nullable=False),
        sa.Index("usage_records_by_tenant", "tenant", "created_at"),
    )


SCHEMA = Schema("billing", metadata, (_create,))


class UsageLedger:
    """Opens the database on construction; raises Internal when that cannot be done."""

    def __init__(self, url: str) -> None:
        self._engine = open_database(url, "billing", [SCHEMA])

    def close(self) -> None:
        self._engine.dispose()

    def commit(self, settles: list[m.Settle]) -> list[None]:
        """All records in one transaction; one that is already there is left as it is.

        Raises Overloaded while the database is away.
        """
        rows = [_row(record) for record in _records(settles)]
        persistently(lambda: self._insert(rows))
        return [None] * len(settles)

    def _insert(self, rows: list[dict[str, Any]]) -> None:
        with self._engine.begin() as connection:
            insert_missing(connection, usage_records, rows)


def _records(settles: list[m.Settle]) -> Iterable[m.UsageRecord]:
    for settle in settles:
        yield from settle.records


def _row(record: m.UsageRecord) -> dict[str, Any]:
    counts = record.counts
    return {
        "response_id": record.response_id,
        "tenant": record.tenant,
        "key_id": record.key_id,
        "model": record.model,
        "status": record.status,
        "created_at": record.created_at,
        "input_tokens": counts.input_tokens,
        "cached_tokens": counts.cached_tokens,
        "output_tokens": counts.output_tokens,
        "reasoning_tokens": counts.reasoning_tokens,
        "flagged": ",".join(record.flagged),
    }
