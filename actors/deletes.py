"""What a storage worker has deleted, told to every gateway, so that no connection continues it."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from turnwire.pipelines import messages as m

MAX_KEPT = 1024
"""Told again to a gateway whose channel broke; one that lags by more misses the oldest."""


class Deletes:
    def __init__(self) -> None:
        self._kept: deque[m.Deleted] = deque(maxlen=MAX_KEPT)
        self._count = 0
        self._changed = asyncio.Event()
        self._over = False

    def add(self, deleted: m.Deleted) -> None:
        self._kept.append(deleted)
        self._count += 1
        self._notify()

    def close(self) -> None:
        """End all streams, which would else be waited for."""
        self._over = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(
        self, _command: m.WatchDeletes, _caller: object
    ) -> AsyncGenerator[m.Deleted, None]:
        told = 0
        while not self._over:
            changed = self._changed
            behind = min(self._count - told, len(self._kept))
            told = self._count
            for deleted in list(self._kept)[len(self._kept) - behind :]:
                yield deleted
            await changed.wait()
