"""The ports of a turn over channels: router, engine, safety and store, as a gateway calls them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar, cast

from turnwire.actors.ask import ask
from turnwire.actors.channel import Channel, Stream
from turnwire.actors.peer_registry import PeerRegistry
from turnwire.pipelines import messages as m
from turnwire.pipelines.ports import Engine, Router, Safety, Store
from turnwire.pipelines.protocol.errors import Overloaded

RESOLVE_S = 1.0
"""Routing that takes longer is passed over: the gateway then decides from what it knows."""
VERDICT_GRACE_S = 1.0
"""A safety worker keeps its own deadline; this much later it is taken for stuck."""

Answer = TypeVar("Answer", bound=m.Message)


class RouterPort(Router):
    """`routing` is set while there is a channel to routing; `synced` once anything was heard."""

    def __init__(self, registry: PeerRegistry, connect_s: float) -> None:
        self.routing: Channel | None = None
        self.synced = asyncio.Event()
        self._registry = registry
        self._connect_s = connect_s

    async def resolve(self, command: m.Resolve) -> m.Route:
        channel = self.routing
        if channel is not None and not channel.lost:
            try:
                async with asyncio.timeout(RESOLVE_S):
                    return await ask(channel, command, m.Route)
            except TimeoutError:
                pass
            except Overloaded:
                if not channel.lost:
                    raise
        await self._heard()
        return self._registry.resolve(command)

    def valid(self, route: m.Route) -> bool:
        return self._registry.usable(route.worker.id)

    async def _heard(self) -> None:
        if self.synced.is_set():
            return
        try:
            async with asyncio.timeout(self._connect_s):
                await self.synced.wait()
        except TimeoutError as error:
            raise Overloaded("routing is not there") from error


class EnginePort(Engine):
    def __init__(self, registry: PeerRegistry, connect_s: float) -> None:
        self._registry = registry
        self._connect_s = connect_s

    @asynccontextmanager
    async def generate(
        self, worker: m.Endpoint, command: m.Generate
    ) -> AsyncIterator[AsyncIterator[list[m.EngineEvent]]]:
        """Leaving the block cancels at the worker. A lost worker raises Overloaded."""
        link = self._registry.link(worker.id)
        channel = link.channel if link.live else await link.ready(self._connect_s)
        link.begin()
        try:
            async with channel.stream(command) as batches:
                channel.flush()
                yield cast(AsyncIterator[list[m.EngineEvent]], batches)
        finally:
            link.end()

    async def count(self, worker: m.Endpoint, command: m.CountPrompt) -> m.TokenCount:
        link = self._registry.link(worker.id)
        channel = link.channel if link.live else await link.ready(self._connect_s)
        return await ask(channel, command, m.TokenCount)


class PoolPort:
    """Any worker of one pool, in turn. A command whose worker dies is sent to the next one."""

    def __init__(self, registry: PeerRegistry, pool: str, connect_s: float) -> None:
        self._registry = registry
        self._pool = pool
        self._connect_s = connect_s

    async def ask(self, command: m.Message, answer: type[Answer]) -> Answer:
        """All commands of these pools change nothing the second time. Raises Overloaded."""
        tried: set[str] = set()
        while (link := self._registry.next_of(self._pool, tried)) is not None:
            tried.add(link.id)
            channel = link.channel if link.live else await link.ready(self._connect_s)
            try:
                return await ask(channel, command, answer)
            except Overloaded:
                if not channel.lost:
                    raise
        raise self._nobody()

    @asynccontextmanager
    async def stream(self, command: m.Message) -> AsyncIterator[Stream]:
        """From one worker; Overloaded when that is lost. Leaving the block ends it there."""
        link = self._registry.next_of(self._pool)
        if link is None:
            raise self._nobody()
        channel = link.channel if link.live else await link.ready(self._connect_s)
        async with channel.stream(command) as batches:
            yield batches

    def _nobody(self) -> Overloaded:
        return Overloaded(f"no worker of the pool {self._pool} is there at the moment")


class SafetyPort(Safety):
    def __init__(self, pool: PoolPort, deadline_s: float) -> None:
        self._pool = pool
        self._within_s = deadline_s + VERDICT_GRACE_S

    async def screen(self, command: m.Screen) -> m.Screened:
        try:
            async with asyncio.timeout(self._within_s):
                return await self._pool.ask(command, m.Screened)
        except TimeoutError as error:
            raise Overloaded(f"no verdict within {self._within_s:g} s") from error


class StorePort(Store):
    def __init__(self, pool: PoolPort) -> None:
        self._pool = pool

    async def save(self, command: m.Save) -> None:
        await self._pool.ask(command, m.Done)

    async def load(self, command: m.Load) -> m.Chain:
        return await self._pool.ask(command, m.Chain)

    async def load_conversation(self, command: m.LoadConversation) -> m.ConversationTail:
        return await self._pool.ask(command, m.ConversationTail)

    async def append(self, command: m.AppendTurn) -> m.Appended:
        return await self._pool.ask(command, m.Appended)

    async def conversation(
        self,
        command: m.CreateConversation | m.FetchConversation | m.UpdateConversation | m.DeleteItem,
    ) -> m.Conversation:
        return await self._pool.ask(command, m.Conversation)

    async def items(self, command: m.ListItems | m.FetchItem) -> m.ItemPage:
        return await self._pool.ask(command, m.ItemPage)

    async def change(self, command: m.AddItems | m.DeleteConversation) -> None:
        await self._pool.ask(command, m.Done)

    async def fetch(self, command: m.Fetch) -> m.Stored:
        return await self._pool.ask(command, m.Stored)

    async def delete(self, command: m.Delete) -> None:
        await self._pool.ask(command, m.Done)
