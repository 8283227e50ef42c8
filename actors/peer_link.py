"""One persistent channel from a gateway to one worker: dialled in the background, and redialled."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from turnwire.actors.backoff import Backoff
from turnwire.actors.channel import Channel
from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import ApiError, Overloaded

_log = logging.getLogger(__name__)

Dial = Callable[[m.Endpoint, Callable[[Channel], None]], Awaitable[Channel]]
"""Connect to an endpoint; the callback hears of the channel's loss."""


class PeerLink:
    """`run` is the task of its owner; it ends once the link is retired and idle, or lost then."""

    def __init__(
        self,
        worker: m.Worker,
        dial: Dial,
        on_up: Callable[["PeerLink"], None],
        on_down: Callable[["PeerLink"], None],
    ) -> None:
        self.worker = worker
        self.ongoing = 0
        """Streams of ours that run there."""
        self.retired = False
        self._dial = dial
        self._on_up = on_up
        self._on_down = on_down
        self._channel: Channel | None = None
        self._changed = asyncio.Event()

    @property
    def id(self) -> str:
        return self.worker.endpoint.id

    @property
    def live(self) -> bool:
        """Can a command be sent right now?"""
        return self._channel is not None and not self._channel.lost

    @property
    def usable(self) -> bool:
        """May new work be sent there?"""
        return self.live and not self.retired and not self.worker.draining

    @property
    def channel(self) -> Channel:
        """Raises Overloaded while there is none."""
        if self._channel is None or self._channel.lost:
            raise Overloaded(f"{self.id} cannot be reached")
        return self._channel

    async def ready(self, within_s: float) -> Channel:
        """The channel as soon as there is one. Raises Overloaded."""
        try:
            async with asyncio.timeout(within_s):
                while not self.live and not self.retired:
                    await self._changed.wait()
        except TimeoutError as error:
            raise Overloaded(f"{self.id} cannot be reached") from error
        return self.channel

    def retire(self) -> None:
        """The worker left: nothing new goes there, and what runs may end."""
        self.retired = True
        self._notify()

    def begin(self) -> None:
        self.ongoing += 1

    def end(self) -> None:
        self.ongoing -= 1
        if self.retired and not self.ongoing:
            self._notify()

    async def run(self) -> None:
        backoff = Backoff()
        while not self.retired:
            try:
                channel = await self._dial(self.worker.endpoint, self._lost)
            except ApiError as error:
                _log.warning("peer.unreachable %s: %s", self.id, error)
                await self._pause(backoff.next_s())
                continue
            try:
                backoff.reset()
                self._channel = channel
                self._notify()
                if self.live:
                    self._on_up(self)
                await self._until(self._is_over)
            finally:
                await channel.close()
            await self._pause(backoff.next_s())

    def _is_over(self) -> bool:
        return not self.live or (self.retired and not self.ongoing)

    def _lost(self, _channel: Channel) -> None:
        self._notify()
        self._on_down(self)

    async def _pause(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._until(lambda: self.retired)
        except TimeoutError:
            return

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
