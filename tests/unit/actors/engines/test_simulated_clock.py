"""When tokens are due, and who is woken for them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from turnwire.actors.engines.simulated_clock import ALL, Pace
from turnwire.actors.engines.simulated_steering import Profile
from turnwire.actors.engines.simulated_ticker import Ticker

TICK_S = 0.002


def test_a_pace_is_absolute() -> None:
    pace = Pace.of(Profile(0.02, 1000.0, 20e-6), 10.0, 500)
    assert pace.first_s == pytest.approx(10.03)
    assert pace.due(10.029) == 0
    assert pace.due(pace.first_s) == 1
    assert pace.due(pace.first_s + 1.0005) == 1001
    assert pace.when(0, 10.0, TICK_S) == pace.first_s
    assert pace.when(1, 10.03, TICK_S) == pytest.approx(10.032)
    assert pace.when(1, 11.0, TICK_S) == 11.0


def test_a_pace_without_a_limit_has_everything_at_once() -> None:
    pace = Pace.of(Profile(0.0, float("inf"), 0.0), 10.0, 500)
    assert (pace.due(9.9), pace.due(10.0)) == (0, ALL)
    assert pace.when(7, 10.0, TICK_S) == 10.0


@dataclass
class Alarm:
    """The one timer a ticker may have set."""

    when_s: float
    callback: Callable[[], object]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Clock:
    now_s: float = 0.0
    alarms: list[Alarm] = field(default_factory=list)

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], object], /) -> Alarm:
        self.alarms.append(Alarm(when, callback))
        return self.alarms[-1]

    @property
    def set(self) -> list[Alarm]:
        return [alarm for alarm in self.alarms if not alarm.cancelled]

    def ring(self) -> None:
        (alarm,) = self.set
        self.alarms.clear()
        self.now_s = alarm.when_s
        alarm.callback()


async def started(ticker: Ticker, *moments: float) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(ticker.wait(moment)) for moment in moments]
    await asyncio.sleep(0)
    return tasks


async def done(tasks: list[asyncio.Task[None]]) -> list[bool]:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return [task.done() for task in tasks]


async def test_one_timer_wakes_all_who_wait_for_the_same_moment_the_earliest_first() -> None:
    clock = Clock()
    tasks = await started(Ticker(clock), 5.0, 3.0, 5.0)
    assert [alarm.when_s for alarm in clock.set] == [3.0]
    clock.ring()
    assert await done(tasks) == [False, True, False]
    assert [alarm.when_s for alarm in clock.set] == [5.0]
    clock.ring()
    assert await done(tasks) == [True, True, True]
    assert clock.set == []


async def test_a_moment_that_has_come_is_not_waited_for() -> None:
    clock = Clock(now_s=9.0)
    tasks = await started(Ticker(clock), 9.0, 8.0)
    assert await done(tasks) == [True, True]
    assert clock.alarms == []


async def test_waking_all_leaves_no_timer() -> None:
    clock = Clock()
    ticker = Ticker(clock)
    tasks = await started(ticker, 5.0, 3.0)
    ticker.wake_all()
    assert await done(tasks) == [True, True]
    assert clock.set == []


async def test_who_leaves_is_forgotten() -> None:
    clock = Clock()
    tasks = await started(Ticker(clock), 5.0, 5.0)
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    clock.ring()
    assert await done(tasks) == [True, True]
