"""The billing pool: usage records into the ledger, each exactly once however often it is sent."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from turnwire.actors.channel import Listener
from turnwire.actors.group_commit import GroupCommit
from turnwire.actors.ledger import UsageLedger
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import BillingSettings, ChannelSettings


class BillingActor:
    """One worker of the pool. `start`, then any number of calls on its channel, then `close`."""

    def __init__(
        self, id: str, node: str, settings: BillingSettings, channel: ChannelSettings
    ) -> None:
        self._settings = settings
        self._listener = Listener(id, node, {m.Settle: self._settle}, {}, channel)
        self._blocks = AsyncExitStack()

    async def start(self, folder: Path, tcp_host: str | None = None) -> m.Worker:
        """Open the database and listen. Raises Internal when the database cannot be used."""
        async with AsyncExitStack() as blocks:
            ledger = await asyncio.to_thread(UsageLedger, self._settings.url)
            blocks.callback(ledger.close)
            self._writer = await blocks.enter_async_context(
                GroupCommit(ledger.commit, self._settings.max_queued, "billing")
            )
            endpoint = await self._listener.start(folder=folder, tcp_host=tcp_host)
            blocks.push_async_callback(self._listener.close, self._settings.drain_s)
            self._blocks = blocks.pop_all()
        return m.Worker(endpoint, "billing", max_ongoing=self._settings.max_ongoing)

    async def close(self) -> None:
        """Answer what runs, at most for `drain_s`, then stop listening and close the database."""
        await self._blocks.aclose()

    @property
    def secret(self) -> bytes:
        return self._listener.secret

    def load(self) -> tuple[int, int]:
        """Commands running and waiting, now."""
        return 0, self._writer.queued

    async def _settle(self, command: m.Settle, _caller: object) -> m.Done:
        await self._writer.submit(command)
        return m.Done()
