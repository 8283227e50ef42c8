"""The records of background responses over channels to the storage pool."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from turnwire.actors.ask import expect
from turnwire.actors.channel import Stream
from turnwire.actors.peer_ports import PoolPort
from turnwire.pipelines import messages as m
from turnwire.pipelines.ports import BackgroundStore


class BackgroundPort(BackgroundStore):
    def __init__(self, pool: PoolPort) -> None:
        self._pool = pool

    async def begin(self, command: m.BeginBackground) -> None:
        await self._pool.ask(command, m.Done)

    async def record(self, command: m.RecordEvents | m.EndBackground) -> m.Recorded:
        return await self._pool.ask(command, m.Recorded)

    async def renew(self, command: m.RenewBackground) -> m.StillRunning:
        return await self._pool.ask(command, m.StillRunning)

    async def cancel(self, command: m.CancelBackground) -> m.Stored:
        return await self._pool.ask(command, m.Stored)

    @asynccontextmanager
    async def follow(
        self, command: m.FollowBackground
    ) -> AsyncIterator[AsyncIterator[m.BackgroundEvents]]:
        async with self._pool.stream(command) as batches:
            yield _each(batches)


async def _each(batches: Stream) -> AsyncIterator[m.BackgroundEvents]:
    async for batch in batches:
        for message in batch:
            yield expect(message, m.BackgroundEvents)
