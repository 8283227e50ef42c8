"""How many run, what is kept of them, and what becomes of them when something ends."""

import asyncio

import openai
import orjson
import pytest
from background_turns import begun, hanging, polled, settings, streamed
from gateway_worlds import Opener, Town
from local_storage import LocalStorage
from scripted_ports import World, says
from turn_worlds import check_event, check_events

from turnwire.gateway.caller import caller_of
from turnwire.gateway.observation import ObservedTurn
from turnwire.pipelines.protocol.errors import Overloaded
from turnwire.pipelines.turn_request import TurnRequest


async def test_more_than_may_run_are_refused_by_name(storage: LocalStorage, opener: Opener) -> None:
    gateways = [
        await opener.open(settings=settings(**limit), storage=storage)
        for limit in ({"max_running": 1}, {"max_running_per_tenant": 2}, {"max_running": 1})
    ]
    one, two, three = gateways
    running = {}
    for town in (one, two):
        hanging(town)
        async with town.openai() as client:
            running[town.port] = await begun(client)
        await town.world.hanging.wait()
    for town, kind, code in (
        (one, openai.InternalServerError, "server_is_overloaded"),
        (two, openai.RateLimitError, "rate_limit_exceeded"),
    ):
        async with town.openai() as client:
            with pytest.raises(kind) as refused:
                await begun(client)
        assert refused.value.code == code  # type: ignore[attr-defined]
        assert len(town.world.generated) == 1
    for town in (one, two):
        async with town.openai() as client:
            await client.responses.cancel(running[town.port])
        await town.world.closed.wait()
        # What was refused is no turn: it left nothing in the ledger.
        assert {record.response_id for record in town.world.records} <= {running[town.port]}
    async with three.openai() as client:
        await polled(client, await begun(client))


async def test_one_whose_gateway_is_lost_ends_as_failed(database_url: str, opener: Opener) -> None:
    async with LocalStorage(database_url, background_grace_s=0.2) as storage:
        lost = await opener.open(settings=settings(lease_s=0.3), storage=storage)
        other = await opener.open(settings=settings(), storage=storage)
        hanging(lost, after=1)
        async with lost.openai() as client:
            response_id = await begun(client)
        # As its process dies: nothing is written any more.
        await lost.gateway._background.close()
        async with other.openai() as client, other.httpx() as http:
            events = await streamed(http, f"/responses/{response_id}?stream=true")
            check_events(events)
            assert events[-1]["type"] == "response.failed"
            response = await client.responses.retrieve(response_id)
            assert response.status == "failed"
            assert response.error is not None
            assert "lost" in response.error.message


async def test_neither_it_nor_its_followers_notice_a_restart_of_storage(
    town: Town, client: openai.AsyncOpenAI, storage: LocalStorage
) -> None:
    hanging(town, after=1)
    stream = await client.responses.create(
        model="scripted", input="hi", background=True, stream=True
    )
    events = []
    async for event in stream:
        events.append(event.to_dict())
        if event.type == "response.output_text.delta":
            await storage.restart()
            town.world.resume()
    check_events(events)
    assert events[-1]["type"] == "response.completed"


async def test_a_drained_gateway_lets_it_finish(town: Town, client: openai.AsyncOpenAI) -> None:
    hanging(town, after=1)
    response_id = await begun(client)
    await town.world.hanging.wait()
    draining = asyncio.create_task(town.gateway.drain())
    await asyncio.sleep(0)
    town.world.resume()
    await draining
    assert (await polled(client, response_id)).status == "completed"


async def test_a_long_answer_keeps_its_latest_events_only(
    opener: Opener, database_url: str
) -> None:
    async with LocalStorage(database_url, background_event_bytes=60_000) as storage:
        world = World(script=lambda _: says(*["x" * 10_000] * 20))
        town = await opener.open(world, settings(), storage=storage)
        async with town.openai() as client, town.httpx() as http:
            response_id = await begun(client)
            whole = await polled(client, response_id)
            answer = await http.get(f"/responses/{response_id}?stream=true&starting_after=2")
            assert answer.json()["error"]["code"] == "events_expired"
            # Without a number the answer is told anew, from the response.
            again = await streamed(http, f"/responses/{response_id}?stream=true")
            check_events(again)
            assert again[-1]["response"] == whole.to_dict()
            end = await streamed(http, f"/responses/{response_id}?stream=true&starting_after=27")
            for event in end:
                check_event(event)
            assert end[-1]["type"] == "response.completed"


async def test_events_are_not_kept_for_ever(opener: Opener, database_url: str) -> None:
    impatient = LocalStorage(database_url, background_events_s=0.001, background_grace_s=0.05)
    async with impatient as storage:
        town = await opener.open(settings=settings(), storage=storage)
        async with town.openai() as client, town.httpx() as http:
            response_id = await begun(client)
            await polled(client, response_id)
            path = f"/responses/{response_id}?stream=true"
            async with asyncio.timeout(20):
                # No event tells of it: as clients find out, who ask again.
                while (await http.get(f"{path}&starting_after=1")).status_code != 400:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            check_events(await streamed(http, path))
            assert (await client.responses.cancel(response_id)).status == "completed"
            await client.responses.delete(response_id)


async def test_a_gateway_that_closes_refuses_what_had_not_begun_to_run(town: Town) -> None:
    turns = town.gateway._background
    serving = town.gateway._serving
    caller = caller_of({}, "http", "local")
    frame = orjson.dumps({"model": "scripted", "input": "x", "background": True})
    serving.inbound.take(len(frame))
    request = TurnRequest("resp_1", frame, "local", "none", "scripted", "http")
    creating = asyncio.create_task(
        turns.create(request, ObservedTurn(serving.observation, caller), {})
    )
    closing = asyncio.create_task(turns.close())
    async with asyncio.timeout(20):
        with pytest.raises(Overloaded):
            await creating
        await closing
    assert len(turns) == 0
    assert town.held == {0}


async def test_a_stream_takes_a_place_as_long_as_it_runs(
    storage: LocalStorage, opener: Opener
) -> None:
    most = settings().model_copy(update={"max_connections": 1})
    town = await opener.open(settings=most, storage=storage)
    hanging(town)
    async with town.openai() as client, town.httpx() as http:
        response_id = await begun(client)
        path = f"/responses/{response_id}?stream=true"
        async with http.stream("GET", path) as stream:
            assert stream.status_code == 200
            refused = await http.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                *(503, "server_is_overloaded"),
            )
            await client.responses.cancel(response_id)
            await stream.aread()
        assert (await http.get("/responses/resp_1?stream=true")).status_code == 404
        check_events(await streamed(http, path))
        body = {"model": "scripted", "input": "x", "background": True, "stream": True}
        assert (await http.post("/responses", json=body)).status_code == 200
    assert town.gateway.held()["places"] == 0
