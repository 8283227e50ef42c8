"""Group commit: one transaction for all that wait, and each gets its own answer."""

import asyncio
import threading

import pytest

from turnwire.actors.group_commit import GroupCommit
from turnwire.pipelines.protocol.errors import ApiError, NotFound, Overloaded


class Journal:
    """Commits lists of numbers; holds the first commit until it is let go."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.go = threading.Event()
        self.entered = threading.Event()
        self.threads: set[str] = set()
        self.bad: dict[int, Exception] = {}
        self.refused: dict[int, ApiError] = {}

    def commit(self, writes: list[int]) -> list[str | ApiError]:
        self.entered.set()
        assert self.go.wait(10)
        self.threads.add(threading.current_thread().name)
        for write in writes:
            if write in self.bad:
                raise self.bad[write]
        self.groups.append(writes)
        return [self.refused.get(write) or f"done {write}" for write in writes]


async def submitted(
    group: GroupCommit[int, str], journal: Journal, numbers: list[int]
) -> list[str | BaseException]:
    """The first number is being committed while the others queue up."""
    first = asyncio.create_task(group.submit(numbers[0]))
    await asyncio.to_thread(journal.entered.wait, 10)
    rest = [asyncio.create_task(group.submit(number)) for number in numbers[1:]]
    await asyncio.sleep(0)
    journal.go.set()
    return await asyncio.gather(first, *rest, return_exceptions=True)


async def test_all_writes_that_wait_share_one_transaction_in_one_thread() -> None:
    journal = Journal()
    async with GroupCommit(journal.commit, 10, "test") as group:
        answers = await submitted(group, journal, [1, 2, 3, 4])
    assert answers == ["done 1", "done 2", "done 3", "done 4"]
    assert journal.groups == [[1], [2, 3, 4]]
    assert len(journal.threads) == 1


async def test_a_bad_write_takes_no_other_with_it() -> None:
    journal = Journal()
    journal.refused = {3: NotFound("no")}
    journal.bad = {4: ValueError("secret")}
    async with GroupCommit(journal.commit, 10, "test") as group:
        answers = await submitted(group, journal, [1, 2, 3, 4, 5])
    assert answers[:2] + answers[4:] == ["done 1", "done 2", "done 5"]
    assert isinstance(answers[2], NotFound)
    assert isinstance(answers[3], Overloaded)
    assert "secret" not in str(answers[3])


async def test_what_refuses_the_whole_transaction_is_the_answer_to_all_and_tried_once() -> None:
    journal = Journal()
    journal.bad = {3: Overloaded("the database is away")}
    async with GroupCommit(journal.commit, 10, "test") as group:
        answers = await submitted(group, journal, [1, 2, 3])
    assert [str(answer) for answer in answers[1:]] == ["the database is away"] * 2
    assert journal.groups == [[1]]


async def test_a_full_queue_refuses_by_name() -> None:
    journal = Journal()
    async with GroupCommit(journal.commit, 2, "test") as group:
        answers = await submitted(group, journal, [1, 2, 3, 4])
    assert answers[:3] == ["done 1", "done 2", "done 3"]
    assert isinstance(answers[3], Overloaded)


async def test_leaving_the_block_commits_what_is_queued() -> None:
    journal = Journal()
    async with GroupCommit(journal.commit, 10, "test") as group:
        writes = [asyncio.create_task(group.submit(number)) for number in range(3)]
        await asyncio.sleep(0)
        journal.go.set()
    assert await asyncio.gather(*writes) == ["done 0", "done 1", "done 2"]
    with pytest.raises(Overloaded):
        await group.submit(9)


async def test_a_caller_that_goes_away_leaves_the_others_their_answers() -> None:
    journal = Journal()
    async with GroupCommit(journal.commit, 10, "test") as group:
        writes = [asyncio.create_task(group.submit(number)) for number in range(3)]
        await asyncio.to_thread(journal.entered.wait, 10)
        writes[0].cancel()
        journal.go.set()
        rest = await asyncio.gather(*writes[1:])
    assert rest == ["done 1", "done 2"]
