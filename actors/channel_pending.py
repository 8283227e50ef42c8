"""What a caller holds while the other side works: the future of a call, the batches of a stream."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from turnwire.pipelines.messages import Message
from turnwire.pipelines.protocol.errors import ApiError

Abandon = Callable[[int], None]


class Reply(asyncio.Future[Message]):
    """The answer to one call. Cancelling it cancels the handler at the other side."""

    def __init__(self, stream_id: int, abandon: Abandon) -> None:
        super().__init__()
        self._stream_id = stream_id
        self._abandon = abandon

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ANN401 -- asyncio's own signature
        cancelled = super().cancel(msg)
        if cancelled:
            self._abandon(self._stream_id)
        return cancelled

    def arrived(self, message: Message) -> None:
        if not self.done():
            self.set_result(message)

    def fail(self, error: ApiError) -> None:
        if not self.done():
            self.set_exception(error)


class Stream:
    """The answers to one stream command, in batches: each is all that has arrived, never empty.

    `async with` it, or `aclose` it: that cancels the handler at the other side unless it has ended.
    Iterating raises the ApiError the handler raised, behind everything it produced before.
    """

    def __init__(
        self, stream_id: int, window: int, abandon: Abandon, grant: Callable[[int, int], None]
    ) -> None:
        self._stream_id = stream_id
        self._abandon = abandon
        self._grant = grant
        self._arrived: list[Message] = []
        self._credit = window
        self._taken = 0
        self._grant_from = max(1, window // 2)
        self._over = False
        self._error: ApiError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Message]:
        while not self._arrived:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._over:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        batch, self._arrived = self._arrived, []
        if not self._over:
            self._took(len(batch))
        return batch

    async def aclose(self) -> None:
        """Leave the stream; what has not been taken is dropped. Never waits for the other side."""
        self._arrived = []
        self._error = None
        if not self._over:
            self._over = True
            self._abandon(self._stream_id)
        self._wake()

    # --- for the channel ------------------------------------------------------------------------

    def arrived(self, messages: list[Message]) -> bool:
        """False when the other side sent more than it was granted."""
        self._credit -= len(messages)
        if self._credit < 0:
            return False
        self._arrived += messages
        self._wake()
        return True

    def finish(self) -> None:
        self._over = True
        self._wake()

    def fail(self, error: ApiError) -> None:
        self._error = error
        self.finish()

    def _took(self, count: int) -> None:
        """Grant what was taken, half a window at a time: a grant is a frame."""
        self._taken += count
        if self._taken >= self._grant_from:
            self._credit += self._taken
            self._grant(self._stream_id, self._taken)
            self._taken = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
