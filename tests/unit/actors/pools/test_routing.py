"""Routing and registration over real channels: who is there is what the channels say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from turnwire.actors.channel import Channel
from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import Forbidden, ModelNotFound, NotFound, Overloaded

if TYPE_CHECKING:
    from .conftest import Until, World


@asynccontextmanager
async def watching(channel: Channel) -> AsyncIterator[AsyncIterator[m.Registry]]:
    async def registries() -> AsyncIterator[m.Registry]:
        async for batch in stream:
            for registry in batch:
                assert isinstance(registry, m.Registry)
                yield registry

    async with channel.stream(m.Watch()) as stream:
        yield registries()


def names(registry: m.Registry) -> list[str]:
    return [worker.endpoint.id for worker in registry.workers]


async def test_a_watcher_gets_the_registry_now_and_at_every_change(world: "World") -> None:
    routing = await world.dial_routing()
    async with watching(routing) as registries:
        assert names(await anext(registries)) == []
        await world.worker("a")
        assert names(await anext(registries)) == ["a"]
        safety = await world.worker("b", "safety")
        assert names(await anext(registries)) == ["a", "b"]
        await safety.registration.drain()
        assert [w.draining for w in (await anext(registries)).workers] == [False, True]
        await world.workers["a"].kill()
        assert names(await anext(registries)) == ["b"]


async def test_a_registered_worker_is_resolved_by_name_and_alias(world: "World") -> None:
    await world.worker("a")
    routing = await world.dial_routing()
    for name in ("smollm2", "default"):
        route = await routing.call(m.Resolve(name))
        assert isinstance(route, m.Route)
        assert (route.model.name, route.worker) == ("smollm2", world.workers["a"].worker.endpoint)
    with pytest.raises(ModelNotFound):
        await routing.call(m.Resolve("unheard-of"))
    with pytest.raises(Overloaded):
        await routing.call(m.Resolve("from-settings"))


async def test_a_worker_that_dies_is_gone_at_once(world: "World") -> None:
    worker = await world.worker("a")
    routing = await world.dial_routing()
    async with watching(routing) as registries:
        assert names(await anext(registries)) == ["a"]
        await worker.kill()
        assert names(await anext(registries)) == []
    with pytest.raises(Overloaded):
        await routing.call(m.Resolve("smollm2"))
    with pytest.raises(NotFound):
        await world.control.secret_of("a")


async def test_the_load_a_worker_reports_decides(world: "World", until: "Until") -> None:
    busy, free = await world.worker("busy"), await world.worker("free")
    busy.load, free.load = (3, 0), (0, 0)
    routing = await world.dial_routing()

    async with asyncio.timeout(10):
        # One route more a try is counted at whoever gets it; reports set it right again.
        chosen = [""] * 5
        while chosen != ["free"] * 5:
            await asyncio.sleep(0.02)
            chosen = []
            for _ in range(5):
                route = await routing.call(m.Resolve("smollm2", keep="free"))
                assert isinstance(route, m.Route)
                chosen.append(route.worker.id)
    free.load, busy.load = (4, 1), (0, 0)
    kept = ""
    async with asyncio.timeout(10):
        while kept != "busy":
            await asyncio.sleep(0.02)
            route = await routing.call(m.Resolve("smollm2", keep="free"))
            assert isinstance(route, m.Route)
            kept = route.worker.id


async def test_nobody_attaches_who_has_not_registered(world: "World") -> None:
    routing = await world.dial_routing()
    stranger = m.Worker(m.Endpoint("stranger", "here"), "inference")
    with pytest.raises(Forbidden):
        await routing.call(m.Attach(stranger))


async def test_secrets_travel_by_control_call_and_never_over_a_watch(world: "World") -> None:
    worker = await world.worker("a")
    secret = worker.listener.secret
    assert await world.control.secret_of("a") == secret
    routing = await world.dial_routing()
    async with watching(routing) as registries:
        assert secret not in msgspec.msgpack.encode(await anext(registries))


async def test_after_a_restart_of_routing_the_workers_register_again(
    world: "World", until: "Until"
) -> None:
    worker = await world.worker("a")
    await worker.registration.drain()
    await world.control.kill()
    await world.control.start()
    await until(lambda: world.control.registrations.count("a") == 2)
    await worker.registration.attached()
    async with watching(await world.dial_routing()) as registries:
        async for registry in registries:
            if registry.workers:
                break
    assert [(w.endpoint.id, w.draining) for w in registry.workers] == [("a", True)]


async def test_a_worker_keeps_trying_while_routing_is_away(world: "World", until: "Until") -> None:
    await world.worker("a")
    await world.control.kill()
    await until(lambda: world.control.registrations.count("a") >= 4)
    await world.control.start()
    await until(lambda: world.control.routing is not None)
    routing = await world.dial_routing()
    async with watching(routing) as registries:
        async for registry in registries:
            if names(registry) == ["a"]:
                break


async def test_a_worker_that_attached_anew_survives_the_end_of_its_old_channel(
    world: "World",
) -> None:
    old, new = await world.dial_routing(), await world.dial_routing()
    worker = m.Worker(m.Endpoint("a", "here"), "safety")
    await world.control.register(worker, b"secret")
    await old.call(m.Attach(worker))
    await new.call(m.Attach(worker))
    async with watching(new) as registries:
        assert names(await anext(registries)) == ["a"]
        await old.close()
        await new.call(m.Attach(msgspec.structs.replace(worker, draining=True)))
        assert names(await anext(registries)) == ["a"]
