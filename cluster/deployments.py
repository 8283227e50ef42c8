"""The replicas Serve supervises: each builds one plain actor, starts it, and drains it at the end.

Serve creates, places, health-checks and replaces them; no turn passes through Serve. Actor modules
are imported where they are built, so that a process holds only what it needs. Serve awaits
`__init__` and `__del__` on the actor's own event loop.
"""

from contextlib import AsyncExitStack
from pathlib import Path

from ray import serve

from turnwire.actors.registration import Registration
from turnwire.actors.routing_ref import RoutingRef
from turnwire.cluster import pool_actors, process
from turnwire.cluster.place import Place
from turnwire.cluster.settings import Settings
from turnwire.pipelines.config import BillingSettings, ChannelSettings

ROUTING = "routing"


def prepare_replica(place: Place) -> tuple[str, str]:
    """The replica's id and its node's."""
    context = serve.get_replica_context()
    node = process.prepare(place, f"{context.app_name}-{context.rank.rank}")
    return f"{context.app_name}-{context.replica_tag}", node


def routing() -> RoutingRef:
    """The control plane, found anew for every call, so that a replaced replica is found."""
    return RoutingRef(lambda: serve.get_app_handle(ROUTING))


class Pool:
    """One worker of a pool: registered with routing as long as it lives."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, place: Place, section: pool_actors.Section, channel: ChannelSettings
    ) -> None:
        worker_id, node = prepare_replica(place)
        if isinstance(section, BillingSettings):
            process.give_way()  # no turn waits for it
        self._drain_s = section.drain_s
        rank = serve.get_replica_context().rank.rank
        self._actor = pool_actors.build(section, worker_id, node, channel, rank)
        self._blocks = AsyncExitStack()
        worker = await self._actor.start(Path(place.folder), process.tcp_host(place))
        self._blocks.push_async_callback(self._actor.close)
        self._registration = await self._blocks.enter_async_context(
            Registration(worker, self._actor.secret, routing(), self._actor.load, channel)
        )
        process.loaded()

    async def check_health(self) -> None:
        """Serve asks on this loop: one that is wedged does not answer in time."""
        if isinstance(self._actor, pool_actors.Breakable):
            self._actor.check_health()

    async def __del__(self) -> None:
        """No new turns; those that run may end; then close."""
        try:
            await self._registration.drain()
            if isinstance(self._actor, pool_actors.LongRunning):
                await self._actor.drain(self._drain_s)
        finally:
            await self._blocks.aclose()


class Routing:
    """The registry. Its methods are the control plane: Serve calls, never on a turn's path."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, place: Place, channel: ChannelSettings, models: tuple[str, ...]
    ) -> None:
        from turnwire.actors.routing import RoutingActor

        routing_id, node = prepare_replica(place)
        self._actor = RoutingActor(routing_id, node, channel, models)
        await self._actor.start(Path(place.folder), process.tcp_host(place))

    async def register(self, worker: bytes, secret: bytes) -> tuple[bytes, bytes]:
        return await self._actor.register(worker, secret)

    async def door(self) -> tuple[bytes, bytes]:
        return await self._actor.door()

    async def secret_of(self, worker_id: str) -> bytes:
        return await self._actor.secret_of(worker_id)

    async def keys(self) -> bytes:
        return await self._actor.keys()

    async def keep_keys(self, keys: bytes, anew: bool = False) -> None:
        await self._actor.keep_keys(keys, anew=anew)

    async def check_health(self) -> None:
        """As for a pool."""

    async def __del__(self) -> None:
        await self._actor.close()


class Gateway:
    """The port clients connect to, opened by the replica itself."""

    async def __init__(self, place: Place, settings: Settings) -> None:  # type: ignore[misc]
        from turnwire.cluster.gateway_parts import GatewayParts

        gateway_id, node = prepare_replica(place)
        self._parts = GatewayParts(gateway_id, node, place, settings, routing())
        self._address = await self._parts.start()
        process.loaded()

    async def address(self) -> tuple[str, int]:
        return self._address

    async def check_health(self) -> None:
        """As for a pool."""

    async def __del__(self) -> None:
        await self._parts.drain()
