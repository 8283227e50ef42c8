"""The warm pool: who is served by what, and what the actors are told."""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from turnwire.actors.leased_connection import LeasedConnection
from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import InvalidRequest, Overloaded

if TYPE_CHECKING:
    from .conftest import Until, World

MODEL = m.Model("m", "tokens")


def prepare(response_id: str, parent: str = "") -> m.Prepare:
    return m.Prepare("", response_id, parent.encode(), MODEL)


def commit(response_id: str) -> m.Commit:
    return m.Commit("", response_id, b"[]")


async def served_by(connection: LeasedConnection, response_id: str = "r", parent: str = "") -> str:
    """The name of the actor that prepared the turn."""
    prepared = await connection.prepare(prepare(response_id, parent))
    assert isinstance(prepared, m.Prepared)
    return prepared.echo_key.decode()


async def test_a_lease_opens_a_connection_at_a_warm_actor_and_closes_it(
    world: "World", until: "Until"
) -> None:
    async with world.pool(warm=1) as pool:
        actor = world.factory.actors["a1"]
        async with pool.lease("red") as connection:
            assert await served_by(connection) == "a1"
            assert actor.told[0] == m.Open(connection.id, "red")
        await until(lambda: actor.told[-1] == m.Close(connection.id))
        await until(lambda: actor.committed == {})


async def test_commands_are_stamped_with_the_connections_id(world: "World", until: "Until") -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        await connection.prepare(m.Prepare("forged", "r1", b"", MODEL))
        connection.commit(m.Commit("forged", "r1", b"[]"))
        connection.abort(m.Abort("forged", "r2"))
        await connection.recall(m.Recall("forged", "r1"))
        told = world.factory.actors["a1"].told
        assert {getattr(command, "connection_id", "") for command in told} == {connection.id}


async def test_a_prepare_sees_every_earlier_commit(world: "World") -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        for number in range(20):
            connection.commit(commit(f"r{number}"))
            assert await served_by(connection, "next", parent=f"r{number}") == "a1"
        assert world.factory.actors["a1"].sequences() == list(range(1, 21))


async def test_fifty_sockets_at_once_are_all_served(world: "World") -> None:
    async with world.pool(warm=3, connections_per_actor=32) as pool, AsyncExitStack() as leases:
        opened = [leases.enter_async_context(pool.lease("red")) for _ in range(50)]
        connections = await asyncio.gather(*opened)
        actors = await asyncio.gather(*(served_by(connection) for connection in connections))
    assert len({connection.id for connection in connections}) == 50
    assert {actors.count(actor) for actor in ("a1", "a2", "a3")} == {16, 17}


async def test_tenants_never_share_an_actor(world: "World") -> None:
    async with world.pool(warm=2, max_actors=6) as pool, AsyncExitStack() as leases:
        for number in range(12):
            await leases.enter_async_context(pool.lease(f"tenant{number % 3}"))
        for actor in world.factory.actors.values():
            assert len(actor.tenants) <= 1
    for _ in range(3):
        async with world.pool(warm=1, max_actors=1) as pool:
            async with pool.lease("red"):
                pass
            async with pool.lease("blue"):
                pass
    assert all(len(actor.tenants) <= 1 for actor in world.factory.actors.values())


async def test_a_used_actor_serves_its_tenant_again_from_an_empty_state(world: "World") -> None:
    async with world.pool(warm=1, max_actors=1) as pool:
        async with pool.lease("red") as first:
            first.commit(commit("r1"))
            assert await served_by(first) == "a1"
        async with pool.lease("red") as second:
            assert await served_by(second) == "a1"
            assert await second.prepare(prepare("r2", parent="r1")) == m.ParentUnknown("r1")


async def test_a_lease_that_finds_no_actor_in_time_is_refused(world: "World") -> None:
    async with world.pool(warm=1, max_actors=1, lease_s=0.05) as pool, pool.lease("red"):
        with pytest.raises(Overloaded, match="no connection actor is free"):
            async with pool.lease("blue"):
                raise AssertionError("there is no actor for it")
        assert repr(pool) == "<Leasing a1=red:1 | 0 starting | 0 waiting>"


async def test_a_lease_waits_for_an_actor_that_is_starting(world: "World") -> None:
    world.factory.hold.clear()
    async with world.pool(warm=1) as pool:
        leasing = asyncio.create_task(_lease_once(pool.lease("red")))
        await asyncio.sleep(0)
        world.factory.hold.set()
        assert await leasing == "a1"


async def _lease_once(lease: AbstractAsyncContextManager[LeasedConnection]) -> str:
    async with lease as connection:
        return await served_by(connection)


async def test_actors_that_fail_to_start_are_tried_again(world: "World") -> None:
    world.factory.failures = 3
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        assert await served_by(connection) == "a4"
    assert world.factory.killed[:3] == ["a1", "a2", "a3"]


async def test_the_warm_stock_is_refilled_behind_the_leases(world: "World", until: "Until") -> None:
    async with world.pool(warm=2) as pool, pool.lease("red"), pool.lease("blue"):
        await until(lambda: pool.ready == 4)
        assert repr(pool).startswith("<Leasing a1=red:1 a2=blue:1 a3=fresh:0 a4=fresh:0")


async def test_leaving_the_block_kills_every_actor(world: "World") -> None:
    async with world.pool(warm=2) as pool, pool.lease("red"):
        pass
    assert set(world.factory.killed) >= set(world.factory.actors)


async def test_an_actors_refusal_arrives_as_itself(world: "World") -> None:
    async with world.pool(warm=1) as pool, pool.lease("red") as connection:
        world.factory.actors["a1"].refuse = InvalidRequest("no such tool", "tools")
        with pytest.raises(InvalidRequest, match="no such tool"):
            await connection.prepare(prepare("r1"))
        world.factory.actors["a1"].refuse = Overloaded("full")
        with pytest.raises(Overloaded, match="full"):
            await connection.prepare(prepare("r1"))
        assert world.factory.killed == []


async def test_http_turns_of_a_tenant_share_one_lasting_connection(world: "World") -> None:
    async with world.pool(warm=1) as pool:
        async with pool.shared("red") as first, pool.shared("red") as second:
            assert first is second
            first.commit(commit("r1"))
        async with pool.shared("red") as third:
            assert third is first
            assert await served_by(third, "r2", parent="r1") == "a1"


async def test_the_tenant_used_longest_ago_makes_room_for_another(world: "World") -> None:
    async with world.pool(warm=2, max_actors=4) as pool:  # connections for two tenants
        async with pool.shared("red") as red:
            pass
        async with pool.shared("blue") as blue:
            pass
        async with pool.shared("red") as again:
            assert again is red
        async with pool.shared("green"):
            pass
        async with pool.shared("red") as again, pool.shared("blue") as anew:
            assert again is red
            assert anew is not blue


async def test_more_tenants_with_running_http_turns_than_allowed_are_refused(
    world: "World",
) -> None:
    async with world.pool(warm=1, max_actors=2) as pool, pool.shared("red"):
        with pytest.raises(Overloaded, match="1 tenants have HTTP turns running"):
            async with pool.shared("blue"):
                raise AssertionError("there is no room for it")
