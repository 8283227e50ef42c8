"""`/v1/responses/compact` as clients use it, and what it costs."""

import asyncio

import orjson
import pytest
from event_validators import compaction_complaint
from gateway_worlds import Opener, Town, turn
from openai import BadRequestError
from scripted_ports import World
from simulated_ports import SimulatedPorts

PAST = [
    {"role": "user", "content": "remember:color=blue " + "and more " * 200},
    {"role": "assistant", "content": "Noted."},
]
ASK = {"role": "user", "content": "recall:color"}


@pytest.fixture
async def town(opener: Opener) -> Town:
    return await opener.open(simulated=SimulatedPorts())


def text_of(response: dict[str, object]) -> str:
    output = response["output"]
    assert isinstance(output, list)
    text: str = output[-1]["content"][0]["text"]
    return text


async def test_the_official_client_compacts_and_goes_on_over_a_websocket(town: Town) -> None:
    async with town.openai() as client:
        compacted = await client.responses.compact(model="sim-max", input=PAST)  # type: ignore[arg-type]
    assert (compacted.object, [item.type for item in compacted.output]) == (
        "response.compaction",
        ["compaction"],
    )
    window = [item.model_dump(exclude_none=True) for item in compacted.output]
    async with town.connect() as socket:
        fields = {"model": "sim-max", "store": False}
        first = (await turn(socket, input=[*window, ASK], **fields))[-1]["response"]
        assert text_of(first) == "blue"
        # The summary is what is read, not the two hundred words it stands for.
        assert first["usage"]["input_tokens"] < compacted.usage.input_tokens / 4
        second = await turn(socket, input=[ASK], previous_response_id=first["id"], **fields)
        assert text_of(second[-1]["response"]) == "blue"
        fresh = (await turn(socket, input=[ASK], **fields))[-1]["response"]
        assert text_of(fresh) == "unknown"


async def test_a_stored_chain_is_compacted_by_its_id(town: Town) -> None:
    async with town.openai() as client:
        first = await client.responses.create(model="sim-max", input=PAST)  # type: ignore[arg-type]
        compacted = await client.responses.compact(
            model="sim-max", previous_response_id=first.id, instructions="Be brief."
        )
        window = [item.model_dump(exclude_none=True) for item in compacted.output]
        after = await client.responses.create(model="sim-max", input=[*window, ASK])  # type: ignore[arg-type,list-item]
    assert after.output_text == "blue"


async def test_a_summary_is_billed_and_screened_like_any_turn(opener: Opener) -> None:
    world = World()
    town = await opener.open(world, simulated=SimulatedPorts())
    async with town.httpx() as client:
        answer = await client.post(
            "/responses/compact", json={"model": "sim-max", "input": "remember:color=blue"}
        )
    assert compaction_complaint(answer.content) == ""
    (record,) = world.records
    assert record.status == "completed"
    usage = answer.json()["usage"]
    assert (record.counts.input_tokens, record.counts.output_tokens) == (
        usage["input_tokens"],
        usage["output_tokens"],
    )


async def test_usage_of_a_turn_over_the_threshold_is_that_of_both_prompts(opener: Opener) -> None:
    world = World()
    town = await opener.open(world, simulated=SimulatedPorts())
    rule = [{"type": "compaction", "compact_threshold": 1000}]
    long = [PAST[0] | {"content": str(PAST[0]["content"]) * 4}, PAST[1], ASK]
    async with town.connect() as socket:
        fields = {"model": "sim-max", "store": False, "context_management": rule}
        events = await turn(socket, input=long, **fields)
        response = events[-1]["response"]
        assert [item["type"] for item in response["output"]] == ["compaction", "message"]
        assert text_of(response) == "blue"
        (record,) = world.records
        assert record.counts.input_tokens == response["usage"]["input_tokens"] > 1800
        after = await turn(socket, input=[ASK], previous_response_id=response["id"], **fields)
        assert [item["type"] for item in after[-1]["response"]["output"]] == ["message"]
        assert text_of(after[-1]["response"]) == "blue"
        assert after[-1]["response"]["usage"]["input_tokens"] < 100
        under = await turn(socket, input=[*PAST, ASK], **fields)
        assert [item["type"] for item in under[-1]["response"]["output"]] == ["message"]


async def test_a_client_that_leaves_stops_its_summary(opener: Opener) -> None:
    world = World(hang_at=3)
    town = await opener.open(world)
    async with town.httpx() as client:
        asking = asyncio.create_task(
            client.post("/responses/compact", json={"model": "scripted", "input": "x"})
        )
        await world.hanging.wait()
        asking.cancel()
        await world.closed.wait()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x"}, "model"),
        ({"model": "sim-max"}, "input"),
        ({"model": "sim-max", "input": []}, "input"),
        ({"model": "sim-max", "input": 3}, "input"),
        ({"model": "sim-max", "input": [{"type": "compaction_trigger"}]}, "input[0]"),
        ({"model": "unknown", "input": "x"}, "model"),
        ({"model": "sim-max", "previous_response_id": "resp_x"}, "previous_response_id"),
    ],
)
async def test_what_cannot_be_compacted_is_refused(
    town: Town, body: dict[str, object], param: str
) -> None:
    async with town.httpx() as client:
        answer = await client.post("/responses/compact", content=orjson.dumps(body))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_a_foreign_compaction_item_is_refused(town: Town) -> None:
    item = {"type": "compaction", "encrypted_content": "gAAAAABforeign"}
    async with town.openai() as client:
        with pytest.raises(BadRequestError) as found:
            await client.responses.create(model="sim-max", input=[item])  # type: ignore[list-item]
    assert found.value.code == "invalid_encrypted_content"
