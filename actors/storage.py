"""The storage pool: stored responses, written by one pinned thread, read by another.

Content of `store: false` turns never comes here: only `Save` carries content, and only a turn that
is to be stored sends one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

from turnwire.actors.channel import Listener
from turnwire.actors.group_commit import GroupCommit
from turnwire.actors.stored_responses import StoredResponses, unknown
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, StorageSettings
from turnwire.pipelines.protocol.errors import ApiError, Overloaded

Answer = TypeVar("Answer")


class StorageActor:
    """One worker of the pool. `start`, then any number of calls on its channel, then `close`."""

    def __init__(
        self, id: str, node: str, settings: StorageSettings, channel: ChannelSettings
    ) -> None:
        self._settings = settings
        self._listener = Listener(
            id,
            node,
            {m.Save: self._save, m.Delete: self._delete, m.Load: self._load, m.Fetch: self._fetch},
            {},
            channel,
        )
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="storage-read")
        self._reading = 0
        self._blocks = AsyncExitStack()

    async def start(self, folder: Path, tcp_host: str | None = None) -> m.Worker:
        """Open the database and listen. Raises Internal when the database cannot be used."""
        async with AsyncExitStack() as blocks:
            blocks.callback(self._reader.shutdown, wait=False)
            loop = asyncio.get_running_loop()
            url = self._settings.url
            self._responses = await loop.run_in_executor(self._reader, StoredResponses, url)
            blocks.callback(self._responses.close)
            self._writer = await blocks.enter_async_context(
                GroupCommit(self._responses.commit, self._settings.max_queued, "storage")
            )
            endpoint = await self._listener.start(folder=folder, tcp_host=tcp_host)
            blocks.push_async_callback(self._listener.close, self._settings.drain_s)
            self._blocks = blocks.pop_all()
        return m.Worker(endpoint, "storage", max_ongoing=self._settings.max_ongoing)

    async def close(self) -> None:
        """Answer what runs, at most for `drain_s`, then stop listening and close the database."""
        await self._blocks.aclose()

    @property
    def secret(self) -> bytes:
        return self._listener.secret

    def load(self) -> tuple[int, int]:
        """Calls running and waiting, now."""
        return min(self._reading, 1), self._writer.queued + max(0, self._reading - 1)

    async def _save(self, command: m.Save, _caller: object) -> m.Done:
        await self._writer.submit(command)
        return m.Done()

    async def _delete(self, command: m.Delete, _caller: object) -> m.Done:
        if not await self._writer.submit(command):
            raise unknown(command)
        return m.Done()

    async def _load(self, command: m.Load, _caller: object) -> m.Chain:
        return await self._read(lambda: self._responses.load(command))

    async def _fetch(self, command: m.Fetch, _caller: object) -> m.Stored:
        return await self._read(lambda: self._responses.fetch(command))

    async def _read(self, query: Callable[[], Answer]) -> Answer:
        if self._reading >= self._settings.max_queued:
            raise Overloaded(f"{self._reading} reads wait for the storage")
        self._reading += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, query)
        except ApiError:
            raise
        except Exception as error:
            # The text of a database error may quote what is stored.
            raise Overloaded(f"the storage cannot read: {type(error).__name__}") from error
        finally:
            self._reading -= 1
