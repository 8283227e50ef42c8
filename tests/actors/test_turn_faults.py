"""Connection actors over real Ray, killed without warning in the middle of turns."""

import os
import signal
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from faulty_actors import EchoEngine
from leased_turns import LeasedTurns, fork
from scripted_ports import World

from turnwire.actors.connection import ConnectionActor
from turnwire.actors.lease import ConnectionPool
from turnwire.actors.lease_ray import RayActors
from turnwire.actors.leased_connection import LeasedConnection
from turnwire.pipelines.config import ChannelSettings, ConnectionSettings

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NODE = "here"


class KillingWorld(World):
    """Kills the connection's actor when step `at` is taken."""

    def __init__(self, connection: LeasedConnection, at: int) -> None:
        super().__init__()
        self._connection = connection
        self._at = at
        self.killed = 0

    async def step(self, name: str) -> None:
        if len(self.steps) == self._at:
            self.killed = pid_of(self._connection)
            os.kill(self.killed, signal.SIGKILL)
        await super().step(name)


def pid_of(connection: LeasedConnection) -> int:
    """The process that listens at the other end of the connection's channel."""
    assert connection._channel is not None
    transport = connection._channel._link._transport
    assert transport is not None
    end = transport.get_extra_info("socket")
    pid: int = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


@pytest.fixture(scope="module")
def folder(ray_local: Path) -> Path:
    return ray_local / "sockets"


@pytest.fixture
async def pool(folder: Path) -> AsyncIterator[ConnectionPool]:
    settings = ConnectionSettings(warm=2, refill_per_s=2, max_actors=4, lease_s=60)
    channel = ChannelSettings()
    factory = RayActors(ConnectionActor, lambda id: (id, NODE, str(folder), settings, channel))
    async with ConnectionPool(factory, NODE, settings, channel) as made:
        yield made


async def test_a_fork_whose_actor_is_killed_at_some_step_goes_on_or_loses_its_parent(
    pool: ConnectionPool,
) -> None:
    for at in (0, 1, 4, 7, 10, 13):
        async with pool.lease("red") as connection:
            world = KillingWorld(connection, at)
            turns = LeasedTurns(connection, world, EchoEngine(world), "kill")
            await fork(turns)
            await turns.say("afterwards", None)
            assert world.killed
            assert pid_of(connection) != world.killed
            assert world.open_streams == 0
            records = [record.response_id for record in world.records]
            assert len(records) == len({*records})
