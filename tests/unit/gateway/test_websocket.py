"""WebSocket mode over a real socket."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import orjson
import pytest
from gateway_worlds import Opener, Town, heard, of_lane, turn
from scripted_ports import World, calls, create, says, says_at_once
from turn_worlds import check_event, check_events
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus

from turnwire.gateway.websocket import SocketClient
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import GatewaySettings, SessionSettings
from turnwire.pipelines.protocol.errors import Overloaded
from turnwire.pipelines.session import Session


async def test_three_turns_chain_on_one_connection(town: Town) -> None:
    async with town.connect() as socket:
        parent: dict[str, Any] = {}
        for number in range(3):
            events = await turn(socket, input=f"turn {number}", **parent)
            check_events(events)
            assert events[-1]["type"] == "response.completed"
            parent = {"previous_response_id": events[-1]["response"]["id"]}
    prompt = town.world.generated[-1].prompt
    assert isinstance(prompt, m.ItemPrompt)
    assert b"turn 2" in prompt.items
    assert b"turn 0" not in prompt.items
    assert [record.status for record in town.world.records] == ["completed"] * 3


async def test_the_official_sdk_chains_turns_over_a_socket(town: Town) -> None:
    town.world.script = lambda _: calls("run", "{}")
    async with town.openai() as client, client.responses.connect() as connection:
        await connection.response.create(model="scripted", input="hi", store=False)
        final = await _final(connection)
        assert final.output[0].type == "function_call"
        town.world.script = lambda _: says("done")
        await connection.response.create(
            model="scripted",
            store=False,
            previous_response_id=final.id,
            input=[{"type": "function_call_output", "call_id": "call_1", "output": "ok"}],
        )
        assert (await _final(connection)).output_text == "done"


async def _final(connection: Any) -> Any:  # noqa: ANN401 -- the SDK's types are not exported
    async for event in connection:
        if event.type == "response.completed":
            return event.response
        assert event.type != "error", event
    raise AssertionError("the socket ended")


async def test_an_error_is_one_frame_with_a_status_and_the_socket_stays(town: Town) -> None:
    async with town.connect() as socket:
        for frame in ("nonsense", '{"type":"what"}', b"\x00\x01"):
            await socket.send(frame)
            (event,) = await heard(socket)
            check_event(event)
            assert event["status"] == 400
            assert isinstance(event["error"]["code"], str)
        (event,) = await turn(socket, previous_response_id="resp_gone")
        assert event["error"]["code"] == "previous_response_not_found"
        assert event["error"]["param"] == "previous_response_id"
        (event,) = await turn(socket, model="unknown", stream_id="lane")
        assert (event["error"]["code"], event["stream_id"]) == ("model_not_found", "lane")
        assert (await turn(socket))[-1]["type"] == "response.completed"


async def test_a_failed_continuation_takes_its_parent_along_but_not_across_lanes(
    town: Town,
) -> None:
    bad = [{"type": "function_call_output", "call_id": "nobody", "output": "x"}]
    async with town.connect() as socket:
        for lane, code in ((None, "previous_response_not_found"), ("fork", None)):
            parent = (await turn(socket))[-1]["response"]["id"]
            other = {} if lane is None else {"stream_id": lane}
            (error,) = await turn(socket, previous_response_id=parent, input=bad, **other)
            assert error["error"]["code"] == "invalid_request_error"
            events = await turn(socket, previous_response_id=parent)
            assert events[-1].get("error", {}).get("code") == code


async def test_lanes_interleave_and_each_has_its_own_numbers(town: Town) -> None:
    gate = asyncio.Event()
    town.world.screen_gate = gate
    async with town.connect() as socket:
        for lane in ("a", "b"):
            await socket.send(create(stream_id=lane).decode())
        events = await heard(socket, terminals=2)
    for lane in ("a", "b"):
        check_events(of_lane(events, lane))


async def test_a_message_too_big_is_answered_in_band_and_one_far_too_big_closes_1009(
    opener: Opener,
) -> None:
    town = await opener.open(settings=GatewaySettings(port=0, max_message_bytes=10_000))
    async with town.connect() as socket:
        (event,) = await turn(socket, input="x" * 15_000)
        assert (event["status"], event["error"]["code"]) == (400, "invalid_request_error")
        assert (await turn(socket))[-1]["type"] == "response.completed"
        await socket.send(create(input="x" * 30_000).decode())
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_a_fragmented_message_is_one_message(town: Town) -> None:
    async with town.connect() as socket:
        frame = create().decode()
        await socket.send([frame[:10], frame[10:30], frame[30:]])
        assert (await heard(socket))[-1]["type"] == "response.completed"


async def test_request_bytes_are_bounded_over_all_connections(opener: Opener) -> None:
    settings = GatewaySettings(port=0, inbound_bytes=60_000)
    town = await opener.open(World(hang_at=1), settings)
    async with town.connect() as first, town.connect() as second:
        await first.send(create(input="x" * 40_000).decode())
        await town.world.reached("prepare")
        await second.send(create(input="x" * 30_000).decode())
        (event,) = await heard(second)
        assert (event["status"], event["error"]["code"]) == (503, "server_is_overloaded")


async def test_a_client_that_leaves_stops_its_worker_and_frees_everything(town: Town) -> None:
    town.world.hang_at = 4
    async with town.connect() as socket:
        await socket.send(create(stream=True).decode())
        await town.world.hanging.wait()
        assert town.world.open_streams == 1
        socket.transport.abort()
        await town.world.closed.wait()
        await town.leases.ended.wait()
    assert (town.world.open_streams, town.leases.open_leases) == (0, 0)
    assert [record.status for record in town.world.records] == ["cancelled"]
    assert town.world.aborts[-1].evict is False


async def test_a_client_that_does_not_read_is_cut_off_and_others_go_on(opener: Opener) -> None:
    def script(command: m.Generate) -> list[list[m.EngineEvent]]:
        flood = command.facts.metadata.get("flood") == "1"
        return says(*(["x" * 100_000] * 400 if flood else ["Hi"]))

    settings = GatewaySettings(port=0, max_send_bytes=1_000_000)
    town = await opener.open(World(script=script), settings)
    async with town.connect() as fast, town.connect(max_queue=1) as stuck:
        stuck.transport.pause_reading()
        await stuck.send(create(metadata={"flood": "1"}).decode())
        await town.leases.ended.wait()
        assert town.world.open_streams == 0
        assert (await turn(fast))[-1]["type"] == "response.completed"
        stuck.transport.resume_reading()
        with pytest.raises(ConnectionClosedError):
            await heard(stuck)


async def test_an_answer_beyond_the_bound_reaches_a_client_that_reads(opener: Opener) -> None:
    world = World(script=lambda _: says_at_once("x" * 4_000_000))
    town = await opener.open(world, GatewaySettings(port=0, max_send_bytes=10_000))
    async with town.connect() as socket:
        assert (await turn(socket))[-1]["type"] == "response.completed"


async def test_deflate_is_a_setting(opener: Opener) -> None:
    town = await opener.open(settings=GatewaySettings(port=0, deflate=True))
    async with town.connect(compression="deflate") as socket:
        assert "permessage-deflate" in socket.response.headers["Sec-WebSocket-Extensions"]
        check_events(await turn(socket))
    plain = await opener.open()
    async with plain.connect(compression="deflate") as socket:
        assert "Sec-WebSocket-Extensions" not in socket.response.headers


async def test_pings_are_answered_while_a_turn_runs(town: Town) -> None:
    town.world.hang_at = 4
    async with town.connect() as socket:
        await socket.send(create().decode())
        await town.world.hanging.wait()
        await (await socket.ping())


async def test_a_connection_too_old_is_told_and_closed(opener: Opener) -> None:
    session = SessionSettings(max_age_s=1e-9)
    town = await opener.open(settings=GatewaySettings(port=0, session=session))
    async with town.connect() as socket:
        events = await turn(socket)
        assert events[-1]["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000


async def test_no_actor_and_no_place_refuse_the_upgrade_with_a_reason(opener: Opener) -> None:
    town = await opener.open(settings=GatewaySettings(port=0, max_connections=1))
    async with town.connect():
        assert await _refused(town) == (503, "server_is_overloaded")
    await town.leases.ended.wait()
    town.leases.refusal = Overloaded("no connection actor is free")
    assert await _refused(town) == (503, "server_is_overloaded")


async def test_switched_off_the_upgrade_is_answered_426(opener: Opener) -> None:
    town = await opener.open(settings=GatewaySettings(port=0, websocket=False))
    assert await _refused(town) == (426, "websocket_disabled")


async def _refused(town: Town) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refused:
        await town.connect()
    response = refused.value.response
    assert response.body is not None
    return response.status_code, orjson.loads(response.body)["error"]["code"]


async def test_a_client_that_leaves_while_it_waits_for_an_actor_is_forgotten(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    gate = town.leases.gate = asyncio.Event()
    connecting = asyncio.create_task(_connected(town))
    await town.leases.asked.wait()
    connecting.cancel()
    await asyncio.wait((connecting,))
    gate.set()
    await town.leases.ended.wait()
    await town.gateway.close()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def _connected(town: Town) -> None:
    await town.connect()


async def test_half_a_message_counts_as_held_and_may_be_too_much(opener: Opener) -> None:
    town = await opener.open(settings=GatewaySettings(port=0, inbound_bytes=100_000))
    async with town.connect() as socket:

        async def endless() -> AsyncIterator[str]:
            while True:
                yield "x" * 20_000

        with pytest.raises(ConnectionClosed) as closed:
            await socket.send(endless())
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        assert orjson.loads(await socket.recv())["error"]["code"] == "server_is_overloaded"
    await town.leases.ended.wait()
    assert town.held == {0}


async def test_a_silent_turn_is_heard_of_now_and_then(town: Town) -> None:
    town.world.hang_at = 4
    async with town.connect() as socket:
        await socket.send(create().decode())
        await town.world.hanging.wait()
        serving = town.gateway._serving
        serving.clients.tick(serving.clock.now_s() + 16)
        types = [orjson.loads(await socket.recv())["type"] for _ in range(3)]
    assert types[1:] == ["response.in_progress"] * 2


async def test_small_frames_leave_at_once(town: Town) -> None:
    async with town.connect():
        (client,) = town.gateway._serving.clients._clients
        assert isinstance(client, SocketClient)
        connection = client.wire.transport.get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_bug_of_the_connection_is_told_before_the_socket_closes_1011(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> NoReturn:
        raise ValueError("secret")

    async with town.connect() as socket:
        monkeypatch.setattr(Session, "received", broken)
        (event,) = await turn(socket)
        assert (event["status"], event["error"]["code"]) == (500, "server_error")
        assert "secret" not in str(event)
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011


async def test_a_client_that_answers_no_ping_is_given_up(opener: Opener) -> None:
    town = await opener.open(World(hang_at=4), GatewaySettings(port=0, ping_s=0.02))
    reader, writer = await asyncio.open_connection(town.host, town.port)
    writer.write(
        b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    frame = create()
    writer.write(bytes((0x81, 0x80 | len(frame))) + bytes(4) + frame)
    await town.world.hanging.wait()
    await town.leases.ended.wait()
    assert town.world.records[0].status == "cancelled"
    writer.close()
