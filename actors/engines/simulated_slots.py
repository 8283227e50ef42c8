"""Who may generate now: a bounded number at once, a bounded number waiting, first come first."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from turnwire.pipelines.protocol.errors import Overloaded


class Slots:
    """Places for generations. Not for more than one event loop."""

    def __init__(self, max_ongoing: int, max_queued: int) -> None:
        self.ongoing = 0
        self._max_ongoing = max_ongoing
        self._max_queued = max_queued
        self._queue: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def queued(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for the length of the block. `Overloaded` when the queue is full or closed."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    def close(self) -> None:
        """Refuse everybody who waits or comes."""
        self._closed = True
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_exception(Overloaded("the engine closes"))

    async def _enter(self) -> None:
        if self._closed:
            raise Overloaded("the engine is closed")
        if self.ongoing < self._max_ongoing:
            self.ongoing += 1
            return
        if len(self._queue) >= self._max_queued:
            raise Overloaded(f"{len(self._queue)} generations wait already")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._leave()  # the place was given in the very moment its taker left
            elif waiter in self._queue:
                self._queue.remove(waiter)
            raise

    def _leave(self) -> None:
        """Hand the place to the next in the queue, so that nobody who comes later takes it."""
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.ongoing -= 1
