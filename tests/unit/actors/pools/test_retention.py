"""What is too old or too much goes, the oldest first, in steps that others need not wait for."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from postgres import rows_of

from turnwire.actors.database import open_database
from turnwire.actors.fenced_writer import FencedWriter
from turnwire.actors.retention import DAY_S, SWEEP_BYTES, SWEEP_ROWS, Retention, Sweep
from turnwire.actors.storage import RETAINED, SCHEMAS
from turnwire.actors.stored_responses import StoredResponses
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import StorageSettings
from turnwire.pipelines.protocol.errors import PreviousResponseNotFound

NOW_S = 1_800_000_000


class World:
    """A store with its writer and its retention, and nothing around them."""

    def __init__(self, url: str, settings: StorageSettings, slot: int = 0) -> None:
        self.url = url
        self.engine = open_database(url, "storage", SCHEMAS)
        self.responses = StoredResponses(self.engine)
        self.retention = Retention(self.engine, RETAINED, settings)
        writes = {**self.responses.writes, **self.retention.writes}
        self.writer = FencedWriter(self.engine, slot, writes)

    def save(self, number: int, size: int, age_days: float = 0, parent: int | None = None) -> None:
        created_at = int(NOW_S - age_days * DAY_S) + number
        id, parent_id = f"r{number:04}", None if parent is None else f"r{parent:04}"
        turn = m.StoredTurn(id, b"i" * (size // 2), b"")
        content = os.urandom(size - size // 2)
        save = m.Save("red", id, created_at, content, turn, parent_id)
        assert self.writer.commit([save]) == [m.Done()]

    def sweep(self) -> bool:
        (changed,) = self.writer.commit([Sweep(NOW_S)])
        return bool(changed)

    def sweep_all(self) -> list[int]:
        """How many rows each step deleted."""
        steps = []
        while self.retention.due(NOW_S):
            before = len(self.left())
            assert self.sweep()
            steps.append(before - len(self.left()))
        return steps

    def left(self) -> list[int]:
        found = rows_of(self.url, "select response_id from responses order by 1")
        return [int(id[1:]) for (id,) in found]

    def counted(self) -> int:
        ((total,),) = rows_of(self.url, "select sum(bytes) from storage_slots")
        ((real,),) = rows_of(
            self.url,
            "select coalesce(sum(length(response) + length(input) + length(output)), 0)"
            " from responses",
        )
        assert total == real
        return int(total)


@pytest.fixture
def opened() -> Iterator[list[sa.Engine]]:
    engines: list[sa.Engine] = []
    yield engines
    for engine in engines:
        engine.dispose()


def world_of(opened: list[sa.Engine], url: str, slot: int = 0, **settings: float) -> World:
    world = World(url, StorageSettings.model_validate(settings), slot)
    opened.append(world.engine)
    return world


def test_the_oldest_go_until_the_bytes_fit(opened: list[sa.Engine], database_url: str) -> None:
    world = world_of(opened, database_url, max_bytes=1000)
    for number in range(10):
        world.save(number, 100)
    assert not world.retention.due(NOW_S)
    world.save(10, 150)
    assert world.sweep_all() == [2]
    assert world.left() == list(range(2, 11))
    assert world.counted() == 950


def test_what_is_too_old_goes_and_the_rest_stays(
    opened: list[sa.Engine], database_url: str
) -> None:
    world = world_of(opened, database_url, max_age_days=30)
    world.save(1, 10, age_days=31)
    world.save(2, 10, age_days=29)
    assert world.sweep_all() == [1]
    assert world.left() == [2]


def test_without_bounds_nothing_is_ever_due(opened: list[sa.Engine], database_url: str) -> None:
    world = world_of(opened, database_url, max_age_days=0, max_bytes=0)
    world.save(1, 10, age_days=10_000)
    assert not world.retention.due(NOW_S)
    assert not world.sweep()
    assert world.left() == [1]


def test_a_step_is_bounded_by_rows(opened: list[sa.Engine], database_url: str) -> None:
    world = world_of(opened, database_url)
    for number in range(SWEEP_ROWS + 10):
        world.save(number, 10, age_days=40)
    assert world.sweep_all() == [SWEEP_ROWS, 10]


def test_a_step_is_bounded_by_bytes(opened: list[sa.Engine], database_url: str) -> None:
    world = world_of(opened, database_url, max_bytes=1)
    for number in range(4):
        world.save(number, SWEEP_BYTES // 2)
    assert [count for count in world.sweep_all() if count] == [2, 2]


def test_a_delete_counts_at_once_and_saving_twice_counts_once(
    opened: list[sa.Engine], database_url: str
) -> None:
    world = world_of(opened, database_url)
    for number in (1, 1, 2):
        world.save(number, 100)
    assert world.counted() == 200
    assert world.writer.commit([m.Delete("red", "r0001")]) == [m.Done()]
    assert world.counted() == 100


def test_workers_count_together(opened: list[sa.Engine], postgres: object) -> None:
    """What one has written another may delete."""
    url = postgres.database()  # type: ignore[attr-defined]
    first = world_of(opened, url, slot=0, max_bytes=1000)
    second = world_of(opened, url, slot=1, max_bytes=1000)
    for number in range(8):
        first.save(number, 100)
    for number in range(8, 12):
        second.save(number, 100)
    assert first.retention.due(NOW_S)
    assert second.sweep_all() == [2]
    assert not first.retention.due(NOW_S)
    assert first.counted() == second.counted() == 1000


def test_a_chain_whose_beginning_is_gone_says_so(
    opened: list[sa.Engine], database_url: str
) -> None:
    world = world_of(opened, database_url, max_bytes=250)
    for number in range(3):
        world.save(number, 100, parent=number - 1 if number else None)
    world.sweep_all()
    with pytest.raises(PreviousResponseNotFound, match=r"'r0000' before it was deleted or has exp"):
        world.responses.load(m.Load("red", "r0002"))


def test_the_file_gets_smaller_again(opened: list[sa.Engine], tmp_path: Path) -> None:
    path = tmp_path / "turnwire.db"
    world = world_of(opened, f"sqlite:///{path}", max_bytes=1024 * 1024)
    for number in range(50):
        world.save(number, 200_000)

    def pages() -> int:
        ((count,),) = rows_of(world.url, "pragma page_count")
        return int(count)

    full = pages()
    world.sweep_all()
    assert world.counted() <= 1024 * 1024
    assert pages() < full / 4
    rows_of(world.url, "pragma wal_checkpoint(truncate)")
    assert path.stat().st_size < 4 * 1024 * 1024
