"""Group commit: all writes that wait are committed in one transaction, by one pinned thread."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Self, TypeVar

from turnwire.pipelines.protocol.errors import ApiError, Overloaded

_log = logging.getLogger(__name__)

Write = TypeVar("Write")
Result = TypeVar("Result")

MAX_GROUP = 512
"""Writes in one transaction at most: bounds how long the first of them waits."""


class GroupCommit(Generic[Write, Result]):
    """A block that owns the writer thread and the one task that feeds it.

    `commit` runs in the thread: it commits a list of writes in one transaction and returns their
    results in order, an ApiError for one that is refused. If it raises, nothing has changed: an
    ApiError is the answer to all, after anything else they are tried one by one. `submit` returns
    after the commit. Leaving the block commits what is queued.
    """

    def __init__(
        self,
        commit: Callable[[list[Write]], Sequence[Result | ApiError]],
        max_queued: int,
        name: str,
    ) -> None:
        self._commit = commit
        self._max_queued = max_queued
        self._name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._queue: list[tuple[Write, asyncio.Future[Result]]] = []
        self._more = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=self._name)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        self._more.set()
        try:
            if self._task is not None:
                await self._task
        finally:
            self._thread.shutdown(wait=False)

    @property
    def queued(self) -> int:
        return len(self._queue)

    async def submit(self, write: Write) -> Result:
        """Commit `write`. Raises Overloaded when too many wait, or when the database is away."""
        if self._closing or len(self._queue) >= self._max_queued:
            raise Overloaded(f"{self._name}: {len(self._queue)} writes wait already")
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.append((write, answer))
        self._more.set()
        return await answer

    async def _run(self) -> None:
        while True:
            await self._more.wait()
            while self._queue:
                group, self._queue = self._queue[:MAX_GROUP], self._queue[MAX_GROUP:]
                await self._commit_group(group)
            if self._closing:
                return
            self._more.clear()

    async def _commit_group(self, group: list[tuple[Write, asyncio.Future[Result]]]) -> None:
        loop = asyncio.get_running_loop()
        writes = [write for write, _ in group]
        try:
            results = await loop.run_in_executor(self._thread, self._commit, writes)
        except ApiError as error:
            _log.error("%s.commit_refused: %s", self._name, error)
            for _, answer in group:
                self._refuse(answer, error)
            return
        except Exception as error:
            if len(group) > 1:
                # One bad write must not take the others of its group with it.
                for one in group:
                    await self._commit_group([one])
                return
            # The text of a database error may quote what is stored.
            _log.error("%s.commit_failed: %s", self._name, type(error).__name__)
            refusal = Overloaded(f"{self._name} cannot write at the moment")
            self._refuse(group[0][1], refusal)
            return
        for (_, answer), result in zip(group, results, strict=True):
            if isinstance(result, ApiError):
                self._refuse(answer, result)
            elif not answer.done():
                answer.set_result(result)

    def _refuse(self, answer: asyncio.Future[Result], error: ApiError) -> None:
        if not answer.done():
            answer.set_exception(error)
