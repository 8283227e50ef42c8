"""The same turns over HTTP: JSON, server-sent events, stored responses, refusals."""

import asyncio

import httpx
import openai
import orjson
import pytest
from gateway_worlds import Opener, Town, heard
from scripted_ports import World, calls, create, says, says_at_once
from turn_worlds import check_events

from turnwire.pipelines import messages as m
from turnwire.pipelines.config import GatewaySettings, SafetySettings
from turnwire.pipelines.protocol.errors import ContextLengthExceeded, Overloaded


async def test_the_official_sdk_gets_a_whole_response(town: Town) -> None:
    async with town.openai() as client:
        response = await client.responses.create(model="scripted", input="hi", store=False)
    assert (response.status, response.output_text) == ("completed", "Hello world")
    assert response.usage is not None
    assert response.usage.output_tokens == 2


async def test_the_strict_stream_of_the_sdk_accepts_text_and_calls(town: Town) -> None:
    town.world.script = lambda _: [*says("so")[:-1], *calls("run", '{"a":', "1}")]
    async with (
        town.openai() as client,
        client.responses.stream(model="scripted", input="hi", store=False) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert [item.type for item in final.output] == ["message", "function_call"]


async def test_a_stream_is_the_sockets_events_and_ends_with_done(town: Town) -> None:
    async with town.httpx() as client:
        response = await client.post("/responses", content=create(stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.removesuffix("\n\n").split("\n\n")
    assert blocks.pop() == "data: [DONE]"
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(orjson.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    check_events(events)
    async with town.connect() as socket:
        await socket.send(create().decode())
        assert [event["type"] for event in await heard(socket)] == [e["type"] for e in events]


async def test_a_stored_response_is_continued_fetched_and_deleted(town: Town) -> None:
    async with town.openai() as client:
        first = await client.responses.create(model="scripted", input="remember")
        second = await client.responses.create(
            model="scripted", input="and?", previous_response_id=first.id
        )
        assert second.status == "completed"
        fetched = await client.responses.retrieve(first.id)
        assert fetched.to_dict() == first.to_dict()
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(first.id)


async def test_an_unstored_response_cannot_be_continued_over_http(town: Town) -> None:
    async with town.openai() as client:
        first = await client.responses.create(model="scripted", input="hi", store=False)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(
                model="scripted", input="and?", previous_response_id=first.id
            )
    assert refused.value.code == "previous_response_not_found"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_before_the_response_exists_is_an_http_error(
    town: Town, stream: bool
) -> None:
    async with town.httpx() as client:
        for body, status, code in (
            (b"{", 400, "invalid_request_error"),
            (create(stream=stream, model="unknown"), 400, "model_not_found"),
            (create(stream=stream, input=7), 400, "invalid_request_error"),
        ):
            response = await client.post("/responses", content=body)
            assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_a_failed_generation_is_a_status_as_json_and_an_event_in_a_stream(
    opener: Opener,
) -> None:
    def script(command: m.Generate) -> list[list[m.EngineEvent]]:
        raise ContextLengthExceeded("too long")

    town = await opener.open(World(script=script))
    async with town.httpx() as client:
        whole = await client.post("/responses", content=create())
        assert whole.status_code == 400
        assert whole.json()["error"]["code"] == "context_length_exceeded"
        streamed = await client.post("/responses", content=create(stream=True))
    assert streamed.status_code == 200
    assert "event: response.failed" in streamed.text


async def test_a_failure_is_told_before_the_verdict_is_there(opener: Opener) -> None:
    def script(command: m.Generate) -> list[list[m.EngineEvent]]:
        raise ContextLengthExceeded("too long")

    gate = asyncio.Event()
    world = World(script=script, screen_gate=gate)
    town = await opener.open(world, safety=SafetySettings(policy="score"))
    async with town.httpx() as client:
        assert (await client.post("/responses", content=create())).status_code == 400
        assert world.records == []
        gate.set()
    await town.gateway._serving.clients.gone.wait()
    assert [record.status for record in world.records] == ["failed"]


async def test_a_bug_is_a_500_without_its_text(opener: Opener) -> None:
    town = await opener.open(World(fail_at=1, error=ValueError("secret")))
    async with town.httpx() as client:
        response = await client.post("/responses", content=create())
    assert response.status_code == 500
    assert "secret" not in response.text


async def test_a_request_too_big_is_a_400(opener: Opener) -> None:
    town = await opener.open(settings=GatewaySettings(port=0, max_message_bytes=1000))
    async with town.httpx() as client:
        response = await client.post("/responses", content=create(input="x" * 5_000_000))
        assert (response.status_code, response.json()["error"]["code"]) == (
            400,
            "invalid_request_error",
        )
        assert (await client.post("/responses", content=create())).status_code == 200


async def test_no_actor_is_a_503(town: Town) -> None:
    town.leases.refusal = Overloaded("no connection actor is free")
    async with town.httpx() as client:
        assert (await client.post("/responses", content=create())).status_code == 503


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_stops_its_worker(town: Town, stream: bool) -> None:
    town.world.hang_at = 4
    async with town.httpx() as client:
        request = asyncio.create_task(client.post("/responses", content=create(stream=stream)))
        await town.world.hanging.wait()
        request.cancel()
        await asyncio.wait((request,))
    await town.world.closed.wait()
    await town.gateway._serving.clients.gone.wait()
    assert [record.status for record in town.world.records] == ["cancelled"]


async def test_a_stream_nobody_reads_is_cut_off(opener: Opener) -> None:
    town = await opener.open(
        World(script=lambda _: says(*["x" * 100_000] * 400)),
        GatewaySettings(port=0, max_send_bytes=1_000_000),
    )
    body = create(stream=True)
    reader, writer = await asyncio.open_connection(town.host, town.port)
    head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await town.world.closed.wait()
    await town.gateway._serving.clients.gone.wait()
    assert town.world.records[0].status == "cancelled"
    assert b"[DONE]" not in await reader.read()
    writer.close()


async def test_a_stream_beyond_the_bound_reaches_a_client_that_reads(opener: Opener) -> None:
    world = World(script=lambda _: says_at_once("x" * 4_000_000))
    town = await opener.open(world, GatewaySettings(port=0, max_send_bytes=10_000))
    async with town.httpx() as client:
        response = await client.post("/responses", content=create(stream=True))
    assert response.text.endswith("data: [DONE]\n\n")


async def test_timings_are_given_when_a_header_asks_for_them(town: Town) -> None:
    async with town.httpx() as client:
        headers = {"X-Turnwire-Timings": "1"}
        response = await client.post("/responses", content=create(), headers=headers)
    assert "prepare" in orjson.loads(response.json()["metadata"]["turnwire.timings"])


async def test_models_and_health(opener: Opener, town: Town) -> None:
    async with town.openai() as client:
        assert [model.id async for model in client.models.list()] == ["scripted"]
        assert (await client.models.retrieve("other-name")).id == "scripted"
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.models.retrieve("unknown")
        assert unknown.value.code == "model_not_found"
    root = f"http://{town.host}:{town.port}"
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{root}/healthz")).status_code == 200
        assert (await client.get(f"{root}/readyz")).status_code == 200
        missing = await client.get(f"{root}/v1/nothing")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
        unready = await opener.open(ready=False)
        response = await client.get(f"http://{unready.host}:{unready.port}/readyz")
        assert response.status_code == 503
