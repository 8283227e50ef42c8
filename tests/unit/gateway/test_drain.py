"""The end of a gateway: turns finish, clients are told, the port is free again."""

import asyncio

import pytest
from gateway_worlds import Opener, heard
from scripted_ports import World, create
from turn_worlds import check_events
from websockets.exceptions import ConnectionClosed

from turnwire.pipelines.config import GatewaySettings, SafetySettings


async def test_a_drain_lets_the_running_turn_end_then_closes_1012(opener: Opener) -> None:
    world = World()
    gate = world.screen_gate = asyncio.Event()
    town = await opener.open(world, safety=_blocking())
    async with town.connect() as socket, town.connect() as idle:
        await socket.send(create().decode())
        await town.world.reached("batch")
        draining = asyncio.create_task(town.gateway.drain())
        with pytest.raises(ConnectionClosed) as closed:
            await idle.recv()
        assert _code(closed.value) == 1012
        with pytest.raises(OSError, match=r"refused|failed"):
            await town.connect()
        gate.set()
        events = await heard(socket)
        check_events(events)
        assert events[-1]["type"] == "response.completed"
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert _code(closed.value) == 1012
        await draining


async def test_a_turn_that_outlasts_the_drain_is_ended_as_failed(opener: Opener) -> None:
    town = await opener.open(World(hang_at=4), GatewaySettings(port=0, drain_s=0.01))
    async with town.connect() as socket:
        await socket.send(create().decode())
        await town.world.hanging.wait()
        await town.gateway.drain()
        events = await heard(socket)
        check_events(events)
        assert events[-1]["type"] == "response.failed"
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert _code(closed.value) == 1012
    assert town.world.open_streams == 0


async def test_an_http_turn_finishes_in_a_drain_too(opener: Opener) -> None:
    world = World()
    gate = world.screen_gate = asyncio.Event()
    town = await opener.open(world, safety=_blocking())
    async with town.httpx() as client:
        request = asyncio.create_task(client.post("/responses", content=create()))
        await town.world.reached("batch")
        draining = asyncio.create_task(town.gateway.drain())
        gate.set()
        assert (await request).status_code == 200
        await draining


async def test_a_close_without_a_drain_ends_everything(opener: Opener) -> None:
    town = await opener.open(World(hang_at=4))
    async with town.connect() as socket:
        await socket.send(create().decode())
        await town.world.hanging.wait()
        await town.gateway.close()
        assert town.held == {0}
        events = await heard(socket)
        check_events(events)
        assert events[-1]["type"] == "response.failed"
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert _code(closed.value) == 1012


async def test_a_port_in_use_is_refused_in_clear_words(opener: Opener) -> None:
    town = await opener.open()
    with pytest.raises(OSError, match=f"port {town.port}: already taken"):
        await opener.open(settings=GatewaySettings(port=town.port))


async def test_a_closed_gateways_port_can_be_used_at_once(opener: Opener) -> None:
    town = await opener.open()
    async with town.connect():
        pass
    await town.gateway.close()
    again = await opener.open(settings=GatewaySettings(port=town.port))
    async with again.connect():
        pass


def _code(error: ConnectionClosed) -> int | None:
    return None if error.rcvd is None else error.rcvd.code


def _blocking() -> SafetySettings:
    return SafetySettings(policy="block")
