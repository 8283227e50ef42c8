"""All a gateway's turns need of other processes, as one block that owns the channels to them.

It watches the registry, keeps one channel to every live worker, and offers the ports of a turn.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from turnwire.actors.backoff import Backoff
from turnwire.actors.channel import Channel
from turnwire.actors.owned_tasks import OwnedTasks
from turnwire.actors.peer_background import BackgroundPort
from turnwire.actors.peer_link import PeerLink
from turnwire.actors.peer_ports import EnginePort, PoolPort, RouterPort, SafetyPort, StorePort
from turnwire.actors.peer_registry import PeerRegistry
from turnwire.actors.routing_ref import RoutingDoor
from turnwire.actors.settling import LedgerPort
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import BillingSettings, ChannelSettings, SafetySettings
from turnwire.pipelines.protocol.errors import ApiError

_log = logging.getLogger(__name__)


def _nobody_asked(_: object) -> None:
    pass


class Peers:
    """`async with Peers(...) as peers:`, then its ports `router`, `engine`, `safety`, `store`,
    `background` and `ledger`. Drain the ledger before leaving the block: what it still holds then
    is lost.

    `own_id`: of the gateway it is for, where it is registered itself.
    `on_invalid` is told the id of each worker whose routes no longer hold, when that is heard;
    `on_deleted` each response and conversation that any gateway has deleted.
    """

    def __init__(
        self,
        node: str,
        routing: RoutingDoor,
        channel: ChannelSettings,
        safety: SafetySettings,
        billing: BillingSettings,
        on_invalid: Callable[[str], None] = _nobody_asked,
        on_deleted: Callable[[m.Deleted], None] = _nobody_asked,
        rng: random.Random | None = None,
        own_id: str = "",
    ) -> None:
        self._own_id = own_id
        self._on_deleted = on_deleted
        self._node = node
        self._routing = routing
        self._settings = channel
        self._tasks = OwnedTasks("peers")
        rng = rng or random.Random(secrets.randbits(64))
        self._registry = PeerRegistry(self._dial, self._tasks, rng, self._up, on_invalid)
        within_s = channel.connect_s
        self.router = RouterPort(self._registry, within_s)
        self.engine = EnginePort(self._registry, within_s)
        screening = PoolPort(self._registry, "safety", within_s)
        self.safety = SafetyPort(screening, safety.deadline_s)
        storage = PoolPort(self._registry, "storage", within_s)
        self.store = StorePort(storage)
        self.background = BackgroundPort(storage)
        billing_pool = PoolPort(self._registry, "billing", within_s)
        self.ledger = LedgerPort(billing_pool, billing.max_backlog)

    async def __aenter__(self) -> Self:
        self._tasks.start(self._watch())
        self._tasks.start(self.ledger.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._tasks.close()

    async def synced(self) -> None:
        """Waits until the registry has been heard once."""
        await self.router.synced.wait()

    def there(self, pool: str) -> bool:
        """Can a command be sent to some worker of the pool right now?"""
        link = self._registry.next_of(pool)
        return link is not None and link.usable

    def models(self) -> tuple[m.Model, ...]:
        """What the inference workers that are there serve, each name once."""
        return self._registry.models()

    def other_gateways(self) -> list[Channel]:
        """Channels to those on the same node that serve beside this one."""
        return self._registry.channels("gateway")

    def _near(self, registry: m.Registry) -> m.Registry:
        """Without those that a gateway never talks to: itself, and gateways of other nodes."""
        workers = tuple(
            worker
            for worker in registry.workers
            if worker.pool != "gateway"
            or (worker.endpoint.node == self._node and worker.endpoint.id != self._own_id)
        )
        return msgspec.structs.replace(registry, workers=workers)

    async def _watch(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._watch_one_life(backoff)
            except ApiError as error:
                _log.warning("routing.lost: %s", error)
            await asyncio.sleep(backoff.next_s())

    async def _watch_one_life(self, backoff: Backoff) -> None:
        """Until routing is lost. What is known then stays in use."""
        endpoint, secret = await self._routing.door()
        channel = await Channel.connect(endpoint, self._settings, node=self._node, secret=secret)
        new_life = True
        try:
            async with channel.stream(m.Watch()) as registries:
                async for batch in registries:
                    registry = batch[-1]
                    assert isinstance(registry, m.Registry), "a watch streams registries"
                    self._registry.apply(self._near(registry), new_life=new_life)
                    self.router.routing = channel
                    self.router.synced.set()
                    new_life = False
                    backoff.reset()
        finally:
            self.router.routing = None
            await channel.close()

    def _up(self, link: PeerLink) -> None:
        if link.worker.pool == "storage":
            self._tasks.start(self._hear_deletes(link.channel))

    async def _hear_deletes(self, channel: Channel) -> None:
        """Until the channel is lost; the next one tells again what was deleted lately."""
        try:
            async with channel.stream(m.WatchDeletes()) as batches:
                async for batch in batches:
                    for deleted in batch:
                        assert isinstance(deleted, m.Deleted)
                        self._on_deleted(deleted)
        except ApiError as error:
            _log.info("storage.deletes_unheard: %s", error)

    async def _dial(self, endpoint: m.Endpoint, on_lost: Callable[[Channel], None]) -> Channel:
        secret = b""
        if endpoint.node != self._node:
            secret = await self._routing.secret_of(endpoint.id)
        return await Channel.connect(
            endpoint, self._settings, node=self._node, secret=secret, on_lost=on_lost
        )
