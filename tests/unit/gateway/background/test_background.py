"""Background responses over real storage: made, polled, followed, resumed, cancelled."""

from typing import Any

import openai
import pytest
from background_turns import begun, hanging, polled, settings, streamed
from gateway_worlds import Opener, Town
from local_storage import LocalStorage
from turn_worlds import check_events


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
