"""A history in full on one connection, known from another one's actor: same node, same tenant."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from turnwire.actors.actor_link import ActorLink
from turnwire.actors.channel import Channel, Listener
from turnwire.actors.connection import ConnectionActor
from turnwire.actors.lease import ConnectionPool
from turnwire.actors.leased_connection import LeasedConnection
from turnwire.actors.node_conversations import NodeConversations
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, ConnectionSettings

MODEL = m.Model("sim", "items")
CHANNEL = ChannelSettings()
MANY_BYTES = 1 << 20
ASK = {"role": "user", "content": "hello"}
NEXT = ASK | {"id": "msg_9"}
SAID = {"role": "assistant", "content": "fine"}
ANSWER = json.dumps([SAID | {"type": "message", "id": "msg_1"}]).encode()


class Actors:
    """Real connection actors in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running: dict[str, ConnectionActor] = {}
        self.ended: list[asyncio.Task[None]] = []

    async def start(self, actor_id: str) -> m.Endpoint:
        folder, settings = str(self._folder), ConnectionSettings()
        actor = ConnectionActor(actor_id, "here", folder, settings, CHANNEL)
        self.running[actor_id] = actor
        return await actor.start()

    def kill(self, actor_id: str) -> None:
        if (actor := self.running.pop(actor_id, None)) is not None:
            self.ended.append(asyncio.create_task(actor.close()))


@asynccontextmanager
async def opened(
    folder: Path, others: Callable[[], list[Channel]] = lambda: [], **settings: float
) -> AsyncIterator[tuple[ConnectionPool, Actors]]:
    actors = Actors(folder)
    made = ConnectionSettings(
        **({"refill_per_s": 50, "collect_s": 600, "connections_per_actor": 1} | settings)
    )
    async with ConnectionPool(actors, "here", made, CHANNEL, others=others) as pool:
        yield pool, actors
    await asyncio.gather(*actors.ended)


def prepare(response_id: str, *items: dict[str, str], parent: str | None = None) -> m.Prepare:
    body = {"model": "sim", "store": False, "input": items, "previous_response_id": parent}
    return m.Prepare("", response_id, json.dumps(body).encode(), MODEL)


async def prepared(connection: LeasedConnection, command: m.Prepare) -> m.Prepared:
    reply = await connection.prepare(command)
    assert isinstance(reply, m.Prepared)
    return reply


async def talk(connection: LeasedConnection) -> m.Prepared:
    """Two turns; what a third would be prepared as."""
    await prepared(connection, prepare("resp_1", ASK))
    connection.commit(m.Commit("", "resp_1", ANSWER))
    await prepared(connection, prepare("resp_2", ASK, parent="resp_1"))
    connection.commit(m.Commit("", "resp_2", ANSWER))
    return await prepared(connection, prepare("resp_3", NEXT, parent="resp_2"))


async def resend(connection: LeasedConnection, response_id: str = "resp_9") -> m.Prepared:
    return await prepared(connection, prepare(response_id, ASK, SAID, ASK, SAID, NEXT))


async def test_a_second_connection_continues_what_the_first_one_holds(tmp_path: Path) -> None:
    async with opened(tmp_path) as (pool, actors):
        async with pool.lease("acme") as first, pool.lease("acme") as second:
            named = await talk(first)
            again = await resend(second)
            assert len(actors.running) > 1
            assert again.repeated_items == 4
            assert again.prompt == named.prompt
            # Known in its own actor from now on.
            assert (await resend(second, "resp_10")).prompt == named.prompt
        assert pool.index_bytes > 0


async def test_what_an_actor_knew_outlives_it(tmp_path: Path) -> None:
    async with opened(tmp_path, warm=0) as (pool, actors):
        async with pool.lease("acme") as first:
            named = await talk(first)
            before = set(actors.running)
        async with pool.lease("acme") as second:
            assert not before & set(actors.running)
            again = await resend(second)
        assert (again.repeated_items, again.prompt) == (4, named.prompt)


async def test_it_is_collected_without_being_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, collect_s=0.01) as (pool, actors), pool.lease("acme") as first:
        arrived, both = [], asyncio.Event()
        index = pool._conversations._index
        put = index.put

        def watched(tenant: str, turns: tuple[m.KnownTurn, ...]) -> None:
            put(tenant, turns)
            arrived.extend(turns)
            if len(arrived) == 2:
                both.set()

        monkeypatch.setattr(index, "put", watched)
        await talk(first)
        await both.wait()
        for actor_id in tuple(actors.running):
            actors.kill(actor_id)
        assert (await resend(first)).repeated_items == 4


@pytest.mark.parametrize("why", ["another tenant", "deleted", "switched off"])
async def test_what_must_not_be_found_is_not(tmp_path: Path, why: str) -> None:
    settings = {"node_index_bytes": 0} if why == "switched off" else {}
    async with opened(tmp_path, **settings) as (pool, _):
        tenant = "rival" if why == "another tenant" else "acme"
        async with pool.lease("acme") as first, pool.lease(tenant) as second:
            await talk(first)
            if why == "deleted":
                pool.forget("acme", "resp_1")
                pool.forget("acme", "resp_2")
            again = await resend(second)
            assert (again.repeated_items, again.prompt.prefix_key) == (0, b"")


async def test_what_is_deleted_after_it_was_collected_is_gone(tmp_path: Path) -> None:
    async with (
        opened(tmp_path) as (pool, _),
        pool.lease("acme") as first,
        pool.lease("acme") as second,
    ):
        await talk(first)
        assert (await resend(second)).repeated_items == 4
        for response_id in ("resp_1", "resp_2"):
            pool.forget("acme", response_id)
        assert pool.index_bytes == 0
        assert (await resend(second, "resp_10")).repeated_items == 0


async def found(pool: ConnectionPool, command: m.Message, _: object) -> m.FoundContent:
    assert isinstance(command, m.FindContent)
    return await pool.find_content(command)


@asynccontextmanager
async def two_gateways(folder: Path) -> AsyncIterator[tuple[ConnectionPool, ConnectionPool]]:
    """Pools of two gateways on one node, each of which can ask the other."""
    channels: list[list[Channel]] = [[], []]
    async with AsyncExitStack() as stack:
        pools = [
            (await stack.enter_async_context(opened(folder, lambda to=to: to)))[0]
            for to in channels
        ]
        for pool, to in zip(pools, reversed(channels), strict=True):
            unary = {m.FindContent: partial(found, pool)}
            listener = Listener("gateway", "here", unary, {}, CHANNEL)
            endpoint = await listener.start(folder=folder)
            stack.push_async_callback(listener.close)
            to.append(await Channel.connect(endpoint, CHANNEL, node="here"))
            stack.push_async_callback(to[0].close)
        yield pools[0], pools[1]


async def test_a_conversation_is_found_through_whichever_gateway_it_came(tmp_path: Path) -> None:
    async with (
        two_gateways(tmp_path) as (here, there),
        here.lease("acme") as first,
        there.lease("acme") as second,
        there.lease("acme") as third,
    ):
        named = await talk(first)
        again = await resend(second)
        assert (again.repeated_items, again.prompt) == (4, named.prompt)
        # It goes on there, and each of them finds all of it.
        second.commit(m.Commit("", "resp_9", ANSWER))
        for connection in (first, third):
            whole = prepare("resp_20", ASK, SAID, ASK, SAID, NEXT, SAID, ASK)
            assert (await prepared(connection, whole)).repeated_items == 6


@pytest.mark.parametrize(
    "why", ["another tenant", "deleted", "deleted here", "the other one is gone"]
)
async def test_what_must_not_be_found_through_another_gateway_is_not(
    tmp_path: Path, why: str
) -> None:
    async with two_gateways(tmp_path) as (here, there), here.lease("acme") as first:
        await talk(first)
        if why.startswith("deleted"):
            hearing = (here, there) if why == "deleted" else (there,)
            for pool, response_id in product(hearing, ("resp_1", "resp_2")):
                pool.forget("acme", response_id)
        if why == "the other one is gone":
            for channel in there._conversations._others():
                await channel.close()
        async with there.lease("rival" if why == "another tenant" else "acme") as second:
            again = await resend(second)
        assert (again.repeated_items, again.prompt.prefix_key) == (0, b"")


@pytest.mark.parametrize("gateways", [1, 2])
async def test_a_deleted_turn_is_there_for_those_behind_it_only(
    tmp_path: Path, gateways: int
) -> None:
    async with two_gateways(tmp_path) as (here, there), here.lease("acme") as first:
        await talk(first)
        await here._conversations._collect_all(here._links_of_tenants())
        here.forget("acme", "resp_1")
        async with (here, there)[gateways - 1].lease("acme") as second:
            assert (await resend(second)).repeated_items == 4
            short = prepare("resp_30", ASK, SAID, NEXT)
            assert (await prepared(second, short)).repeated_items == 0


def known(number: int, before: bytes = b"") -> m.KnownTurn:
    said, id = b"said %d" % number, f"resp_{number}"
    return m.KnownTurn(said, b"", before, id, b"", b"", "m", b"", "stop", True, False, None, {})


ONE = m.ContentUnknown((b"said 1",), (b"",), answers=1)


class Slow:
    """A gateway, or an actor, that answers when it is let."""

    def __init__(self, answer: m.Message) -> None:
        self.answer = answer
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, _command: m.Message, _caller: object) -> m.Message:
        self.asked.set()
        await self.go.wait()
        return self.answer


@asynccontextmanager
async def served(folder: Path, command: type[m.Message], answer: Slow) -> AsyncIterator[Channel]:
    listener = Listener("slow", "here", {command: answer}, {}, CHANNEL)
    channel = await Channel.connect(await listener.start(folder=folder), CHANNEL, node="here")
    yield channel
    await channel.close()
    await listener.close()


async def test_who_knows_all_of_it_asks_nobody(tmp_path: Path) -> None:
    other = Slow(m.FoundContent(()))
    async with served(tmp_path, m.FindContent, other) as channel:
        here = NodeConversations(MANY_BYTES, 600, lambda: [], lambda: [channel])
        here._index.put("acme", (known(1),))
        assert await here.find("acme", ONE) == (known(1),)
        assert not other.asked.is_set()


async def test_what_is_deleted_while_another_gateway_answers_is_not_found(tmp_path: Path) -> None:
    other = Slow(m.FoundContent((known(1),)))
    async with served(tmp_path, m.FindContent, other) as channel:
        here = NodeConversations(MANY_BYTES, 600, lambda: [], lambda: [channel])
        asking = asyncio.create_task(here.find("acme", ONE))
        await other.asked.wait()
        here.forget("acme", "resp_1")
        other.go.set()
        assert await asking == ()
        assert await here.find_here("acme", ONE) == ()


@asynccontextmanager
async def slow_actor(folder: Path) -> AsyncIterator[tuple[Slow, ActorLink]]:
    actor = Slow(m.Collected((known(2),), 1))
    async with served(folder, m.Collect, actor) as channel:

        async def dial(*_: object) -> Channel:
            return channel

        link = ActorLink("slow", dial, lambda _: None, lambda _: None)
        await link.connect(channel.endpoint)
        link.uncollected = True
        yield actor, link


async def test_a_slow_actor_does_not_hide_what_its_gateway_knows(tmp_path: Path) -> None:
    async with slow_actor(tmp_path) as (actor, link):
        there = NodeConversations(MANY_BYTES, 600, lambda: [("acme", link)])
        there._index.put("acme", (known(1),))
        assert await there.find_here("acme", ONE, 0.01) == (known(1),)
        assert actor.asked.is_set()
        assert link.uncollected


async def test_who_stops_asking_takes_nothing_away(tmp_path: Path) -> None:
    async with slow_actor(tmp_path) as (actor, link):
        there = NodeConversations(MANY_BYTES, 600, lambda: [("acme", link)])
        two = m.ContentUnknown((b"said 2",), (b"",), answers=1)
        asking = asyncio.create_task(there.find_here("acme", two))
        await actor.asked.wait()
        asking.cancel()
        await asyncio.wait((asking,))
        actor.go.set()
        assert await there.find_here("acme", two) == (known(2),)
