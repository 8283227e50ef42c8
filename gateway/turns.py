"""What the gateway is handed to make turns with, and what all its connections share."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from turnwire.gateway.auth import Door
from turnwire.gateway.observation import Observation
from turnwire.pipelines import messages as m
from turnwire.pipelines.ablation import ablated
from turnwire.pipelines.config import AblationSettings, GatewaySettings, SafetySettings
from turnwire.pipelines.limits import ByteBudget, Places, Settlements
from turnwire.pipelines.ports import (
    BackgroundStore,
    Connection,
    Engine,
    Ledger,
    Router,
    Safety,
    Store,
)
from turnwire.pipelines.protocol.errors import Overloaded, RateLimitExceeded
from turnwire.pipelines.routes import Routes
from turnwire.pipelines.sealing import Keyring
from turnwire.pipelines.services import Services, TurnLimits
from turnwire.pipelines.turn_request import Memory

ABLATION_HEADER = "x-turnwire-ablation"


class LeasedConnection(Connection, Protocol):
    id: str


class Leases(Protocol):
    """Where connections come from. Both raise Overloaded when none is to be had in time."""

    def lease(self, tenant: str) -> AbstractAsyncContextManager[LeasedConnection]:
        """A new connection, its own until the block ends."""

    def shared(self, tenant: str) -> AbstractAsyncContextManager[LeasedConnection]:
        """A connection that HTTP requests of the tenant share."""

    def forget(self, tenant: str, response_id: str, conversation_id: str | None = None) -> None:
        """No connection of the tenant here continues from that response any more, or holds
        anything for that conversation."""

    @property
    def index_bytes(self) -> int:
        """What is kept of conversations, to find them by their content."""

    @property
    def prompt_checks(self) -> tuple[int, int]:
        """Prompts that were rendered anew to be compared, and how many of them differed."""


class Storage(Store, Protocol):
    """Responses and conversations as HTTP clients use them. All raise NotFound."""

    async def fetch(self, command: m.Fetch) -> m.Stored: ...
    async def delete(self, command: m.Delete) -> None: ...
    async def conversation(
        self,
        command: m.CreateConversation | m.FetchConversation | m.UpdateConversation | m.DeleteItem,
    ) -> m.Conversation: ...
    async def items(self, command: m.ListItems | m.FetchItem) -> m.ItemPage: ...
    async def change(self, command: m.AddItems | m.DeleteConversation) -> None: ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside, as roles. `models`: all that is served now; `ready`: could a turn be served?"""

    router: Router
    engine: Engine
    safety: Safety
    store: Storage
    background: BackgroundStore
    ledger: Ledger
    leases: Leases
    models: Callable[[], tuple[m.Model, ...]]
    ready: Callable[[], bool]
    keyring: Keyring = field(default_factory=Keyring)


class SystemClock:
    """Time as it is."""

    def now_s(self) -> float:
        return time.monotonic()

    def today_s(self) -> int:
        return int(time.time())

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class Client(Protocol):
    """A connected client with turns: told of time and of the server's end."""

    def tick(self, now_s: float) -> None: ...
    def drain(self) -> None:
        """Finish what runs, take nothing new, then go."""

    def expired(self) -> None:
        """The time to finish is over."""


@dataclass
class Clients:
    """All clients with turns or a socket; `gone` is set while there are none."""

    gone: asyncio.Event = field(default_factory=asyncio.Event)
    draining: bool = False
    _clients: set[Client] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gone.set()

    def enter(self, client: Client) -> None:
        self._clients.add(client)
        self.gone.clear()
        if self.draining:
            client.drain()

    def leave(self, client: Client) -> None:
        self._clients.discard(client)
        if not self._clients:
            self.gone.set()

    def tick(self, now_s: float) -> None:
        for client in tuple(self._clients):
            client.tick(now_s)

    def drain(self) -> None:
        self.draining = True
        for client in tuple(self._clients):
            client.drain()

    def expired(self) -> None:
        for client in tuple(self._clients):
            client.expired()


class Serving:
    """What all connections of one gateway share."""

    def __init__(
        self,
        settings: GatewaySettings,
        safety: SafetySettings,
        ports: Ports,
        door: Door,
        ablation: AblationSettings,
    ) -> None:
        self.settings = settings
        self.ports = ports
        self.door = door
        self._ablation = ablation
        self.clock = SystemClock()
        self.inbound = ByteBudget(settings.inbound_bytes)
        self.places = Places(settings.max_connections)
        self.clients = Clients()
        self.observation = Observation(
            lambda: ports.leases.index_bytes, lambda: ports.leases.prompt_checks
        )
        limits = TurnLimits(
            policy=safety.policy,
            screen_s=safety.deadline_s,
            turn_s=settings.turn_s,
            worker_wait_s=settings.worker_wait_s,
            heartbeat_s=settings.session.heartbeat_s,
            reasoning_events=settings.reasoning_events,
            echo_schema=settings.echo_schema,
            trim_echo=settings.trim_echo,
        )
        self.services = Services(
            ports.router,
            ports.engine,
            ports.safety,
            ports.store,
            Settlements(ports.ledger),
            self.clock,
            limits,
            keyring=ports.keyring,
        )

    def response_id(self) -> str:
        return f"resp_{secrets.token_hex(16)}"

    def memory(self, connection: LeasedConnection, headers: Mapping[str, str]) -> Memory:
        """`headers`: those of the upgrade or the request."""
        leaves_out = ablated(self._ablation, headers.get(ABLATION_HEADER, ""))
        routes = Routes(self.ports.router, self.clock)
        return Memory(connection, connection.id, routes, ablated=leaves_out)


def restarting() -> Overloaded:
    """What comes while the server ends."""
    return Overloaded("The server is restarting; try again in a moment.")


def cut_short() -> RateLimitExceeded:
    """What still runs when the time to finish is over. Clients wait on this wording."""
    return RateLimitExceeded("The server restarts. Please try again in 1s.")
