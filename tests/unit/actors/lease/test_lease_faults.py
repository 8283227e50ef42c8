"""Broken channels and dead actors under a leased connection."""

import asyncio
from typing import TYPE_CHECKING

import pytest

from turnwire.actors.deletes import MAX_KEPT
from turnwire.actors.leased_connection import MAX_UNACKNOWLEDGED, LeasedConnection
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ConnectionSettings
from turnwire.pipelines.protocol.errors import InvalidRequest, Overloaded

if TYPE_CHECKING:
    from .conftest import FakeActor, Until, World

MODEL = m.Model("m", "tokens")


def prepare(response_id: str, parent: str = "") -> m.Prepare:
    return m.Prepare("", response_id, parent.encode(), MODEL)


def commit(response_id: str) -> m.Commit:
    return m.Commit("", response_id, b"[]")


async def test_commits_cut_off_in_flight_are_sent_again_in_order_to_the_same_actor(
    world: "World", until: "Until"
) -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        actor = world.factory.actors["a1"]
        await connection.prepare(prepare("r0"))
        actor.hold.clear()
        for number in range(5):
            connection.commit(commit(f"r{number}"))
        await until(lambda: len(actor.sequences()) == 5)
        actor.cut()
        connection.commit(commit("r5"))
        actor.hold.set()
        prepared = await connection.prepare(prepare("r6", parent="r5"))
        assert isinstance(prepared, m.Prepared)
        assert actor.committed[connection.id] == [f"r{number}" for number in range(6)]
        assert actor.sequences() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6]
        assert world.factory.killed == []


async def test_acknowledged_commits_are_not_sent_again(world: "World", until: "Until") -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        actor = world.factory.actors["a1"]
        connection.commit(commit("r1"))
        await connection.prepare(prepare("r2"))
        actor.cut()
        await connection.prepare(prepare("r3", parent="r1"))
        assert actor.sequences() == [1]


async def test_a_prepare_in_flight_when_the_channel_breaks_is_sent_again(
    world: "World",
) -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        actor = world.factory.actors["a1"]
        connection.commit(commit("r1"))
        await connection.prepare(prepare("r2"))
        actor.hold.clear()
        actor.entered.clear()
        waiting = asyncio.create_task(connection.prepare(prepare("r3", parent="r1")))
        await actor.entered.wait()
        actor.cut()
        actor.hold.set()
        assert isinstance(await waiting, m.Prepared)


async def test_a_prepare_in_flight_when_the_actor_dies_goes_to_a_fresh_one(
    world: "World",
) -> None:
    async with world.pool(warm=2) as pool, pool.lease("red") as connection:
        dying = world.factory.actors["a1"]
        connection.commit(commit("r1"))
        await connection.prepare(prepare("r2"))
        dying.hold.clear()
        dying.entered.clear()
        waiting = asyncio.create_task(connection.prepare(prepare("r3")))
        await dying.entered.wait()
        await dying.kill()
        prepared = await waiting
        assert isinstance(prepared, m.Prepared)
        assert prepared.echo_key == b"a2"


async def test_after_its_actor_died_a_connection_no_longer_knows_its_parents(
    world: "World", until: "Until"
) -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        connection.commit(commit("r1"))
        await connection.prepare(prepare("r2"))
        await world.factory.actors["a1"].kill()
        connection.commit(commit("r2"))
        assert await connection.prepare(prepare("r3", parent="r1")) == m.ParentUnknown("r1")
        fresh = world.factory.actors["a2"]
        assert fresh.told[0] == m.Open(connection.id, "red")
        connection.commit(commit("r3"))
        assert isinstance(await connection.prepare(prepare("r4", parent="r3")), m.Prepared)
        assert world.factory.killed == ["a1"]


async def test_all_connections_of_a_dead_shared_actor_are_served_again(world: "World") -> None:
    async with (
        world.pool(warm=1, max_actors=2) as pool,
        pool.lease("red") as first,
        pool.lease("red") as second,
    ):
        await world.factory.actors["a1"].kill()
        replies = await asyncio.gather(first.prepare(prepare("r")), second.prepare(prepare("r")))
        assert all(isinstance(reply, m.Prepared) for reply in replies)
        assert set(world.factory.actors["a2"].committed) == {first.id, second.id}


async def test_a_prepare_whose_actors_keep_dying_is_refused(world: "World", until: "Until") -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:

        async def assassin() -> None:
            for number in range(1, 4):
                await until(lambda id=f"a{number}": id in world.factory.actors)
                actor = world.factory.actors[f"a{number}"]
                actor.hold.clear()
                await until(lambda actor=actor: was_asked(actor))
                await actor.kill()

        def was_asked(actor: "FakeActor") -> bool:
            return any(isinstance(command, m.Prepare) for command in actor.told)

        killing = asyncio.create_task(assassin())
        with pytest.raises(Overloaded, match="keep dying"):
            await connection.prepare(prepare("r1"))
        await killing


async def test_a_close_cut_off_in_flight_is_sent_again(world: "World", until: "Until") -> None:
    async with world.pool(warm=1, max_actors=1) as pool, pool.lease("red"):
        actor = world.factory.actors["a1"]
        async with pool.lease("red") as second:
            await second.prepare(prepare("r1"))
            actor.hold.clear()
            actor.entered.clear()
        await actor.entered.wait()
        assert actor.told[-1] == m.Close(second.id)
        actor.cut()
        actor.hold.set()
        await until(lambda: second.id not in actor.committed)
        assert actor.told.count(m.Close(second.id)) == 2


async def test_an_actor_that_acknowledges_nothing_is_replaced(world: "World") -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        stuck = world.factory.actors["a1"]
        await connection.prepare(prepare("r0"))
        stuck.hold.clear()
        for number in range(MAX_UNACKNOWLEDGED + 1):
            connection.commit(commit(f"r{number}"))
        assert world.factory.killed == ["a1"]
        prepared = await connection.prepare(prepare("r1"))
        assert isinstance(prepared, m.Prepared)
        assert prepared.echo_key != b"a1"


async def test_what_a_connection_without_an_actor_is_told_does_not_pile_up() -> None:
    connection = LeasedConnection("conn_1", "red", 5.0, lambda link: None)
    for number in range(3 * MAX_UNACKNOWLEDGED):
        connection.abort(m.Abort("", f"r{number}"))
    assert connection.owed <= MAX_UNACKNOWLEDGED


async def test_a_commit_the_actor_refuses_does_not_hold_up_the_next_ones(
    world: "World", until: "Until"
) -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        actor = world.factory.actors["a1"]
        await connection.prepare(prepare("r0"))
        actor.refuse = InvalidRequest("unknown turn")
        connection.commit(commit("r1"))
        await until(lambda: actor.sequences() == [1])
        actor.refuse = None
        connection.commit(commit("r2"))
        assert isinstance(await connection.prepare(prepare("r3", parent="r2")), m.Prepared)
        actor.cut()
        await connection.prepare(prepare("r4"))
        assert actor.sequences() == [1, 2]
        assert world.factory.killed == []


async def test_a_deleted_response_is_told_to_every_actor_of_its_tenant_and_no_other(
    world: "World", until: "Until"
) -> None:
    async with (
        world.pool(warm=3) as pool,
        pool.lease("red") as socket,
        pool.shared("red") as http,
        pool.lease("blue") as other,
    ):
        for connection in (socket, http, other):
            await connection.prepare(prepare("r1"))
        pool.forget("red", "resp_1")
        for connection in (socket, http, other):
            await connection.prepare(prepare("r2"))
        told = {
            (tenant, command)
            for actor in world.factory.actors.values()
            for tenant in actor.tenants
            for command in actor.told
            if isinstance(command, m.Forget)
        }
        assert told == {("red", m.Forget("resp_1"))}
        actors = world.factory.actors.values()
        assert sum(m.Forget("resp_1") in actor.told for actor in actors) == 2


async def test_a_deletion_cut_off_in_flight_is_told_again_before_any_later_turn(
    world: "World", until: "Until"
) -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        actor = world.factory.actors["a1"]
        await connection.prepare(prepare("r1"))
        actor.hold.clear()
        pool.forget("red", "resp_1")
        await until(lambda: m.Forget("resp_1") in actor.told)
        actor.cut()
        pool.forget("red", "resp_2")
        actor.hold.set()
        await connection.prepare(prepare("r2"))
        again = [command for command in actor.told[3:] if isinstance(command, m.Forget | m.Prepare)]
        assert again[:2] == [m.Forget("resp_1"), m.Forget("resp_2")]


async def test_deletions_that_are_told_all_at_once_leave_the_actor_alone(world: "World") -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        actor = world.factory.actors["a1"]
        await connection.prepare(prepare("r0"))
        for number in range(MAX_KEPT):
            pool.forget("red", f"resp_{number}")
        await connection.prepare(prepare("r1"))
        assert sum(isinstance(command, m.Forget) for command in actor.told) == MAX_KEPT
        assert world.factory.killed == []


async def test_turns_that_end_all_at_once_leave_the_actor_alone(world: "World") -> None:
    most = ConnectionSettings().max_prepared
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        await connection.prepare(prepare("r0"))
        for number in range(most):
            connection.abort(m.Abort("", f"r{number}"))
        await connection.told()
        assert len(world.factory.actors["a1"].sequences()) == most
        assert world.factory.killed == []


async def test_an_actor_that_a_deletion_cannot_be_sent_to_is_replaced(
    world: "World", until: "Until"
) -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        await connection.prepare(prepare("r0"))
        link = pool._links["a1"]
        assert link.channel is not None
        link.channel._settings = link.channel._settings.model_copy(update={"max_pending": 0})
        pool.forget("red", "resp_1")
        await until(lambda: world.factory.killed == ["a1"])


async def test_an_actor_that_acknowledges_no_deletion_is_replaced(world: "World") -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        stuck = world.factory.actors["a1"]
        await connection.prepare(prepare("r0"))
        stuck.hold.clear()
        for number in range(MAX_UNACKNOWLEDGED + 1):
            pool.forget("red", f"resp_{number}")
        assert world.factory.killed == ["a1"]
        assert isinstance(await connection.prepare(prepare("r1")), m.Prepared)
