"""The records of background responses in the database. Blocking: called in storage's threads only.

Everything is scoped by tenant. Times are of the storage workers' clocks, which have to agree to
within a part of a lease.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from turnwire.actors.background_rows import (
    STATE,
    Key,
    extend,
    forget,
    key_of,
    locked,
    of,
)
from turnwire.actors.background_schema import (
    background_events,
    background_responses,
    event_rows,
)
from turnwire.actors.database import insert_missing
from turnwire.actors.fenced_writer import Transaction, Write
from turnwire.actors.stored_responses import unknown
from turnwire.pipelines import messages as m
from turnwire.pipelines.background import cancelled, lost, terminal_event
from turnwire.pipelines.config import StorageSettings
from turnwire.pipelines.protocol.errors import NotFound, RateLimitExceeded

_records = background_responses.c

MAX_SWEPT = 256
"""Responses that one sweep ends, and that it clears: the next one goes on."""
_STORED: Final = ("completed", "incomplete")
"""Statuses in which a response is stored, so that its record is needed no more."""

_OVERLAP_MS = 60_000
"""Ends are looked at again for so long: their workers' clocks and commits differ by less."""


@dataclass(frozen=True)
class SweepBackground:
    """A write of storage's own: end what lost its owner, clear what is old. Answered with `Swept`.

    `cleared_ms`: of what ended before, an earlier sweep has cleared the events.
    """

    cleared_ms: int = 0


@dataclass(frozen=True)
class Swept:
    ended: tuple[Key, ...]
    """The responses that lost their owner."""
    cleared_ms: int
    """For the next `SweepBackground`, once this one is committed."""


class BackgroundRecords:
    """Its `writes` are carried out by the writer in charge; those of responses are its own too."""

    def __init__(
        self,
        settings: StorageSettings,
        responses: Mapping[type, Write],
        now_s: Callable[[], float],
    ) -> None:
        """`responses`: how responses are saved, appended and deleted. `now_s`: since 1970."""
        self._settings = settings
        self._responses = responses
        self._now_s = now_s

    @property
    def writes(self) -> Mapping[type, Write]:
        return {
            m.BeginBackground: self._begin,
            m.RecordEvents: self._record,
            m.EndBackground: self._end,
            m.RenewBackground: self._renew,
            m.CancelBackground: self._cancel,
            m.Delete: self._delete,
            SweepBackground: self._sweep,
        }

    def _begin(self, transaction: Transaction, write: m.BeginBackground) -> m.Done:
        connection, key = transaction.connection, key_of(write)
        if locked(connection, key) is not None:
            return m.Done()
        running = sa.select(sa.func.count()).where(
            _records.tenant == write.tenant, _records.ended_at_ms.is_(None)
        )
        if connection.execute(running).scalar_one() >= write.max_running:
            raise RateLimitExceeded(
                f"{write.max_running} background responses run already; wait for one to end."
            )
        events = event_rows(*key, 0, list(write.events))
        record = {
            "tenant": write.tenant,
            "response_id": write.response_id,
            "created_at": write.created_at,
            "owner": write.owner,
            "lease_until_ms": self._lease_until_ms(write.lease_s),
            "status": "queued",
            "response": write.response,
            "input": write.input,
            "last_event": events[-1]["last"],
            "event_bytes": sum(row["bytes"] for row in events),
        }
        insert_missing(connection, background_responses, [record])
        insert_missing(connection, background_events, events)
        return m.Done()

    def _record(self, transaction: Transaction, write: m.RecordEvents) -> m.Recorded:
        row = locked(transaction.connection, key_of(write))
        if row is None or row.ended_at_ms is not None or row.owner != write.owner:
            return m.Recorded(accepted=False)
        changed: dict[str, Any] = {"status": write.status}
        if write.lease_s:
            changed["lease_until_ms"] = self._lease_until_ms(write.lease_s)
        if write.response is not None:
            changed["response"] = write.response
        self._extend(transaction.connection, row, write.first, write.events, changed)
        return m.Recorded(accepted=True)

    def _end(self, transaction: Transaction, write: m.EndBackground) -> m.Recorded:
        row = locked(transaction.connection, key_of(write))
        if row is None:
            return m.Recorded(accepted=False)
        if row.ended_at_ms is not None:
            response = sa.select(_records.response).where(*of(_records, key_of(write)))
            again = transaction.connection.scalar(response) == write.response
            return m.Recorded(accepted=again and row.status == write.status)
        if row.owner != write.owner:
            return m.Recorded(accepted=False)
        for kept in (write.save, write.append):
            if kept is not None:
                self._responses[type(kept)](transaction, kept)
        changed = self._ended(write.status, write.response)
        self._extend(transaction.connection, row, write.first, write.events, changed)
        return m.Recorded(accepted=True)

    def _renew(self, transaction: Transaction, write: m.RenewBackground) -> m.StillRunning:
        running = _records.response_id.in_(write.response_ids), _records.ended_at_ms.is_(None)
        ours = sa.and_(_records.owner == write.owner, *running)
        connection = transaction.connection
        # Waits for nobody: two that wait for more than one record could wait for each other. What
        # is locked is being ended, or written to by its owner, which renews it.
        free = sa.select(_records.tenant, _records.response_id).where(ours)
        found = connection.execute(free.with_for_update(skip_locked=True)).all()
        renewed = sa.update(background_responses).where(
            sa.tuple_(_records.tenant, _records.response_id).in_([tuple(key) for key in found])
        )
        until_ms = self._lease_until_ms(write.lease_s)
        connection.execute(renewed.values(lease_until_ms=until_ms))
        still = sa.select(_records.response_id).where(ours)
        return m.StillRunning(tuple(connection.execute(still).scalars()))

    def _cancel(self, transaction: Transaction, write: m.CancelBackground) -> m.Stored:
        content = _records.response, _records.input
        row = locked(transaction.connection, key_of(write), *content)
        if row is None:
            raise unknown(write)
        response = row.response
        if row.ended_at_ms is None:
            response = cancelled(response)
            self._close(transaction.connection, row, "cancelled", response)
        return m.Stored(response, row.input)

    def _delete(self, transaction: Transaction, write: m.Delete) -> m.Done:
        """Its owner, if it runs, learns of it with its next write."""
        key = key_of(write)
        delete = self._responses[m.Delete]
        if locked(transaction.connection, key) is None:
            delete(transaction, write)
            return m.Done()
        forget(transaction.connection, key, record=True)
        with suppress(NotFound):
            delete(transaction, write)
        return m.Done()

    def _sweep(self, transaction: Transaction, write: SweepBackground) -> Swept:
        connection, now_ms = transaction.connection, self._now_ms()
        unowned = (
            sa.select(*STATE)
            .add_columns(_records.response)
            .where(_records.ended_at_ms.is_(None), _records.lease_until_ms < now_ms)
            .limit(MAX_SWEPT)
            .with_for_update(skip_locked=True)
        )
        ended = []
        for row in connection.execute(unowned).all():
            self._close(connection, row, "failed", lost(row.response))
            ended.append((row.tenant, row.response_id))
        return Swept(tuple(ended), self._clear(connection, now_ms, write.cleared_ms))

    def _clear(self, connection: sa.Connection, now_ms: int, cleared_ms: int) -> int:
        """Events are kept for a while after the end; then a record only of what is not stored.

        Looks at what ended since `cleared_ms` and at what is to go, and not at all that is kept.
        """
        events_ms = now_ms - round(self._settings.background_events_s * 1000)
        unstored_ms = now_ms - round(self._settings.background_unstored_s * 1000)
        useless = sa.or_(_records.status.in_(_STORED), _records.ended_at_ms < unstored_ms)
        ids = sa.select(_records.tenant, _records.response_id)
        over = (
            ids.add_columns(useless.label("useless"))
            .where(_records.ended_at_ms >= cleared_ms, _records.ended_at_ms < events_ms)
            .where(sa.or_(useless, _records.event_bytes > 0))
            .limit(MAX_SWEPT)
        )
        found = connection.execute(over).all()
        for row in found:
            forget(connection, (row.tenant, row.response_id), record=row.useless)
        old = ids.where(_records.ended_at_ms < min(unstored_ms, cleared_ms)).limit(MAX_SWEPT)
        for row in connection.execute(old).all():
            forget(connection, (row.tenant, row.response_id), record=True)
        return cleared_ms if len(found) == MAX_SWEPT else max(cleared_ms, events_ms - _OVERLAP_MS)

    def _close(
        self, connection: sa.Connection, row: sa.Row[Any], status: m.BackgroundStatus, last: m.Json
    ) -> None:
        """End a running response for its owner."""
        number = row.last_event + 1
        events = (terminal_event(status, number, last),)
        self._extend(connection, row, number, events, self._ended(status, last))

    def _extend(
        self,
        connection: sa.Connection,
        row: sa.Row[Any],
        first: int,
        events: tuple[m.Json, ...],
        changed: dict[str, Any],
    ) -> None:
        most = self._settings.background_event_bytes
        extend(connection, row, first, events, changed, most)

    def _ended(self, status: m.BackgroundStatus, response: m.Json) -> dict[str, Any]:
        return {"status": status, "response": response, "ended_at_ms": self._now_ms()}

    def _lease_until_ms(self, lease_s: float) -> int:
        return self._now_ms() + round(lease_s * 1000)

    def _now_ms(self) -> int:
        return round(self._now_s() * 1000)
