"""Who generates and who waits."""

import asyncio
from dataclasses import dataclass, field

import pytest

from turnwire.actors.engines.simulated_slots import Slots
from turnwire.pipelines.protocol.errors import Overloaded


@dataclass
class Visitors:
    """Each takes a place and keeps it until it is told to go."""

    slots: Slots
    entered: list[str] = field(default_factory=list)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    leave: dict[str, asyncio.Event] = field(default_factory=dict)

    def come(self, *names: str) -> None:
        for name in names:
            self.leave[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._visit(name))

    async def _visit(self, name: str) -> None:
        async with self.slots.place():
            self.entered.append(name)
            await self.leave[name].wait()

    async def counts(self) -> tuple[int, int]:
        for _ in range(20):
            await asyncio.sleep(0)
        return self.slots.ongoing, self.slots.queued


async def test_places_are_given_in_order_and_the_queue_is_bounded() -> None:
    visitors = Visitors(Slots(max_ongoing=1, max_queued=2))
    visitors.come("a", "b", "c", "d")
    assert await visitors.counts() == (1, 2)
    assert isinstance(visitors.tasks["d"].exception(), Overloaded)
    visitors.tasks["b"].cancel()
    assert await visitors.counts() == (1, 1)
    visitors.come("e")
    for name in "ace":
        visitors.leave[name].set()
    await asyncio.gather(*(visitors.tasks[name] for name in "ace"))
    assert visitors.entered == ["a", "c", "e"]
    assert await visitors.counts() == (0, 0)


async def test_nobody_overtakes_the_queue() -> None:
    visitors = Visitors(Slots(max_ongoing=1, max_queued=2))
    visitors.come("a", "b")
    assert await visitors.counts() == (1, 1)
    visitors.leave["a"].set()
    visitors.come("late")
    assert await visitors.counts() == (1, 1)
    assert visitors.entered == ["a", "b"]
    for name in ("b", "late"):
        visitors.leave[name].set()
    await asyncio.gather(*visitors.tasks.values())
    assert visitors.entered == ["a", "b", "late"]


async def test_a_place_given_in_the_moment_its_taker_leaves_is_not_lost() -> None:
    slots = Slots(max_ongoing=1, max_queued=1)
    visitors = Visitors(slots)
    async with slots.place():
        visitors.come("a")
        assert await visitors.counts() == (1, 1)
    visitors.tasks["a"].cancel()
    with pytest.raises(asyncio.CancelledError):
        await visitors.tasks["a"]
    assert visitors.entered == []
    assert await visitors.counts() == (0, 0)


async def test_closing_refuses_those_who_wait_and_those_who_come() -> None:
    visitors = Visitors(Slots(max_ongoing=1, max_queued=2))
    visitors.come("a", "b")
    assert await visitors.counts() == (1, 1)
    visitors.slots.close()
    visitors.come("c")
    assert await visitors.counts() == (1, 0)
    visitors.leave["a"].set()
    ended = await asyncio.gather(*visitors.tasks.values(), return_exceptions=True)
    assert [type(error) for error in ended] == [type(None), Overloaded, Overloaded]
    assert await visitors.counts() == (0, 0)
