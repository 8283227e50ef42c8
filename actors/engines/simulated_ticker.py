"""Wake-ups for many generations at once: one timer an engine, however many wait."""

import asyncio
import heapq
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A callback that is still to come."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time, and being called when it has come. An event loop is one."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer: ...


class Ticker:
    """Who waits for the same moment is woken by the same callback."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[float, set[asyncio.Future[None]]] = {}
        self._moments: list[float] = []
        self._timer: Timer | None = None

    def time(self) -> float:
        return self._clock.time()

    async def wait(self, when_s: float) -> None:
        """Return when it is `when_s`; if it already is, after everybody else had a turn."""
        if when_s <= self._clock.time():
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if when_s not in self._waiting:
            self._waiting[when_s] = set()
            heapq.heappush(self._moments, when_s)
            self._set_timer()
        self._waiting[when_s].add(future)
        try:
            await future
        finally:
            if (others := self._waiting.get(when_s)) is not None:
                others.discard(future)

    def wake_all(self) -> None:
        """Everybody returns now, whatever they wait for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for moment in self._moments:
            self._wake(moment)
        self._moments.clear()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_at(self._moments[0], self._tick) if self._moments else None

    def _tick(self) -> None:
        now_s = self._clock.time()
        self._timer = None
        while self._moments and self._moments[0] <= now_s:
            self._wake(heapq.heappop(self._moments))
        self._set_timer()

    def _wake(self, moment_s: float) -> None:
        for future in self._waiting.pop(moment_s):
            if not future.done():
                future.set_result(None)
