"""Storage workers that write the same rows of one PostgreSQL at the same time."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa
from postgres import PostgresServer, connect, rows_of

from turnwire.actors.background_records import BackgroundRecords
from turnwire.actors.database import open_database
from turnwire.actors.fenced_writer import FencedWriter, Transaction
from turnwire.actors.storage import SCHEMAS
from turnwire.actors.stored_responses import StoredResponses
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import StorageSettings

WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
IDS = ("resp_1", "resp_2")
OWNER = "gateway_1"


class Meanwhile:
    """A write that lets something happen in the middle of its transaction."""


@dataclass
class Workers:
    """Two, over one database: each a writer of its own slot."""

    url: str
    engines: list[sa.Engine]
    meanwhile: list[Callable[[], None]] = field(default_factory=list)
    """Called once, by the transaction that comes to `Meanwhile`."""

    def __post_init__(self) -> None:
        self.writers = [self._writer(slot) for slot in range(len(self.engines))]

    def _writer(self, slot: int) -> FencedWriter:
        engine = self.engines[slot]
        records = BackgroundRecords(StorageSettings(), StoredResponses(engine).writes, lambda: 100)
        return FencedWriter(engine, slot, {**records.writes, Meanwhile: self._meanwhile})

    def _meanwhile(self, transaction: Transaction, write: Meanwhile) -> None:
        acts, self.meanwhile = self.meanwhile, []
        for act in acts:
            act()

    def lease_until_ms(self) -> set[int]:
        rows = rows_of(self.url, "select lease_until_ms from background_responses")
        return {until_ms for (until_ms,) in rows}


@pytest.fixture
def workers(postgres: PostgresServer) -> Iterator[Workers]:
    url = postgres.database()
    admin = connect(url)
    with admin.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        name = sa.make_url(url).database
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET deadlock_timeout = '10ms'")
    admin.dispose()
    engines = [open_database(url, "storage", SCHEMAS) for _ in range(2)]
    made = Workers(url, engines)
    made.writers[0].commit([begin(response_id) for response_id in IDS])
    yield made
    for engine in engines:
        engine.dispose()


def begin(response_id: str) -> m.BeginBackground:
    response = b'{"status":"queued"}'
    return m.BeginBackground("red", response_id, OWNER, 7, response, b"[]", (b"{}",), 10, 9)


def record(response_id: str) -> m.RecordEvents:
    return m.RecordEvents("red", response_id, OWNER, 1, (b"{}",), "in_progress", None, 30)


def commit_in_thread(
    writer: FencedWriter, writes: Sequence[object]
) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.extend(writer.commit(writes)))
    thread.start()
    return thread, results


def test_a_renewal_waits_for_no_record_that_is_written_to(workers: Workers) -> None:
    """It would hold one of them and wait for the other, as the writer does."""
    one, other = workers.writers
    renew = m.RenewBackground(OWNER, IDS, 20)
    renewed: list[object] = []
    workers.meanwhile = [lambda: renewed.extend(other.commit([renew]))]
    written = one.commit([record("resp_1"), Meanwhile(), record("resp_2")])
    assert renewed == [m.StillRunning(IDS)]
    assert written == [m.Recorded(accepted=True), None, m.Recorded(accepted=True)]
    assert workers.lease_until_ms() == {130_000}
    other.commit([renew])
    assert workers.lease_until_ms() == {120_000}


def test_transactions_that_wait_for_each_other_are_both_carried_out(workers: Workers) -> None:
    one, other = workers.writers
    crossing: list[tuple[threading.Thread, list[object]]] = []
    undone: list[None] = []
    for engine in workers.engines:
        sa.event.listen(engine, "rollback", lambda _: undone.append(None))

    def cross() -> None:
        cancels = [m.CancelBackground("red", response_id) for response_id in reversed(IDS)]
        crossing.append(commit_in_thread(other, cancels))
        while rows_of(workers.url, WAITING) == [(0,)]:
            pass

    workers.meanwhile = [cross]
    written = one.commit([record("resp_1"), Meanwhile(), record("resp_2")])
    ((thread, cancelled),) = crossing
    thread.join()
    accepted = written[0]
    assert isinstance(accepted, m.Recorded)
    assert cancelled == [m.Stored(b'{"status":"cancelled"}', b"[]")] * 2
    # All or none: the records were written to before both were cancelled, or not at all.
    assert written == [accepted, None, accepted]
    assert undone
