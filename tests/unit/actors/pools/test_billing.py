"""The ledger: every record once, and all of them add up."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from postgres import rows_of

from turnwire.actors.billing import BillingActor
from turnwire.actors.channel import Channel
from turnwire.actors.ledger import UsageLedger
from turnwire.actors.storage import StorageActor
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import BillingSettings, ChannelSettings, StorageSettings
from turnwire.pipelines.protocol.errors import Internal

if TYPE_CHECKING:
    from .conftest import World


def billing(url: str) -> BillingActor:
    return BillingActor("b", "here", BillingSettings(url=url), ChannelSettings())


def record(number: int, tenant: str = "red") -> m.UsageRecord:
    counts = m.Counts(10, 4, number, 1)
    flagged = ("secret", "pii")
    return m.UsageRecord(
        f"resp_{number}", tenant, "key", "smollm2", "completed", 7, counts, flagged
    )


def settle(*numbers: int) -> m.Settle:
    return m.Settle(tuple(record(number) for number in numbers))


def rows(url: str, columns: str = "response_id") -> list[tuple[object, ...]]:
    ordered = "" if "(" in columns else "order by response_id"
    return rows_of(url, f"select {columns} from usage_records {ordered}")


async def test_an_acknowledged_record_is_in_the_file_with_all_its_fields(
    world: "World", database_url: str
) -> None:
    channel = await world.run(billing(database_url))
    assert await channel.call(settle(3)) == m.Done()
    assert rows(database_url, "*") == [
        ("resp_3", "red", "key", "smollm2", "completed", 7, 10, 4, 3, 1, "secret,pii")
    ]


async def test_a_record_sent_twice_is_one_row_and_stays_as_it_was(
    world: "World", database_url: str
) -> None:
    channel = await world.run(billing(database_url))
    changed = m.Settle((record(1, tenant="blue"),))
    for command in (settle(1, 1), settle(1, 2), changed):
        assert await channel.call(command) == m.Done()
    assert rows(database_url, "response_id, tenant") == [("resp_1", "red"), ("resp_2", "red")]


async def test_records_of_many_senders_at_once_add_up(world: "World", database_url: str) -> None:
    first = await world.run(billing(database_url))
    channels = [first, await world.dial(first.endpoint)]

    async def send(channel: Channel) -> None:
        for start in range(0, 300, 7):
            await channel.call(settle(*range(start, min(300, start + 10))))

    async with asyncio.TaskGroup() as tasks:
        for channel in channels:
            tasks.create_task(send(channel))
    assert rows(database_url, "count(*), sum(output_tokens)") == [(300, sum(range(300)))]


async def test_a_crash_between_commit_and_acknowledgement_charges_once(
    world: "World", database_url: str
) -> None:
    crashed = UsageLedger(database_url)
    crashed.commit([settle(1, 2)])  # committed, and nobody was told
    crashed.close()
    channel = await world.run(billing(database_url))
    assert await channel.call(settle(1, 2, 3)) == m.Done()
    assert rows(database_url) == [("resp_1",), ("resp_2",), ("resp_3",)]


async def test_a_crash_in_the_middle_of_a_transaction_leaves_nothing_of_it(
    database_url: str,
) -> None:
    ledger = UsageLedger(database_url)
    broken = m.UsageRecord("resp_2", "red", "key", "m", "ok", 7, None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        ledger.commit([settle(1), m.Settle((broken,))])
    assert rows(database_url) == []
    ledger.close()


async def test_the_ledger_and_the_stored_responses_may_share_a_file(
    world: "World", database_url: str
) -> None:
    settings = StorageSettings(url=database_url, max_age_days=0)
    ledger = await world.run(billing(database_url))
    storage = await world.run(StorageActor("s", "here", settings, ChannelSettings()))
    replies = []
    for number in range(50):
        id = f"r{number}"
        replies.append(ledger.call(settle(number)))
        turn = m.StoredTurn(id, b"[]", b"[]")
        replies.append(storage.call(m.Save("red", id, 7, b"{}", turn)))
    assert [await reply for reply in replies] == [m.Done()] * 100
    assert len(rows(database_url)) == 50


async def test_a_ledger_that_cannot_be_opened_is_a_clear_error_at_the_start(
    world: "World", tmp_path: Path
) -> None:
    (tmp_path / "ledger.db").write_bytes(b"no database" * 1000)
    with pytest.raises(Internal, match=r"the billing database .*ledger\.db"):
        await world.run(billing(f"sqlite:///{tmp_path}/ledger.db"))
