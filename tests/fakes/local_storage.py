"""A real storage worker on a real socket, in this process, as the ports of gateways."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from turnwire.actors.ask import ask
from turnwire.actors.channel import Channel, Stream
from turnwire.actors.peer_background import BackgroundPort
from turnwire.actors.peer_ports import PoolPort, StorePort
from turnwire.actors.storage import StorageActor
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, StorageSettings

NODE = "here"
CHANNEL = ChannelSettings(heartbeat_s=0.2, silence_s=5, connect_s=5)


class _OneWorker(PoolPort):
    """A pool of one, whose channel the test may cut by replacing the worker."""

    def __init__(self) -> None:
        self.channel: Channel | None = None

    # Any: as the pool's own, which is generic.
    async def ask(self, command: m.Message, answer: Any) -> Any:  # noqa: ANN401
        assert self.channel is not None
        return await ask(self.channel, command, answer)

    @asynccontextmanager
    async def stream(self, command: m.Message) -> AsyncIterator[Stream]:
        assert self.channel is not None
        async with self.channel.stream(command) as batches:
            yield batches


class LocalStorage(StorePort, BackgroundPort):
    """`async with LocalStorage(settings) as storage:`; `restart` keeps only what is committed."""

    def __init__(self, url: str, **settings: object) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._settings = StorageSettings.model_validate({"url": url} | settings)
        self._pool = _OneWorker()
        StorePort.__init__(self, self._pool)
        BackgroundPort.__init__(self, self._pool)
        self._actor: StorageActor | None = None

    async def restart(self) -> None:
        await self._stop()
        await self._start()

    async def __aenter__(self) -> "LocalStorage":
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()
        self._folder.cleanup()

    async def _start(self) -> None:
        actor = self._actor = StorageActor("storage", NODE, self._settings, CHANNEL)
        worker = await actor.start(Path(self._folder.name) / "private")
        self._pool.channel = await Channel.connect(worker.endpoint, CHANNEL, node=NODE)

    async def _stop(self) -> None:
        assert self._actor is not None
        assert self._pool.channel is not None
        await self._pool.channel.close()
        await self._actor.close()
