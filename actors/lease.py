"""The warm pool of connection actors of one gateway: performs what `Leasing` decides.

Actors are started and killed by a factory, so that this runs over Ray and over fakes alike.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Protocol, Self, assert_never

from turnwire.actors.actor_link import ActorLink
from turnwire.actors.channel import Channel
from turnwire.actors.lease_shared import SharedConnections
from turnwire.actors.leased_connection import MAX_UNACKNOWLEDGED, LeasedConnection
from turnwire.actors.node_conversations import ASKED_ANSWER_S, NodeConversations
from turnwire.actors.owned_tasks import OwnedTasks
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, ConnectionSettings
from turnwire.pipelines.leasing import Effect, Grant, KillActor, Leasing, StartActor
from turnwire.pipelines.protocol.errors import ApiError

_log = logging.getLogger(__name__)

START_S = 60.0
"""An actor that has not said where it listens by then is given up."""


class ActorFactory(Protocol):
    """Makes connection actors on this node, owned by this process: they die with it."""

    async def start(self, actor_id: str) -> m.Endpoint:
        """A ready actor. Raises ApiError when there is none to be had."""

    def kill(self, actor_id: str) -> None:
        """End the actor's process, whatever it does; nothing for one that is gone."""


class ConnectionPool:
    """A block that owns its actors: at its end they are killed. `budget`: how many at most.

    One actor is started at once. The warm stock behind it waits until `refillable`, so that it does
    not take the time of what else starts; a lease never waits for that.
    """

    def __init__(
        self,
        factory: ActorFactory,
        node: str,
        settings: ConnectionSettings,
        channel: ChannelSettings,
        budget: int | None = None,
        refillable: Callable[[], bool] = lambda: True,
        others: Callable[[], list[Channel]] = lambda: [],
    ) -> None:
        """`others`: channels to the other gateways of the node, asked by what is said."""
        self._factory = factory
        self._node = node
        self._settings = settings
        self._channel_settings = channel
        most = settings.max_actors if budget is None else budget
        self._leasing = Leasing(min(settings.warm, most), most, settings.connections_per_actor)
        self._links: dict[str, ActorLink] = {}
        self._served: dict[str, dict[str, None]] = {}
        """Actor to the connections it serves."""
        self._tenants: dict[str, str] = {}
        """Actor to the tenant it serves, or served until now."""
        self._connections: dict[str, LeasedConnection] = {}
        self._conversations = NodeConversations(
            settings.node_index_bytes, settings.collect_s, self._links_of_tenants, others
        )
        self._shared = SharedConnections(self._open, self._close, max(1, most // 2))
        self._tasks = OwnedTasks("lease")
        self._refillable = refillable
        self._over = False

    async def __aenter__(self) -> Self:
        self._perform(self._leasing.refill())
        self._tasks.start(self._refill())
        self._tasks.start(self._conversations.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over = True
        await self._tasks.close()
        for actor_id in {*self._links, *self._leasing.starting}:
            self._factory.kill(actor_id)
        await asyncio.gather(*(link.close() for link in self._links.values()))
        self._links.clear()

    @asynccontextmanager
    async def lease(self, tenant: str) -> AsyncGenerator[LeasedConnection, None]:
        """A new connection of `tenant`, until the block ends. Raises Overloaded after `lease_s`."""
        connection = self._open(tenant)
        try:
            await connection.placed()
            yield connection
        finally:
            self._close(connection)

    def shared(self, tenant: str) -> AbstractAsyncContextManager[LeasedConnection]:
        """The tenant's long-lived connection for HTTP turns, for one of them."""
        return self._shared.shared(tenant)

    def forget(self, tenant: str, response_id: str, conversation_id: str | None = None) -> None:
        """No connection of `tenant` here continues from the response any more.

        With a `conversation_id`: none holds anything for that conversation. In order: a turn
        that is prepared after this call does not find it.
        """
        self._conversations.forget(tenant, response_id)
        for actor_id, actor in tuple(self._leasing.ready.items()):
            if actor.tenant == tenant and actor.leases:
                link = self._links[actor_id]
                link.forget(response_id, conversation_id)
                if link.owed > MAX_UNACKNOWLEDGED:
                    self._stuck(link)

    async def find_content(self, command: m.FindContent) -> m.FoundContent:
        """Answers another gateway of the node."""
        return m.FoundContent(
            await self._conversations.find_here(command.tenant, command.wanted, ASKED_ANSWER_S)
        )

    @property
    def index_bytes(self) -> int:
        """What is kept of conversations, to find them by their content."""
        return self._conversations.size_bytes

    @property
    def prompt_checks(self) -> tuple[int, int]:
        """Prompts that were rendered anew to be compared, and how many of them differed."""
        return self._conversations.checked, self._conversations.mismatched

    @property
    def ready(self) -> int:
        """Actors that stand by or serve."""
        return len(self._leasing.ready)

    def __repr__(self) -> str:
        return repr(self._leasing)

    def _open(self, tenant: str) -> LeasedConnection:
        connection = LeasedConnection(
            f"conn_{secrets.token_hex(12)}",
            tenant,
            self._settings.lease_s,
            self._stuck,
            self._conversations.find,
        )
        self._connections[connection.id] = connection
        try:
            self._perform(self._leasing.lease(connection.id, tenant))
        except ApiError:
            del self._connections[connection.id]
            raise
        return connection

    def _close(self, connection: LeasedConnection) -> None:
        connection.close()
        del self._connections[connection.id]
        for served in self._served.values():
            served.pop(connection.id, None)
        self._perform(self._leasing.release(connection.id))

    # --- performing -----------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        for effect in () if self._over else effects:
            match effect:
                case StartActor(actor_id):
                    self._tasks.start(self._start(actor_id))
                case KillActor(actor_id):
                    self._retire(actor_id)
                case Grant(lease_id, actor_id):
                    self._served.setdefault(actor_id, {})[lease_id] = None
                    self._tenants[actor_id] = self._connections[lease_id].tenant
                    self._connections[lease_id].serve(self._links[actor_id])
                case _:
                    assert_never(effect)

    async def _start(self, actor_id: str) -> None:
        link = ActorLink(actor_id, self._dial, self._broken, self._stuck)
        try:
            async with asyncio.timeout(START_S):
                await link.connect(await self._factory.start(actor_id))
        except Exception as error:
            # Whatever went wrong, the pool must hear of it: a start holds a part of the budget.
            _log.error("lease.start_failed %s: %s: %s", actor_id, type(error).__name__, error)
            self._factory.kill(actor_id)
            # What cannot be started is not tried again at once.
            await asyncio.sleep(1 / self._settings.refill_per_s)
            self._perform(self._leasing.lost(actor_id))
            return
        self._links[actor_id] = link
        self._perform(self._leasing.started(actor_id))
        if link.channel is None:
            self._broken(link)

    def _retire(self, actor_id: str) -> None:
        """Kill an actor that nobody uses, once it has said what it knows."""
        link = self._links.get(actor_id)
        if link is None or not link.uncollected:
            self._kill(actor_id)
            return
        self._served.pop(actor_id, None)
        del self._links[actor_id]
        self._tasks.start(self._collect_and_kill(link))

    async def _collect_and_kill(self, link: ActorLink) -> None:
        try:
            await self._conversations.collect(self._tenants.pop(link.actor_id, ""), link)
        finally:
            self._factory.kill(link.actor_id)
            await link.close()

    def _links_of_tenants(self) -> list[tuple[str, ActorLink]]:
        return [
            (self._tenants[actor_id], link)
            for actor_id, link in self._links.items()
            if actor_id in self._tenants
        ]

    def _kill(self, actor_id: str) -> None:
        self._factory.kill(actor_id)
        self._served.pop(actor_id, None)
        self._tenants.pop(actor_id, None)
        if (link := self._links.pop(actor_id, None)) is not None:
            self._tasks.start(link.close())

    async def _refill(self) -> None:
        while True:
            await asyncio.sleep(1 / self._settings.refill_per_s)
            if self._refillable():
                self._perform(self._leasing.refill())

    # --- broken channels and dead actors --------------------------------------------------------

    def _broken(self, link: ActorLink) -> None:
        if self._links.get(link.actor_id) is not link:
            return
        for connection in self._connections_of(link.actor_id):
            connection.interrupt()
        self._tasks.start(self._mend(link))

    async def _mend(self, link: ActorLink) -> None:
        mended = await link.redial(asyncio.sleep)
        if self._links.get(link.actor_id) is not link:
            await link.close()
        elif mended:
            for connection in self._connections_of(link.actor_id):
                connection.serve(link)
        else:
            self._lose(link)

    def _stuck(self, link: ActorLink) -> None:
        _log.error("lease.actor_stuck %s", link.actor_id)
        self._lose(link)

    def _lose(self, link: ActorLink) -> None:
        """The actor is gone, or as good as gone: its connections get another one."""
        if self._links.get(link.actor_id) is not link:
            return
        for connection in self._connections_of(link.actor_id):
            connection.interrupt()
        self._kill(link.actor_id)
        self._perform(self._leasing.lost(link.actor_id))

    def _connections_of(self, actor_id: str) -> list[LeasedConnection]:
        return [self._connections[id] for id in self._served.get(actor_id, ())]

    async def _dial(self, endpoint: m.Endpoint, on_lost: Callable[[Channel], None]) -> Channel:
        return await Channel.connect(
            endpoint, self._channel_settings, node=self._node, on_lost=on_lost
        )
