"""Background responses over real storage: made, polled, followed, resumed, cancelled, lost."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import orjson
import pytest
from gateway_worlds import Opener, Town
from local_storage import LocalStorage
from scripted_ports import World, says
from simulated_ports import SimulatedPorts
from turn_worlds import check_event, check_events

from turnwire.gateway.caller import caller_of
from turnwire.gateway.observation import ObservedTurn
from turnwire.pipelines.config import BackgroundSettings, GatewaySettings
from turnwire.pipelines.protocol.errors import Overloaded
from turnwire.pipelines.turn_request import TurnRequest

QUICK = BackgroundSettings(flush_s=0.001, renew_s=0.05)


@pytest.fixture
async def storage(database_url: str) -> AsyncIterator[LocalStorage]:
    async with LocalStorage(database_url) as storage:
        yield storage


def settings(**background: object) -> GatewaySettings:
    return GatewaySettings(port=0, background=QUICK.model_copy(update=background))


@pytest.fixture
async def town(storage: LocalStorage, opener: Opener) -> Town:
    return await opener.open(settings=settings(), storage=storage)


@pytest.fixture
async def client(town: Town) -> AsyncIterator[openai.AsyncOpenAI]:
    async with town.openai() as client:
        yield client


def hanging(town: Town, after: int = 0) -> None:
    """The next turn hangs, with so many texts said."""
    town.world.hang_at = len(town.world.steps) + 3 + after + 1


async def begun(client: openai.AsyncOpenAI, **fields: Any) -> str:  # noqa: ANN401
    """The id of a background response."""
    response = await client.responses.create(
        model="scripted", input="hi", background=True, **fields
    )
    assert (response.status, response.background, response.output) == ("queued", True, [])
    return response.id


async def polled(client: openai.AsyncOpenAI, response_id: str) -> openai.types.responses.Response:
    """As clients do it, with less patience."""
    async with asyncio.timeout(20):
        while True:
            response = await client.responses.retrieve(response_id)
            if response.status not in ("queued", "in_progress"):
                return response
            await asyncio.sleep(0.01)


async def streamed(client: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    return [orjson.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]


async def test_it_is_queued_then_polled_then_continued(
    town: Town, client: openai.AsyncOpenAI
) -> None:
    response_id = await begun(client)
    response = await polled(client, response_id)
    assert (response.status, response.output_text) == ("completed", "Hello world")
    items = await client.responses.input_items.list(response_id)
    assert [item.type for item in items.data] == ["message"]
    following = await client.responses.create(
        model="scripted", input="and?", previous_response_id=response_id
    )
    assert following.status == "completed"
    assert [record.status for record in town.world.records] == ["completed"] * 2


async def test_its_stream_is_the_one_of_the_foreground_but_for_its_beginning(
    client: openai.AsyncOpenAI,
) -> None:
    stream = await client.responses.create(
        model="scripted", input="hi", background=True, stream=True
    )
    events = [event.to_dict() async for event in stream]
    check_events(events)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert [event["response"]["status"] for event in events[:3]] == [  # type: ignore[index]
        *("queued", "queued", "in_progress")
    ]
    plain = await client.responses.create(model="scripted", input="hi", stream=True)
    assert [event.type async for event in plain][2:] == kinds[3:]


async def test_a_dropped_stream_is_resumed_without_a_gap_and_without_a_repetition(
    town: Town, client: openai.AsyncOpenAI
) -> None:
    hanging(town, after=1)
    first = await client.responses.create(
        model="scripted", input="hi", background=True, stream=True
    )
    seen = []
    async for event in first:
        seen.append(event.to_dict())
        if event.type == "response.output_text.delta":
            break
    await first.close()
    response_id = seen[0]["response"]["id"]  # type: ignore[index]
    running = await client.responses.retrieve(response_id)
    assert running.status == "in_progress"
    resumed = await client.responses.retrieve(
        response_id, stream=True, starting_after=len(seen) - 1
    )
    town.world.resume()
    rest = [event.to_dict() async for event in resumed]
    check_events(seen + rest)
    async with town.httpx() as http:
        for after in (-1, 0, 5, len(seen + rest) - 1, 1000):
            query = f"&starting_after={after}" if after >= 0 else ""
            again = await streamed(http, f"/responses/{response_id}?stream=true{query}")
            assert again == (seen + rest)[after + 1 :]


async def test_the_helper_of_the_sdk_streams_it_by_its_id(client: openai.AsyncOpenAI) -> None:
    response_id = await begun(client)
    async with client.responses.stream(response_id=response_id, starting_after=4) as stream:
        numbers = [event.sequence_number async for event in stream]
        final = await stream.get_final_response()
    assert numbers[0] == 5
    assert final.output_text == "Hello world"


async def test_it_is_cancelled_through_any_gateway_and_more_than_once(
    storage: LocalStorage, opener: Opener, town: Town, client: openai.AsyncOpenAI
) -> None:
    other = await opener.open(settings=settings(), storage=storage)
    for near in (True, False):
        hanging(town)
        town.world.closed.clear()
        response_id = await begun(client)
        await town.world.hanging.wait()
        town.world.hanging.clear()
        async with (town if near else other).openai() as canceller, town.httpx() as http:
            cancelled = [await canceller.responses.cancel(response_id) for _ in range(3)]
            assert {response.status for response in cancelled} == {"cancelled"}
            await town.world.closed.wait()
            assert (await client.responses.retrieve(response_id)).status == "cancelled"
            events = await streamed(http, f"/responses/{response_id}?stream=true")
        check_events(events)
        assert events[-1]["type"] == "response.incomplete"
        assert events[-1]["response"]["status"] == "cancelled"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(
                model="scripted", input="x", previous_response_id=response_id
            )
        assert refused.value.code == "previous_response_not_found"
    assert [record.status for record in town.world.records] == ["cancelled"] * 2


async def test_what_is_over_stays_as_it_is_when_it_is_cancelled(
    client: openai.AsyncOpenAI,
) -> None:
    response_id = await begun(client)
    await polled(client, response_id)
    assert (await client.responses.cancel(response_id)).status == "completed"
    foreground = await client.responses.create(model="scripted", input="hi")
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        await client.responses.cancel(foreground.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.cancel("resp_unknown")


async def test_nobody_continues_from_it_before_it_is_completed(
    town: Town, client: openai.AsyncOpenAI
) -> None:
    hanging(town)
    response_id = await begun(client)
    await town.world.hanging.wait()
    with pytest.raises(openai.BadRequestError, match="still running") as refused:
        await client.responses.create(model="scripted", input="x", previous_response_id=response_id)
    assert refused.value.param == "previous_response_id"
    await client.responses.cancel(response_id)


async def texts(client: openai.AsyncOpenAI, conversation_id: str) -> list[str]:
    listed = client.conversations.items.list(conversation_id, order="asc")
    return [item.content[0].text async for item in listed]  # type: ignore[union-attr]


async def test_in_a_conversation_it_is_added_when_it_ends_and_the_next_goes_on_from_it(
    town: Town, client: openai.AsyncOpenAI
) -> None:
    made = await client.conversations.create()
    hanging(town)
    first = await begun(client, conversation=made.id)
    await town.world.hanging.wait()
    with pytest.raises(openai.BadRequestError) as refused:
        await begun(client, conversation=made.id)
    assert refused.value.code == "conversation_locked"
    assert await texts(client, made.id) == []
    town.world.resume()
    response = await polled(client, first)
    assert response.status == "completed"
    assert response.conversation is not None
    assert response.conversation.id == made.id
    assert await texts(client, made.id) == ["hi", "Hello world"]
    assert (await polled(client, await begun(client, conversation=made.id))).status == "completed"
    assert await texts(client, made.id) == ["hi", "Hello world"] * 2
    following = await client.responses.create(
        model="scripted", input="and?", previous_response_id=first
    )
    assert following.status == "completed"


@pytest.mark.parametrize("change", ["added", "deleted"])
async def test_a_conversation_that_changed_through_another_gateway_is_not_added_to(
    storage: LocalStorage, opener: Opener, town: Town, client: openai.AsyncOpenAI, change: str
) -> None:
    other = await opener.open(settings=settings(), storage=storage)
    made = await client.conversations.create()
    hanging(town, after=1)
    response_id = await begun(client, conversation=made.id)
    await town.world.hanging.wait()
    async with other.openai() as there:
        if change == "added":
            item = {"type": "message", "role": "user", "content": "first"}
            await there.conversations.items.create(made.id, items=[item])  # type: ignore[list-item]
        else:
            await there.conversations.delete(made.id)
    town.world.resume()
    response = await polled(client, response_id)
    assert response.status == "failed"
    async with town.httpx() as http:
        events = await streamed(http, f"/responses/{response_id}?stream=true")
    check_events(events)
    code = events[-1]["response"]["error"]["code"]
    if change == "added":
        assert code == "conversation_locked"
        assert await texts(client, made.id) == ["first"]
        assert (await polled(client, await begun(client, conversation=made.id))).output_text
    else:
        assert code == "not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="scripted", input="x", previous_response_id=response_id)
    assert refused.value.code == "previous_response_not_found"


async def test_one_that_is_cancelled_leaves_its_conversation_as_it_was(
    town: Town, client: openai.AsyncOpenAI
) -> None:
    made = await client.conversations.create()
    hanging(town, after=1)
    response_id = await begun(client, conversation=made.id)
    await town.world.hanging.wait()
    await client.responses.cancel(response_id)
    await town.world.closed.wait()
    assert await texts(client, made.id) == []
    assert (await polled(client, await begun(client, conversation=made.id))).output_text


async def test_it_compacts_a_conversation_of_its_own(storage: LocalStorage, opener: Opener) -> None:
    town = await opener.open(settings=settings(), simulated=SimulatedPorts(), storage=storage)
    async with town.openai() as client:
        made = await client.conversations.create()
        asked: dict[str, Any] = {"model": "sim-max", "background": True, "conversation": made.id}
        for given in (
            "remember:color=blue " + "and more " * 99,
            [{"type": "compaction_trigger"}],
            "recall:color",
        ):
            response = await client.responses.create(**asked | {"input": given})
            response = await polled(client, response.id)
            assert response.error is None
        assert response.output_text == "blue"
        items = [i.type async for i in client.conversations.items.list(made.id, order="asc")]
        assert items == ["message", "message", "compaction", "message", "message"]
        async with town.httpx() as http:
            check_events(await streamed(http, f"/responses/{response.id}?stream=true"))


async def test_deleting_a_running_one_stops_it(town: Town, client: openai.AsyncOpenAI) -> None:
    hanging(town)
    response_id = await begun(client)
    await town.world.hanging.wait()
    await client.responses.delete(response_id)
    await town.world.closed.wait()
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            await call(response_id)


async def test_one_that_fails_can_be_retrieved(town: Town, client: openai.AsyncOpenAI) -> None:
    town.world.fail_at = 3
    town.world.error = ValueError("secret")
    response_id = await begun(client)
    response = await polled(client, response_id)
    assert response.status == "failed"
    assert response.error is not None
    assert "secret" not in response.error.message
    async with town.httpx() as http:
        check_events(await streamed(http, f"/responses/{response_id}?stream=true"))
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="scripted", input="x", previous_response_id=response_id)
    assert refused.value.code == "previous_response_not_found"


async def test_a_request_that_cannot_be_served_is_refused_at_once(
    client: openai.AsyncOpenAI, town: Town
) -> None:
    for fields, param in (({"model": "unknown"}, "model"), ({"temperature": 9}, "temperature")):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(
                **{"model": "scripted", "input": "x", "background": True} | fields  # type: ignore[call-overload]
            )
        assert refused.value.param == param
    assert town.world.records == []


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


async def test_what_can_be_no_id_is_found_in_neither_database(town: Town) -> None:
    async with town.httpx() as http:
        made = (await http.post("/conversations")).json()["id"]
        for method, path, status in (
            ("GET", "/responses/resp_%00", 404),
            ("DELETE", "/responses/resp_%00", 404),
            ("POST", "/responses/resp_%00/cancel", 404),
            ("GET", "/responses/resp_%00/input_items", 404),
            ("GET", "/responses/resp_%00?stream=true", 404),
            ("GET", "/conversations/conv_%00", 404),
            ("GET", f"/conversations/{made}/items/msg_%00", 404),
            ("GET", f"/conversations/{made}/items?after=msg_%00", 400),
        ):
            answer = await http.request(method, path)
            assert answer.status_code == status, answer.text
        for unknown in (
            {"previous_response_id": "resp_\0"},
            {"input": [{"type": "item_reference", "id": "msg_" + "\0" * 40}]},
        ):
            body = {"model": "scripted", "input": "x"} | unknown
            answer = await http.post("/responses", json=body)
            assert answer.status_code == 400, answer.text


async def test_another_tenant_does_not_see_it(
    storage: LocalStorage,
    opener: Opener,
    tmp_path: Any,  # noqa: ANN401
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-a team-a\nsk-b team-b\n")
    keyed = settings().model_copy(update={"key_file": str(keys)})
    town = await opener.open(settings=keyed, storage=storage)
    async with town.openai("sk-a") as ours, town.openai("sk-b") as theirs:
        response_id = await begun(ours)
        for call in (
            theirs.responses.retrieve,
            theirs.responses.cancel,
            theirs.responses.delete,
        ):
            with pytest.raises(openai.NotFoundError):
                await call(response_id)
        with pytest.raises(openai.NotFoundError):
            await theirs.responses.retrieve(response_id, stream=True)
        assert (await polled(ours, response_id)).status == "completed"


async def test_a_delete_that_was_carried_out_before_is_told_to_connections(town: Town) -> None:
    async with town.httpx() as http:
        assert (await http.delete("/responses/resp_1")).status_code == 404
    assert town.leases.forgotten == [("local", "resp_1")]


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
