"""A worker's place in the registry: registered, attached, its load reported, while it lives.

Routing keeps nothing over a restart: when its channel is lost, the worker registers again.
"""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from turnwire.actors.ask import ask, forget
from turnwire.actors.backoff import Backoff
from turnwire.actors.channel import Channel
from turnwire.actors.owned_tasks import OwnedTasks
from turnwire.actors.routing_ref import RoutingDoor
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings
from turnwire.pipelines.protocol.errors import ApiError

_log = logging.getLogger(__name__)

REPORT_S = 0.1
"""The load is looked at so often, and sent when it has changed."""


class Registration:
    """A block: inside it the worker is registered, or about to be; at its end it is gone.

    `load` gives commands running and waiting, now.
    """

    def __init__(
        self,
        worker: m.Worker,
        secret: bytes,
        routing: RoutingDoor,
        load: Callable[[], tuple[int, int]],
        channel: ChannelSettings,
        backoff: Backoff | None = None,
    ) -> None:
        self._worker = worker
        self._secret = secret
        self._routing = routing
        self._load = load
        self._settings = channel
        self._backoff = backoff or Backoff()
        self._attached = asyncio.Event()
        self._channel: Channel | None = None
        self._tasks = OwnedTasks("registration")

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._tasks.close()

    async def attached(self) -> None:
        """Waits until routing knows the worker."""
        await self._attached.wait()

    async def drain(self) -> None:
        """Tell routing to send no new turns here; what runs goes on. Said again after a restart."""
        self._worker = msgspec.structs.replace(self._worker, draining=True)
        channel = self._channel
        if channel is not None and not channel.lost:
            try:
                await ask(channel, m.Attach(self._worker), m.Done)
            except ApiError:
                if not channel.lost:
                    raise

    async def _run(self) -> None:
        while True:
            try:
                await self._hold_one_channel()
                self._backoff.reset()
            except ApiError as error:
                _log.warning("registration.failed %s: %s", self._worker.endpoint.id, error)
            self._attached.clear()
            await asyncio.sleep(self._backoff.next_s())

    async def _hold_one_channel(self) -> None:
        """Returns when a channel that was attached is lost; raises when none could be."""
        lost = asyncio.Event()
        endpoint, secret = await self._routing.register(self._worker, self._secret)
        channel = await Channel.connect(
            endpoint,
            self._settings,
            node=self._worker.endpoint.node,
            secret=secret,
            on_lost=lambda _: lost.set(),
        )
        try:
            self._channel = channel
            await ask(channel, m.Attach(self._worker), m.Done)
            self._attached.set()
            await self._report_until(lost, channel)
        finally:
            self._channel = None
            await channel.close()

    async def _report_until(self, lost: asyncio.Event, channel: Channel) -> None:
        told = (0, 0)
        while not lost.is_set():
            found = self._load()
            if found != told:
                report = m.Report(self._worker.endpoint.id, *found)
                channel.call(report).add_done_callback(forget)
                told = found
            try:
                async with asyncio.timeout(REPORT_S):
                    await lost.wait()
            except TimeoutError:
                continue
