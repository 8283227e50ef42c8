"""What a gateway replica is built of: channels to the pools, warm connection actors, the port."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from turnwire.actors.channel import Listener, UnaryHandler
from turnwire.actors.connection import ConnectionActor
from turnwire.actors.deployment_keys import DeploymentKeys
from turnwire.actors.lease import ConnectionPool
from turnwire.actors.lease_ray import RayActors
from turnwire.actors.peers import Peers
from turnwire.actors.registration import Registration
from turnwire.actors.routing_ref import RoutingRef
from turnwire.cluster import process
from turnwire.cluster.place import Place
from turnwire.cluster.settings import Settings
from turnwire.gateway.gateway import Gateway
from turnwire.gateway.turns import Ports
from turnwire.pipelines import messages as m
from turnwire.pipelines.sealing import Keyring

SETTLE_S = 3.0
"""How long the last usage records may take to reach billing."""


class PlacedConnectionActor(ConnectionActor):
    """A connection actor in a process of its own."""

    # Any: handed on as it came.
    def __init__(self, place: Place, *arguments: Any) -> None:  # noqa: ANN401
        process.prepare(place, "connections")
        super().__init__(*arguments)


class GatewayParts:
    """`start`, then `drain` once. Parts end in the reverse order of their making.

    Several gateways of a node ask each other for conversations, each as a worker that is registered
    with routing.
    """

    def __init__(
        self, id: str, node: str, place: Place, settings: Settings, routing: RoutingRef
    ) -> None:
        self._id = id
        self._routing = routing
        self._settings = settings
        self._place = place
        self._node = node
        self._peers = Peers(
            node,
            routing,
            settings.channel,
            settings.safety,
            settings.billing,
            on_deleted=self._forget,
            own_id=id,
        )
        self._stores = False
        """Has storage been there?"""
        self._keyring = Keyring()
        self._keys = DeploymentKeys(routing, self._keyring)
        self._connections = ConnectionPool(
            RayActors(PlacedConnectionActor, self._arguments, self._keyring.packed),
            node,
            settings.connections,
            settings.channel,
            max(1, settings.connections.max_actors // settings.gateway.replicas),
            self._all_models_there,
            self._peers.other_gateways,
        )
        ports = Ports(
            router=self._peers.router,
            engine=self._peers.engine,
            safety=self._peers.safety,
            store=self._peers.store,
            background=self._peers.background,
            ledger=self._peers.ledger,
            leases=self._connections,
            models=self._peers.models,
            ready=self._ready,
            keyring=self._keyring,
        )
        sharers = place.folder if settings.gateway.replicas > 1 else ""
        self._gateway = Gateway(
            settings.gateway, settings.safety, ports, sharers, settings.ablation
        )
        self._blocks = AsyncExitStack()

    async def start(self) -> tuple[str, int]:
        """Raises OSError when the port cannot be had."""
        await self._blocks.enter_async_context(self._peers)
        await self._blocks.enter_async_context(self._keys)
        await self._blocks.enter_async_context(self._connections)
        if self._settings.gateway.replicas > 1:
            await self._answer_others()
        address = await self._gateway.start()
        self._blocks.push_async_callback(self._gateway.close)
        return address

    async def drain(self) -> None:
        """Turns end, records are settled, then everything closes."""
        try:
            await self._gateway.drain()
            await self._peers.ledger.drain(SETTLE_S)
        finally:
            await self._blocks.aclose()

    async def _answer_others(self) -> None:
        channel = self._settings.channel
        unary: dict[type[m.Message], UnaryHandler] = {
            m.FindContent: lambda command, _: self._connections.find_content(command)
        }
        listener = Listener(self._id, self._node, unary, {}, channel)
        endpoint = await listener.start(folder=Path(self._place.folder))
        self._blocks.push_async_callback(listener.close)
        worker = m.Worker(endpoint, "gateway")
        await self._blocks.enter_async_context(
            Registration(worker, listener.secret, self._routing, lambda: (0, 0), channel)
        )

    def _forget(self, gone: m.Deleted) -> None:
        self._connections.forget(gone.tenant, gone.response_id, gone.conversation_id)

    def _ready(self) -> bool:
        """Could a turn be served?"""
        pools = ["inference"]
        if self._settings.safety.policy == "block":
            pools.append("safety")
        # Turns store by default. Later its absence is no reason to turn away those that do not.
        self._stores = self._stores or self._peers.there("storage")
        return self._stores and self._connections.ready > 0 and all(map(self._peers.there, pools))

    def _all_models_there(self) -> bool:
        """Actors started from now on load every tokenizer before their first turn."""
        return len(self._peers.models()) >= len(self._settings.models)

    def _arguments(self, actor_id: str) -> tuple[object, ...]:
        return (
            self._place,
            actor_id,
            self._node,
            self._place.folder,
            self._settings.connections,
            self._settings.channel,
            process.tcp_host(self._place),
            self._peers.models(),
        )
