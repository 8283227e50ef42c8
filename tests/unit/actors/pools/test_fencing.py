"""Who may write, and what is answered while the database is away."""

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from postgres import PostgresServer, rows_of

from turnwire.actors import database
from turnwire.actors.database import open_database
from turnwire.actors.fenced_writer import Fenced, FencedWriter, Transaction
from turnwire.actors.ledger import UsageLedger
from turnwire.actors.storage import SCHEMAS, StorageActor
from turnwire.actors.stored_responses import StoredResponses
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, StorageSettings
from turnwire.pipelines.protocol.errors import NotFound, Overloaded

if TYPE_CHECKING:
    from .conftest import Until, World


def storage(url: str, slot: int = 0) -> StorageActor:
    return StorageActor(
        f"s{slot}", "here", StorageSettings(url=url, max_age_days=0), ChannelSettings(), slot
    )


def save(id: str) -> m.Save:
    return m.Save("red", id, 7, b"{}", m.StoredTurn(id, b"[]", b"[]"))


def stored(url: str) -> list[str]:
    return [str(id) for (id,) in rows_of(url, "select response_id from responses order by 1")]


async def test_a_worker_that_was_replaced_cannot_write_any_more(
    world: "World", database_url: str
) -> None:
    old = storage(database_url)
    to_old = await world.run(old)
    await to_old.call(save("r1"))
    old.check_health()
    to_new = await world.run(storage(database_url))
    for _ in range(2):
        with pytest.raises(Overloaded, match="replaced"):
            await to_old.call(save("r2"))
    with pytest.raises(Overloaded, match="replaced"):
        await to_old.call(m.Delete("red", "r1"))
    with pytest.raises(Fenced):
        old.check_health()
    await to_new.call(save("r3"))
    assert stored(database_url) == ["r1", "r3"]


async def test_workers_of_different_slots_write_side_by_side(
    world: "World", postgres: PostgresServer
) -> None:
    url = postgres.database()
    channels = [await world.run(storage(url, slot)) for slot in range(2)]
    replies = [channels[number % 2].call(save(f"r{number}")) for number in range(40)]
    assert [await reply for reply in replies] == [m.Done()] * 40
    assert len(stored(url)) == 40
    assert await channels[0].call(m.Load("red", "r1")) == await channels[1].call(
        m.Load("red", "r1")
    )


def test_a_transaction_that_runs_while_its_worker_is_replaced_is_undone(
    postgres: PostgresServer,
) -> None:
    url = postgres.database()
    engine = open_database(url, "storage", SCHEMAS)
    responses = StoredResponses(engine)

    def replaced_meanwhile(transaction: Transaction, command: m.Delete) -> m.Done:
        FencedWriter(engine, 0, {})
        return m.Done()

    writes = {**responses.writes, m.Delete: replaced_meanwhile}
    writer = FencedWriter(engine, 0, writes)
    with pytest.raises(Fenced):
        writer.commit([save("r1"), m.Delete("red", "r0")])
    assert stored(url) == []
    engine.dispose()


def test_a_claim_waits_for_the_commit_that_is_under_way(postgres: PostgresServer) -> None:
    """So that nobody reads the state before a write that is acknowledged later."""
    url = postgres.database()
    engine = open_database(url, "storage", SCHEMAS)
    writer = FencedWriter(engine, 0, StoredResponses(engine).writes)
    claimed = threading.Event()

    def claim() -> None:
        FencedWriter(engine, 0, {})
        claimed.set()

    thread = threading.Thread(target=claim)

    @sa.event.listens_for(engine, "commit")
    def before_the_commit(_: sa.Connection) -> None:
        if thread.ident is None:
            thread.start()
            waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            while rows_of(url, waiting) == [(0,)]:
                pass
            assert not claimed.is_set()

    assert writer.commit([save("r1")]) == [m.Done()]
    thread.join()
    with pytest.raises(Fenced):
        writer.commit([save("r2")])
    assert stored(url) == ["r1"]
    engine.dispose()


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_while_postgresql_is_away_all_is_refused_and_afterwards_nothing_is(
    world: "World", mortal: PostgresServer, end: str
) -> None:
    url = mortal.database()
    channel = await world.run(storage(url))
    await channel.call(save("r1"))
    await channel.call(m.Fetch("red", "r1"))
    getattr(mortal, end)()
    for command in (save("r2"), m.Delete("red", "r1"), m.Fetch("red", "r1"), m.Load("red", "r1")):
        with pytest.raises(Overloaded, match="the database is away"):
            await channel.call(command)
    mortal.start()
    # At once, though the connections that were kept are dead.
    assert await channel.call(save("r3")) == m.Done()
    assert await channel.call(m.Fetch("red", "r1")) == m.Stored(b"{}", b"[]")
    with pytest.raises(NotFound):
        await channel.call(m.Fetch("red", "r2"))
    assert stored(url) == ["r1", "r3"]


async def test_a_restart_between_two_writes_is_not_noticed(
    world: "World", mortal: PostgresServer
) -> None:
    url = mortal.database()
    channel = await world.run(storage(url))
    ledger = UsageLedger(url)
    settle = m.Settle((m.UsageRecord("r1", "red", "k", "m", "completed", 7, m.Counts()),))
    await channel.call(save("r1"))
    ledger.commit([settle])
    mortal.kill()
    with pytest.raises(Overloaded, match="the database is away"):
        ledger.commit([settle])
    mortal.start()
    await channel.call(save("r2"))
    ledger.commit([settle])
    ledger.close()
    assert stored(url) == ["r1", "r2"]


async def test_a_postgresql_that_does_not_answer_is_away(
    world: "World", mortal: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "ANSWER_S", 0.5)
    url = mortal.database()
    channel = await world.run(storage(url))
    await channel.call(save("r1"))
    mortal.freeze()
    try:
        for command in (save("r2"), m.Fetch("red", "r1")):
            with pytest.raises(Overloaded, match="the database is away"):
                await channel.call(command)
    finally:
        mortal.thaw()
    assert await channel.call(save("r3")) == m.Done()
    assert "r3" in stored(url)


async def test_what_is_deleted_is_told_to_all_who_watch_and_to_those_who_come_later(
    world: "World", database_url: str, until: "Until"
) -> None:
    actor = storage(database_url)
    channel = await world.run(actor)
    await channel.call(save("r1"))
    await channel.call(save("r2"))
    heard: list[m.Message] = []
    async with channel.stream(m.WatchDeletes()) as batches:
        await channel.call(m.Delete("red", "r1"))
        heard += await anext(aiter(batches))
    assert heard == [m.Deleted("red", "r1")]
    await channel.call(m.Delete("red", "r2"))
    with pytest.raises(NotFound):
        await channel.call(m.Delete("red", "r3"))
    await channel.call(m.CreateConversation("red", "conv_1", 7, {}))
    await channel.call(m.DeleteConversation("red", "conv_1"))
    heard.clear()
    async with channel.stream(m.WatchDeletes()) as batches:
        async for batch in batches:
            heard += batch
            if len(heard) == 3:
                break
    assert heard == [
        *(m.Deleted("red", "r1"), m.Deleted("red", "r2")),
        m.Deleted("red", "", "conv_1"),
    ]
