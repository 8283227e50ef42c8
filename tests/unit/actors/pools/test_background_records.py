"""What the writes of background responses read: what they need, and no more."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from turnwire.actors.background_records import MAX_SWEPT, BackgroundRecords, SweepBackground, Swept
from turnwire.actors.database import open_database
from turnwire.actors.fenced_writer import FencedWriter
from turnwire.actors.storage import SCHEMAS
from turnwire.actors.stored_responses import StoredResponses
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import StorageSettings

SETTINGS = StorageSettings(
    background_events_s=600, background_unstored_s=86_400, background_event_bytes=4096
)


class World:
    """The writer of one storage worker, and a clock."""

    def __init__(self, url: str) -> None:
        self.engine = open_database(url, "storage", SCHEMAS)
        self.now_s = 1_800_000_000.0
        responses = StoredResponses(self.engine).writes
        records = BackgroundRecords(SETTINGS, responses, lambda: self.now_s)
        self.writer = FencedWriter(self.engine, 0, {**responses, **records.writes})

    def write(self, *commands: object) -> list[object]:
        return self.writer.commit(commands)

    def begin(self, *ids: str) -> None:
        self.write(
            *(
                m.BeginBackground(
                    *("red", id, "gateway_1", 0, b'{"status":"queued"}', b"[]", (b"{}", b"{}")),
                    lease_s=10,
                    max_running=10_000,
                )
                for id in ids
            )
        )

    def cancel(self, *ids: str) -> None:
        self.write(*(m.CancelBackground("red", id) for id in ids))

    def sweep(self, cleared_ms: int = 0) -> Swept:
        (swept,) = self.write(SweepBackground(cleared_ms))
        assert isinstance(swept, Swept)
        return swept

    def kept(self) -> dict[str, int]:
        """Records, with how many rows of events each has."""
        query = sa.text(
            "select response_id, (select count(*) from background_events e"
            " where e.response_id = r.response_id) from background_responses r"
        )
        with self.engine.connect() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    @contextmanager
    def statements(self) -> Iterator[list[tuple[str, object]]]:
        seen: list[tuple[str, object]] = []

        def see(_: object, __: object, statement: str, parameters: object, *___: object) -> None:
            seen.append((statement, parameters))

        sa.event.listen(self.engine, "before_cursor_execute", see)
        yield seen
        sa.event.remove(self.engine, "before_cursor_execute", see)


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    world = World(database_url)
    yield world
    world.engine.dispose()


def test_recording_events_reads_neither_input_nor_response(world: World) -> None:
    world.begin("resp_1")
    with world.statements() as seen:
        more = m.RecordEvents("red", "resp_1", "gateway_1", 2, (b"{}",), "in_progress")
        assert world.write(more) == [m.Recorded(accepted=True)]
    reads = [statement for statement, _ in seen if statement.startswith("SELECT")]
    assert reads
    assert not [read for read in reads if ".input" in read or ".response," in read]


def test_the_oldest_events_go_and_no_others_are_looked_at(world: World) -> None:
    world.begin("resp_1")
    event = b"." * 16

    def record(first: int, *events: bytes) -> None:
        more = m.RecordEvents("red", "resp_1", "gateway_1", first, events, "in_progress")
        assert world.write(more) == [m.Recorded(accepted=True)]

    for number in range(2, 202):
        record(number, event)
    with world.statements() as seen:
        record(202, b"." * 2000)
    assert [read for read, _ in seen if "SELECT background_events" in read]
    assert all("LIMIT" in read for read, _ in seen if "SELECT background_events" in read)
    with world.engine.connect() as connection:
        kept = connection.execute(sa.text("select first, bytes from background_events")).all()
        (counted,) = connection.execute(sa.text("select event_bytes from background_responses"))
    size = sum(row.bytes for row in kept)
    assert 4096 - 32 < size == counted.event_bytes <= 4096
    assert sorted(row.first for row in kept) == [*range(203 - len(kept), 203)]
    record(203, b"." * 9000)
    assert world.kept() == {"resp_1": 1}


def test_an_end_that_is_sent_again_is_taken_and_another_one_is_not(world: World) -> None:
    world.begin("resp_1")
    last = b'{"status":"failed"}'
    end = m.EndBackground("red", "resp_1", "gateway_1", 2, (b"{}",), "failed", last)
    other = m.EndBackground("red", "resp_1", "gateway_1", 2, (b"{}",), "failed", last + b" ")
    answers = world.write(end, end, other)
    assert answers == [m.Recorded(accepted=accepted) for accepted in (True, True, False)]


def test_events_go_first_and_records_of_what_is_not_stored_a_day_after_the_end(
    world: World,
) -> None:
    world.begin("resp_1", "resp_2")
    world.cancel("resp_1")
    first = world.sweep()
    assert world.kept() == {"resp_1": 2, "resp_2": 1}
    world.now_s += 601
    world.write(m.RenewBackground("gateway_1", ("resp_2",), 1e6))
    second = world.sweep(first.cleared_ms)
    assert world.kept() == {"resp_1": 0, "resp_2": 1}
    world.now_s += 86_400
    world.sweep(second.cleared_ms)
    assert world.kept() == {"resp_2": 1}


def test_a_sweep_looks_at_no_record_that_an_earlier_one_has_cleared(world: World) -> None:
    ids = [f"resp_{number}" for number in range(MAX_SWEPT + 1)]
    world.begin(*ids)
    world.cancel(*ids)
    world.now_s += 700
    cleared_ms = 0
    for left in (1, 0):
        cleared_ms = world.sweep(cleared_ms).cleared_ms
        assert sum(map(bool, world.kept().values())) == left
    assert cleared_ms > 0
    with world.statements() as seen:
        assert world.sweep(cleared_ms) == Swept((), cleared_ms)
    looks = [look for look in seen if "ended_at_ms >= " in look[0]]
    with world.engine.connect() as connection:
        within = connection.exec_driver_sql(
            f"select count(*) from background_responses where ended_at_ms >= {cleared_ms}"
        ).scalar_one()
    assert (len(looks), within) == (1, 0)
