"""The gateway's ports over real channels, with workers and routing that come and go."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from turnwire.actors.deletes import Deletes
from turnwire.actors.peers import Peers
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import BillingSettings, ChannelSettings, SafetySettings
from turnwire.pipelines.protocol.errors import (
    ApiError,
    ModelNotFound,
    Overloaded,
    PreviousResponseNotFound,
)

if TYPE_CHECKING:
    from .conftest import FakeWorker, Until, World

CHANNEL = ChannelSettings(heartbeat_s=0.2, silence_s=2, connect_s=5)
FACTS = m.Facts("resp_1", "red", "smollm2", 16)
GENERATE = m.Generate(FACTS, m.TokenPrompt(b"k", b"", b""))
FINISHED = m.GenerationFinished("stop", m.Counts(1, 0, 2))


@asynccontextmanager
async def peers_of(
    world: "World", invalid: list[str] | None = None, own_id: str = ""
) -> AsyncIterator[Peers]:
    made = Peers(
        "here",
        world.control,
        CHANNEL,
        SafetySettings(),
        BillingSettings(max_backlog=20),
        (invalid if invalid is not None else []).append,
        own_id=own_id,
    )
    async with made as peers:
        await peers.synced()
        yield peers


class FakeEngine:
    """Says its own name, then waits to be let go or cancelled."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.go = asyncio.Event()
        self.left = asyncio.Event()

    async def generate(
        self, _command: m.Generate, _caller: object
    ) -> AsyncGenerator[list[m.EngineEvent], None]:
        try:
            yield [m.TextProduced(self.name, m.Counts(1, 0, 1))]
            await self.go.wait()
            yield [FINISHED]
        finally:
            self.left.set()


async def engine_worker(world: "World", id: str) -> tuple["FakeWorker", FakeEngine]:
    engine = FakeEngine(id)
    return await world.worker(id, streams={m.Generate: engine.generate}), engine


async def route_to(peers: Peers, until: "Until") -> m.Route:
    route = await peers.router.resolve(m.Resolve("smollm2"))
    await until(lambda: peers.router.valid(route))
    return route


def record(number: int) -> m.UsageRecord:
    return m.UsageRecord(f"r{number}", "red", "k", "m", "completed", 7, m.Counts())


class FakeLedger:
    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self.away = False

    def settle(self, command: m.Settle, _caller: object) -> m.Done:
        self.seen.append([record.response_id for record in command.records])
        if self.away:
            raise Overloaded("the database is away")
        return m.Done()


async def test_a_gateway_talks_to_the_others_of_its_node_alone(
    world: "World", until: "Until", caplog: pytest.LogCaptureFixture
) -> None:
    await world.worker("far", "gateway", node="elsewhere")
    for id in ("own", "other"):
        await world.worker(id, "gateway")
    async with peers_of(world, own_id="own") as peers:
        await until(lambda: bool(peers.other_gateways()))
        assert [channel.endpoint.id for channel in peers.other_gateways()] == ["other"]
    assert not [line for line in caplog.messages if line.startswith("peer.unreachable")]


# --- router ---------------------------------------------------------------------------------------


async def test_a_route_is_valid_until_its_worker_drains(world: "World", until: "Until") -> None:
    worker, _ = await engine_worker(world, "a")
    invalid: list[str] = []
    async with peers_of(world, invalid) as peers:
        route = await route_to(peers, until)
        await worker.registration.drain()
        await until(lambda: invalid == ["a"])
        assert not peers.router.valid(route)
        with pytest.raises(Overloaded):
            await peers.router.resolve(m.Resolve("smollm2"))
        with pytest.raises(ModelNotFound):
            await peers.router.resolve(m.Resolve("unheard-of"))


async def test_the_loss_of_a_worker_is_pushed(world: "World", until: "Until") -> None:
    worker, _ = await engine_worker(world, "a")
    invalid: list[str] = []
    async with peers_of(world, invalid) as peers:
        route = await route_to(peers, until)
        await worker.kill()
        await until(lambda: "a" in invalid)
        assert not peers.router.valid(route)


async def test_turns_go_on_while_routing_restarts(world: "World", until: "Until") -> None:
    await engine_worker(world, "a")
    async with peers_of(world) as peers:
        route = await route_to(peers, until)
        await world.control.kill()
        assert await peers.router.resolve(m.Resolve("default")) == route
        with pytest.raises(ModelNotFound):
            await peers.router.resolve(m.Resolve("unheard-of"))
        assert peers.router.valid(route)
        async with peers.engine.generate(route.worker, GENERATE) as batches:
            assert await anext(batches) == [m.TextProduced("a", m.Counts(1, 0, 1))]


async def test_a_young_registry_does_not_take_away_workers_that_live(
    world: "World", until: "Until"
) -> None:
    await engine_worker(world, "a")
    invalid: list[str] = []
    async with peers_of(world, invalid) as peers:
        route = await route_to(peers, until)
        await world.control.kill()
        await world.control.start()
        await until(lambda: peers.router.routing is not None)
        await until(lambda: world.control.registrations.count("a") == 2)
        await world.workers["a"].registration.attached()
        assert peers.router.valid(route)
        assert invalid == []
        assert await peers.router.resolve(m.Resolve("smollm2", keep="a")) == route


async def test_a_worker_that_dies_while_routing_is_away_is_noticed_all_the_same(
    world: "World", until: "Until"
) -> None:
    worker, _ = await engine_worker(world, "a")
    invalid: list[str] = []
    async with peers_of(world, invalid) as peers:
        route = await route_to(peers, until)
        await world.control.kill()
        await worker.kill()
        await until(lambda: invalid == ["a"])
        assert not peers.router.valid(route)


# --- engine ---------------------------------------------------------------------------------------


async def test_a_generation_comes_in_batches_to_its_end(world: "World", until: "Until") -> None:
    _, engine = await engine_worker(world, "a")
    engine.go.set()
    async with peers_of(world) as peers:
        route = await route_to(peers, until)
        async with peers.engine.generate(route.worker, GENERATE) as batches:
            events = [event async for batch in batches for event in batch]
    assert events == [m.TextProduced("a", m.Counts(1, 0, 1)), FINISHED]


async def test_leaving_the_block_stops_the_worker(world: "World", until: "Until") -> None:
    _, engine = await engine_worker(world, "a")
    async with peers_of(world) as peers:
        route = await route_to(peers, until)
        async with peers.engine.generate(route.worker, GENERATE) as batches:
            await anext(batches)
        async with asyncio.timeout(10):
            await engine.left.wait()


async def test_a_worker_lost_in_the_middle_raises_overloaded(
    world: "World", until: "Until"
) -> None:
    worker, _ = await engine_worker(world, "a")
    async with peers_of(world) as peers:
        route = await route_to(peers, until)
        async with peers.engine.generate(route.worker, GENERATE) as batches:
            await anext(batches)
            await worker.kill()
            with pytest.raises(Overloaded):
                await anext(batches)
        with pytest.raises(Overloaded):
            async with peers.engine.generate(route.worker, GENERATE):
                raise AssertionError("a lost worker cannot be used")


async def test_a_worker_just_registered_is_used_as_soon_as_it_is_dialled(world: "World") -> None:
    async with peers_of(world) as peers:
        _, engine = await engine_worker(world, "a")
        engine.go.set()
        route = await peers.router.resolve(m.Resolve("smollm2"))
        async with asyncio.timeout(10):
            while True:  # the watch may be behind the answer
                try:
                    async with peers.engine.generate(route.worker, GENERATE) as batches:
                        assert await anext(batches)
                    return
                except Overloaded:
                    await asyncio.sleep(0.005)


async def test_what_runs_at_a_draining_worker_goes_on_to_its_end(
    world: "World", until: "Until"
) -> None:
    worker, engine = await engine_worker(world, "a")
    async with peers_of(world) as peers:
        route = await route_to(peers, until)
        async with peers.engine.generate(route.worker, GENERATE) as batches:
            await anext(batches)
            await worker.registration.__aexit__(None, None, None)
            await until(lambda: "a" not in peers.engine._registry._links)
            engine.go.set()
            assert await anext(batches) == [FINISHED]


async def test_a_gateway_on_another_node_dials_with_the_secret_routing_gives_it(
    world: "World", until: "Until"
) -> None:
    engine = FakeEngine("a")
    streams = {m.Generate: engine.generate}
    await world.worker("a", streams=streams, tcp_host="127.0.0.1")
    made = Peers("there", world.control, CHANNEL, SafetySettings(), BillingSettings())
    async with made as peers:
        await peers.synced()
        route = await route_to(peers, until)
        async with peers.engine.generate(route.worker, GENERATE) as batches:
            assert await anext(batches) == [m.TextProduced("a", m.Counts(1, 0, 1))]


# --- safety, store --------------------------------------------------------------------------------


async def test_screening_takes_the_safety_workers_in_turn(world: "World", until: "Until") -> None:
    asked: list[str] = []
    for id in ("s1", "s2"):

        def look(_command: m.Screen, _caller: object, id: str = id) -> m.Screened:
            asked.append(id)
            return m.Screened(flagged=False)

        await world.worker(id, "safety", unary={m.Screen: look})
    async with peers_of(world) as peers:
        links = peers.safety._pool._registry._links
        await until(lambda: len(links) == 2 and all(link.live for link in links.values()))
        for _ in range(6):
            await peers.safety.screen(m.Screen("r", "red", ("text",)))
    assert sorted(asked) == ["s1"] * 3 + ["s2"] * 3
    assert asked[0] != asked[1]


async def test_a_screening_whose_worker_dies_is_done_by_the_next_one(
    world: "World", until: "Until"
) -> None:
    asked = asyncio.Queue[str]()

    async def hang(_command: m.Screen, _caller: object) -> m.Screened:
        asked.put_nowait("asked")
        await asyncio.Event().wait()
        raise AssertionError("it never ends")

    def look(_command: m.Screen, _caller: object) -> m.Screened:
        return m.Screened(flagged=True, categories=("pii",))

    first = await world.worker("s1", "safety", unary={m.Screen: hang})
    async with peers_of(world) as peers:
        await until(lambda: peers.there("safety"))
        verdict = asyncio.create_task(peers.safety.screen(m.Screen("r", "red", ("text",))))
        await asked.get()
        await world.worker("s2", "safety", unary={m.Screen: look})
        links = peers.safety._pool._registry._links
        await until(lambda: "s2" in links and links["s2"].live)
        await first.kill()
        assert await verdict == m.Screened(flagged=True, categories=("pii",))


async def test_without_any_worker_of_a_pool_its_port_is_overloaded(world: "World") -> None:
    async with peers_of(world) as peers:
        assert not peers.there("storage")
        for call in (
            peers.safety.screen(m.Screen("r", "red", ("text",))),
            peers.store.load(m.Load("red", "r1")),
        ):
            with pytest.raises(Overloaded):
                await call


async def test_the_stores_refusals_arrive_as_themselves(world: "World", until: "Until") -> None:
    def load(command: m.Load, _caller: object) -> m.Chain:
        if command.response_id == "r1":
            return m.Chain(())
        raise PreviousResponseNotFound("not found", "previous_response_id")

    await world.worker("st", "storage", unary={m.Load: load})
    async with peers_of(world) as peers:
        await until(lambda: peers.there("storage"))
        assert await peers.store.load(m.Load("red", "r1")) == m.Chain(())
        with pytest.raises(PreviousResponseNotFound) as refusal:
            await peers.store.load(m.Load("red", "r2"))
        assert refusal.value.param == "previous_response_id"


# --- ledger ---------------------------------------------------------------------------------------


async def test_records_reach_the_ledger_in_order_and_drain_waits_for_them(
    world: "World", until: "Until"
) -> None:
    ledger = FakeLedger()
    await world.worker("b", "billing", unary={m.Settle: ledger.settle})
    async with peers_of(world) as peers:
        for number in range(10):
            peers.ledger.settle(record(number))
        assert await peers.ledger.drain(10) == 0
    assert [id for batch in ledger.seen for id in batch] == [f"r{n}" for n in range(10)]


async def test_records_are_sent_again_until_they_are_acknowledged(
    world: "World", until: "Until"
) -> None:
    ledger = FakeLedger()
    ledger.away = True
    await world.worker("b", "billing", unary={m.Settle: ledger.settle})
    async with peers_of(world) as peers:
        peers.ledger.settle(record(1))
        await until(lambda: len(ledger.seen) >= 3)
        assert await peers.ledger.drain(0) == 1
        ledger.away = False
        assert await peers.ledger.drain(10) == 0
        assert peers.ledger.backlog == 0
    assert all(batch == ["r1"] for batch in ledger.seen)


async def test_a_full_backlog_refuses_and_loses_nothing(world: "World") -> None:
    ledger = FakeLedger()
    async with peers_of(world) as peers:
        for number in range(18):
            peers.ledger.settle(record(number))
        assert peers.ledger.nearly_full
        peers.ledger.settle(record(18))
        peers.ledger.settle(record(19))
        with pytest.raises(Overloaded):
            peers.ledger.settle(record(20))
        await world.worker("b", "billing", unary={m.Settle: ledger.settle})
        assert await peers.ledger.drain(10) == 0
        assert not peers.ledger.nearly_full
    assert sorted({id for batch in ledger.seen for id in batch}) == sorted(
        f"r{number}" for number in range(20)
    )


async def test_a_gateway_started_before_routing_waits_for_it(world: "World") -> None:
    await world.control.kill()
    made = Peers("here", world.control, CHANNEL, SafetySettings(), BillingSettings())
    async with made as peers:
        resolving = asyncio.create_task(peers.router.resolve(m.Resolve("from-settings")))
        await world.control.start()
        await peers.synced()
        with pytest.raises(ApiError):
            await resolving


# --- deletes --------------------------------------------------------------------------------------


async def test_what_any_storage_worker_deletes_is_heard(world: "World", until: "Until") -> None:
    deletes = {"s1": Deletes(), "s2": Deletes()}
    for id, kept in deletes.items():
        await world.worker(id, "storage", streams={m.WatchDeletes: kept.watch})
    heard: list[m.Deleted] = []
    made = Peers(
        "here",
        world.control,
        CHANNEL,
        SafetySettings(),
        BillingSettings(),
        on_deleted=heard.append,
    )
    response, conversation = m.Deleted("red", "r0"), m.Deleted("blue", "", "conv_1")
    deletes["s1"].add(response)
    async with made:
        await until(lambda: heard == [response])
        deletes["s2"].add(conversation)
        await until(lambda: heard == [response, conversation])
