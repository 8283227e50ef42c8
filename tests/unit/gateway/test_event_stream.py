"""How long a follower of a response waits for a storage that is away."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from scripted_ports import NoBackground
from turn_worlds import ManualClock

from turnwire.gateway.event_stream import followed
from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import Overloaded

FOLLOW = m.FollowBackground("red", "resp_1")


class LostStorage(NoBackground):
    """Each time it is followed it says one thing more, if it is there; then it is lost."""

    def __init__(self, lost: Callable[[], None], answers: int) -> None:
        self.asked: list[int] = []
        self._lost = lost
        self._answers = answers

    @asynccontextmanager
    async def follow(
        self, command: m.FollowBackground
    ) -> AsyncIterator[AsyncIterator[m.BackgroundEvents]]:
        self.asked.append(command.after)
        yield self._pages(command.after)

    async def _pages(self, after: int) -> AsyncIterator[m.BackgroundEvents]:
        if len(self.asked) <= self._answers:
            yield m.BackgroundEvents((b"{}",), after + 1)
        self._lost()
        raise Overloaded("the storage went away")


async def heard(storage: LostStorage, clock: ManualClock, patience_s: float) -> int:
    """How many pages, before it is given up."""
    pages = 0
    try:
        async for _ in followed(storage, FOLLOW, patience_s, clock.now_s):
            pages += 1
    except Overloaded:
        return pages
    raise AssertionError("a storage that does not come back is given up")


async def test_a_response_that_was_silent_for_long_is_followed_again() -> None:
    clock = ManualClock()

    def lost() -> None:
        # What it said last was long ago when it goes, and once it is away time passes as well.
        clock.at_s += 100

    storage = LostStorage(lost, answers=3)
    assert await heard(storage, clock, patience_s=30) == 3
    assert storage.asked == [-1, 0, 1, 2]


async def test_a_storage_that_was_never_there_is_not_waited_for() -> None:
    storage = LostStorage(lambda: None, answers=0)
    assert await heard(storage, ManualClock(), patience_s=30) == 0
    assert storage.asked == [-1]
