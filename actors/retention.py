"""What is too old, or too much, is deleted again: the oldest first, a little at a time.

A sweep is one write among the others, small enough that none waits for it noticeably.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from turnwire.actors.database import read
from turnwire.actors.fenced_writer import Transaction, Write
from turnwire.actors.storage_schema import storage_slots
from turnwire.pipelines.config import StorageSettings

SWEEP_ROWS = 64
SWEEP_BYTES = 4 * 1024 * 1024
"""A sweep ends with the row that passes this."""
VACUUM_PAGES = 256
"""Pages that a sweep gives back to the file system, and that may stay free for what comes next."""
DAY_S = 86_400
ADVISORY_LOCK = 0x7475726F
"""On PostgreSQL one worker sweeps at a time, or each would delete for all."""


@dataclass(frozen=True)
class Sweep:
    """One small step; its result says whether it changed anything. `now_s`: seconds since 1970."""

    now_s: float


class Retention:
    """`tables` are what it deletes from; each has `created_at` (seconds, indexed) and `bytes`."""

    def __init__(
        self, engine: sa.Engine, tables: Sequence[sa.Table], settings: StorageSettings
    ) -> None:
        self._engine = engine
        self._tables = tables
        self._max_age_s = settings.max_age_days * DAY_S
        self._max_bytes = settings.max_bytes

    @property
    def writes(self) -> Mapping[type, Write]:
        return {Sweep: self._sweep}

    def due(self, now_s: float) -> bool:
        """Is there anything to do? Reads only."""

        def is_due(connection: sa.Connection) -> bool:
            return (
                self._excess(connection) > 0
                or any(self._oldest(connection, now_s, 1))
                or _spare_pages(connection) > 0
            )

        return read(self._engine, is_due)

    def _sweep(self, transaction: Transaction, command: Sweep) -> bool:
        connection = transaction.connection
        if connection.dialect.name == "postgresql":
            lock = sa.select(sa.func.pg_try_advisory_xact_lock(ADVISORY_LOCK))
            if not connection.scalar(lock):
                return False
        expired = self._oldest(connection, command.now_s, SWEEP_ROWS)
        excess = self._excess(connection) - self._delete(transaction, expired)
        surplus: Sequence[_Row] = ()
        if excess > 0:
            surplus = _until(self._oldest(connection, None, SWEEP_ROWS), excess)
            self._delete(transaction, surplus)
        return _vacuum(connection) or bool(expired or surplus)

    def _excess(self, connection: sa.Connection) -> int:
        if not self._max_bytes:
            return 0
        total = sa.cast(sa.func.coalesce(sa.func.sum(storage_slots.c.bytes), 0), sa.BigInteger)
        return int(connection.scalar(sa.select(total)) or 0) - self._max_bytes

    def _oldest(self, connection: sa.Connection, now_s: float | None, most: int) -> list["_Row"]:
        """With `now_s` only what has expired."""
        if now_s is not None and not self._max_age_s:
            return []
        found: list[_Row] = []
        for table in self._tables:
            key = tuple(table.primary_key.columns)
            query = sa.select(table.c.created_at, table.c.bytes, *key)
            if now_s is not None:
                query = query.where(table.c.created_at < int(now_s - self._max_age_s))
            rows = connection.execute(query.order_by(table.c.created_at).limit(most))
            found += [_Row(table, row[0], row[1], tuple(row[2:])) for row in rows]
        found.sort(key=lambda row: row.created_at)
        return _until(found[:most], SWEEP_BYTES)

    def _delete(self, transaction: Transaction, rows: Sequence["_Row"]) -> int:
        """The bytes that this frees: others may have deleted some of the rows meanwhile."""
        freed = 0
        for table in {row.table for row in rows}:
            key = sa.tuple_(*table.primary_key.columns)
            keys = [row.key for row in rows if row.table is table]
            gone = sa.delete(table).where(key.in_(keys)).returning(table.c.bytes)
            freed += sum(transaction.connection.scalars(gone))
        transaction.bytes_added -= freed
        return freed


@dataclass(frozen=True)
class _Row:
    table: sa.Table
    created_at: int
    size: int
    key: tuple[Any, ...]


def _until(rows: Sequence[_Row], size: int) -> list[_Row]:
    """The first rows that come to `size` bytes."""
    taken: list[_Row] = []
    for row in rows:
        if size <= 0:
            break
        taken.append(row)
        size -= row.size
    return taken


def _spare_pages(connection: sa.Connection) -> int:
    """Free pages of an SQLite file beyond those that may stay."""
    if connection.dialect.name != "sqlite":
        return 0
    if connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one() == 0:
        return 0
    free: int = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
    pages: int = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    return free - max(VACUUM_PAGES, pages // 20)


def _vacuum(connection: sa.Connection) -> bool:
    if (spare := _spare_pages(connection)) <= 0:
        return False
    # The driver takes one step of a statement without columns, and each step moves one page.
    for _ in range(min(spare, VACUUM_PAGES)):
        connection.exec_driver_sql("PRAGMA incremental_vacuum(1)")
    return True
