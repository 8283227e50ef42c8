"""Stored responses: committed when acknowledged, whole chains, and nobody else's."""

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from postgres import connect, rows_of

from turnwire.actors.database import open_database
from turnwire.actors.storage import StorageActor
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, StorageSettings
from turnwire.pipelines.protocol.errors import (
    Internal,
    NotFound,
    Overloaded,
    PreviousResponseNotFound,
)

if TYPE_CHECKING:
    from .conftest import World


def storage(url: str, **settings: Any) -> StorageActor:  # noqa: ANN401 -- any setting
    return StorageActor(
        "s", "here", StorageSettings(url=url, max_age_days=0, **settings), ChannelSettings()
    )


def turn(id: str) -> m.StoredTurn:
    return m.StoredTurn(id, b"[1]", f'["{id}"]'.encode(), "smollm2", b"\1\0\0\0", "length")


def save(id: str, parent: str | None = None, tenant: str = "red", **fields: Any) -> m.Save:  # noqa: ANN401 -- any field
    return m.Save(tenant, id, 7, f'{{"id":"{id}"}}'.encode(), turn(id), parent, **fields)


def sqlite(path: Path) -> str:
    return f"sqlite:///{path}"


async def test_an_acknowledged_save_is_in_the_file(world: "World", database_url: str) -> None:
    channel = await world.run(storage(database_url))
    assert await channel.call(save("r1")) == m.Done()
    assert rows_of(database_url, "select tenant, response_id from responses") == [("red", "r1")]


async def test_a_chain_is_loaded_whole_and_oldest_first(world: "World", database_url: str) -> None:
    channel = await world.run(storage(database_url))
    for number in range(30):
        parent = f"r{number - 1}" if number else None
        await channel.call(save(f"r{number}", parent))
    chain = await channel.call(m.Load("red", "r29"))
    assert chain == m.Chain(tuple(turn(f"r{number}") for number in range(30)))


async def test_a_fork_loads_its_own_line_only(world: "World", database_url: str) -> None:
    channel = await world.run(storage(database_url))
    for id, parent in (("a", None), ("b", "a"), ("c", "a")):
        await channel.call(save(id, parent))
    assert await channel.call(m.Load("red", "c")) == m.Chain((turn("a"), turn("c")))


async def test_what_came_before_an_unstored_parent_is_kept_as_a_snapshot(
    world: "World",
    database_url: str,
) -> None:
    channel = await world.run(storage(database_url))
    before = m.Chain((turn("u1"), turn("u2")))
    await channel.call(save("r1", "u2", context=before))
    await channel.call(save("r2", "r1"))
    wanted = m.Chain((turn("u1"), turn("u2"), turn("r1"), turn("r2")))
    assert await channel.call(m.Load("red", "r2")) == wanted


async def test_saving_again_changes_nothing(world: "World", database_url: str) -> None:
    channel = await world.run(storage(database_url))
    await channel.call(save("r1"))
    await channel.call(m.Save("red", "r1", 8, b'{"other":1}', turn("x"), None))
    assert await channel.call(m.Fetch("red", "r1")) == m.Stored(b'{"id":"r1"}', b"[1]")


async def test_another_tenants_response_looks_unknown(world: "World", database_url: str) -> None:
    channel = await world.run(storage(database_url))
    await channel.call(save("r1"))
    with pytest.raises(PreviousResponseNotFound) as foreign:
        await channel.call(m.Load("blue", "r1"))
    with pytest.raises(PreviousResponseNotFound) as unknown:
        await channel.call(m.Load("blue", "r2"))
    assert foreign.value.message.replace("r1", "r2") == unknown.value.message
    assert unknown.value.param == "previous_response_id"
    for command in (m.Fetch("blue", "r1"), m.Delete("blue", "r1")):
        with pytest.raises(NotFound):
            await channel.call(command)
    assert await channel.call(m.Load("red", "r1")) == m.Chain((turn("r1"),))


async def test_two_tenants_may_hold_the_same_id(world: "World", database_url: str) -> None:
    channel = await world.run(storage(database_url))
    await channel.call(save("r1"))
    await channel.call(save("r1", tenant="blue"))
    await channel.call(save("r2", "r1", tenant="blue"))
    assert await channel.call(m.Load("blue", "r2")) == m.Chain((turn("r1"), turn("r2")))


async def test_a_deleted_response_is_gone_and_ends_the_chains_through_it(
    world: "World",
    database_url: str,
) -> None:
    channel = await world.run(storage(database_url))
    await channel.call(save("r1"))
    await channel.call(save("r2", "r1"))
    assert await channel.call(m.Delete("red", "r1")) == m.Done()
    for command, error in (
        (m.Delete("red", "r1"), NotFound),
        (m.Fetch("red", "r1"), NotFound),
        (m.Load("red", "r1"), PreviousResponseNotFound),
        (m.Load("red", "r2"), PreviousResponseNotFound),
    ):
        with pytest.raises(error):
            await channel.call(command)


async def test_stored_responses_outlive_the_process(world: "World", database_url: str) -> None:
    first = storage(database_url)
    channel = await world.run(first)
    await channel.call(save("r1"))
    await first.close()
    channel = await world.run(storage(database_url))
    assert await channel.call(m.Load("red", "r1")) == m.Chain((turn("r1"),))


async def test_saves_at_once_are_all_committed(world: "World", database_url: str) -> None:
    channel = await world.run(storage(database_url))
    replies = [channel.call(save(f"r{number}")) for number in range(200)]
    assert [await reply for reply in replies] == [m.Done()] * 200
    assert rows_of(database_url, "select count(*) from responses") == [(200,)]


async def test_more_saves_than_may_wait_are_refused(world: "World", database_url: str) -> None:
    channel = await world.run(storage(database_url, max_queued=0))
    with pytest.raises(Overloaded):
        await channel.call(save("r1"))
    with pytest.raises(Overloaded):
        await channel.call(m.Load("red", "r1"))


async def test_a_file_that_is_no_database_is_a_clear_error_at_the_start(
    world: "World",
    tmp_path: Path,
) -> None:
    path = tmp_path / "broken.db"
    path.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(Internal, match=r"broken\.db.* file is not a database"):
        await world.run(storage(sqlite(path)))


async def test_a_locked_database_is_a_clear_error_at_the_start(
    world: "World",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("turnwire.actors.database.BUSY_TIMEOUT_MS", 1)
    path = tmp_path / "locked.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin exclusive")
    with pytest.raises(Internal, match=r"locked\.db.* database is locked"):
        await world.run(storage(sqlite(path)))
    other.close()


async def test_a_folder_that_cannot_be_made_is_a_clear_error_at_the_start(
    world: "World",
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Internal, match="cannot be opened"):
        await world.run(storage(sqlite(tmp_path / "file" / "turnwire.db")))


@pytest.mark.parametrize(
    "url",
    ["nosuchbase://ann:s3cret@host/db", "s3cret and no URL", "postgresql://ann:s3cret@host:x/db"],
)
async def test_an_error_at_the_start_shows_no_password(url: str) -> None:
    with pytest.raises(Internal, match="cannot be opened") as caught:
        open_database(url, "storage", [])
    assert "s3cret" not in caught.value.message


async def test_tables_of_a_newer_release_are_left_alone(world: "World", database_url: str) -> None:
    first = storage(database_url)
    await world.run(first)
    await first.close()
    other = connect(database_url)
    with other.begin() as connection:
        connection.exec_driver_sql("update schema_versions set version = 99")
    other.dispose()
    with pytest.raises(Internal, match="version 99, this program 2"):
        await world.run(storage(database_url))
