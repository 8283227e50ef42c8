"""The gateway's ledger port: a bounded backlog, and one task that empties it into billing."""

import asyncio
import logging
from contextlib import suppress

from turnwire.actors.backoff import Backoff
from turnwire.actors.peer_ports import PoolPort
from turnwire.pipelines import messages as m
from turnwire.pipelines.billing import Backlog
from turnwire.pipelines.ports import Ledger
from turnwire.pipelines.protocol.errors import ApiError

_log = logging.getLogger(__name__)

SETTLE_S = 10.0
"""A batch without an answer by then is sent again; the ledger takes each record once."""
LINGER_S = 0.02
"""Records wait so long for others: one commit costs as much as half a turn."""


class LedgerPort(Ledger):
    """`run` is the task of its owner, who drains before cancelling it."""

    def __init__(self, pool: PoolPort, max_backlog: int) -> None:
        self._pool = pool
        self._backlog = Backlog(max_backlog)
        self._more = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._hurry = asyncio.Event()
        self._backoff = Backoff()

    def settle(self, record: m.UsageRecord) -> None:
        """Never waits. Raises Overloaded when the backlog is full."""
        self._backlog.put(record)
        self._empty.clear()
        self._more.set()

    @property
    def nearly_full(self) -> bool:
        """New turns should be refused, so that the running ones can still be settled."""
        return self._backlog.nearly_full

    @property
    def backlog(self) -> int:
        """Records not yet acknowledged."""
        return len(self._backlog)

    async def settled(self) -> None:
        self._hurry.set()
        await self._empty.wait()

    async def drain(self, deadline_s: float) -> int:
        """Wait until every record is acknowledged; how many are not when the time is up."""
        self._hurry.set()
        try:
            async with asyncio.timeout(deadline_s):
                await self._empty.wait()
        except TimeoutError:
            _log.error("billing.not_settled %d records", len(self._backlog))
        return len(self._backlog)

    async def run(self) -> None:
        while True:
            await self._more.wait()
            await self._linger()
            if await self._send_batch() and not self._backlog:
                self._more.clear()
                self._empty.set()

    async def _linger(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._hurry.wait()

    async def _send_batch(self) -> bool:
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._pool.ask(self._backlog.batch(), m.Done)
        except (ApiError, TimeoutError) as error:
            _log.warning("billing.away: %s; %d records wait", error, len(self._backlog))
            await asyncio.sleep(self._backoff.next_s())
            return False
        self._backlog.settled()
        self._backoff.reset()
        return True
