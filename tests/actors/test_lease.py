"""The warm pool over real Ray: leases in a burst, and actors killed without warning."""

import asyncio
import os
import signal
import socket
import struct
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest
import ray

from turnwire.actors.connection import ConnectionActor
from turnwire.actors.lease import ConnectionPool
from turnwire.actors.lease_ray import RayActors
from turnwire.actors.leased_connection import LeasedConnection
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, ConnectionSettings
from turnwire.pipelines.protocol.errors import Overloaded

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NODE = "here"
MODEL = m.Model("sim-max", "items")


@pytest.fixture
async def pool(ray_local: Path) -> AsyncIterator[ConnectionPool]:
    settings = ConnectionSettings(warm=2, refill_per_s=2, max_actors=6, lease_s=60)
    channel = ChannelSettings()
    folder = str(ray_local / "sockets")

    def arguments(actor_id: str) -> tuple[object, ...]:
        return actor_id, NODE, folder, settings, channel

    async with ConnectionPool(
        RayActors(ConnectionActor, arguments), NODE, settings, channel
    ) as made:
        yield made


def prepare(response_id: str, parent: str | None = None) -> m.Prepare:
    frame = {"type": "response.create", "model": "sim-max", "store": False, "input": "hello"}
    if parent is not None:
        frame["previous_response_id"] = parent
    return m.Prepare("", response_id, orjson.dumps(frame), MODEL)


async def turn(connection: LeasedConnection, parent: str | None = None) -> str:
    """One committed turn; its response id."""
    response_id = f"resp_{uuid.uuid4().hex}"
    prepared = await connection.prepare(prepare(response_id, parent))
    assert isinstance(prepared, m.Prepared), prepared
    item = {
        "type": "message",
        "id": f"msg_{uuid.uuid4().hex}",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "hi", "annotations": []}],
    }
    connection.commit(m.Commit("", response_id, orjson.dumps([item])))
    return response_id


def pid_of(connection: LeasedConnection) -> int:
    """The process that listens at the other end of the connection's channel."""
    assert connection._channel is not None
    transport = connection._channel._link._transport
    assert transport is not None
    end = transport.get_extra_info("socket")
    pid: int = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


async def test_fifty_leases_at_once_are_all_served_by_shared_actors(pool: ConnectionPool) -> None:
    async with AsyncExitStack() as leases:
        opened = [leases.enter_async_context(pool.lease("red")) for _ in range(50)]
        connections = await asyncio.gather(*opened)
        ids = await asyncio.gather(*(turn(connection) for connection in connections))
        again = zip(connections, ids, strict=True)
        await asyncio.gather(*(turn(connection, parent) for connection, parent in again))
        shares = Counter(pid_of(connection) for connection in connections)
    assert sum(shares.values()) == 50
    assert max(shares.values()) <= 32
    assert os.getpid() not in shares


async def test_a_killed_actor_is_replaced_and_the_connection_goes_on(
    pool: ConnectionPool,
) -> None:
    async with pool.lease("red") as connection:
        parent = await turn(connection)
        parent = await turn(connection, parent)
        killed = pid_of(connection)
        os.kill(killed, signal.SIGKILL)
        lost = await connection.prepare(prepare("resp_next", parent))
        assert lost == m.ParentUnknown(parent)
        parent = await turn(connection)
        await turn(connection, parent)
        assert pid_of(connection) != killed


async def test_turns_that_run_while_their_shared_actor_is_killed_all_come_to_an_end(
    pool: ConnectionPool,
) -> None:
    async with AsyncExitStack() as leases:
        opened = [leases.enter_async_context(pool.lease("red")) for _ in range(12)]
        connections = await asyncio.gather(*opened)
        await asyncio.gather(*(turn(connection) for connection in connections))

        async def agent(connection: LeasedConnection) -> int:
            return len([await turn(connection) for _ in range(40)])

        agents = [asyncio.create_task(agent(connection)) for connection in connections]
        await turn(connections[0])
        os.kill(pid_of(connections[0]), signal.SIGKILL)
        assert await asyncio.gather(*agents) == [40] * 12


async def test_an_actor_that_served_one_tenant_is_never_given_to_another(
    pool: ConnectionPool,
) -> None:
    async with pool.lease("red") as red:
        await turn(red)
        first = pid_of(red)
    async with pool.lease("blue") as blue, pool.lease("red") as red:
        await asyncio.gather(turn(blue), turn(red))
        assert pid_of(red) == first
        assert pid_of(blue) != first


async def test_all_actors_die_with_the_pool(ray_local: Path) -> None:
    settings = ConnectionSettings(warm=1, lease_s=60)
    channel = ChannelSettings()
    folder = str(ray_local / "sockets")
    factory = RayActors(ConnectionActor, lambda id: (id, NODE, folder, settings, channel))
    async with ConnectionPool(factory, NODE, settings, channel) as pool, pool.lease("red") as held:
        await turn(held)
        pid = pid_of(held)
        os.kill(pid, 0)
    async with asyncio.timeout(20):
        while _alive(pid):  # noqa: ASYNC110 -- the end of a process sets no event
            await asyncio.sleep(0.02)


async def test_an_actor_that_cannot_be_made_is_an_overload(ray_local: Path) -> None:
    too_long = str(ray_local / ("x" * 120))
    given = ConnectionSettings(), ChannelSettings()
    factory = RayActors(ConnectionActor, lambda id: (id, NODE, too_long, *given))
    with pytest.raises(Overloaded, match="did not start"):
        await factory.start("a1")
    factory.kill("a1")
    assert ray.is_initialized()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
