"""Function tools on the simulated models: the same over both transports."""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from gateway_worlds import Opener, Town, heard
from scripted_ports import create
from simulated_ports import SimulatedPorts

Play = Callable[..., Awaitable[list[dict[str, Any]]]]


def tool(name: str) -> dict[str, Any]:
    members = {"path": {"type": "string"}, "depth": {"type": "integer"}}
    parameters = {"type": "object", "properties": members, "required": list(members)}
    return {"type": "function", "name": name, "parameters": parameters, "strict": True}


TOOLS = [tool("read"), tool("write")]


@pytest.fixture
async def town(opener: Opener) -> Town:
    return await opener.open(simulated=SimulatedPorts())


@pytest.fixture(params=["socket", "HTTP"])
def play(request: pytest.FixtureRequest, town: Town) -> Play:
    """One turn as its events; a refusal is one event with `status` and `error`."""

    async def over_socket(**fields: object) -> list[dict[str, Any]]:
        async with town.connect() as socket:
            await socket.send(create(**{"model": "sim-max", "store": True} | fields).decode())
            return await heard(socket)

    async def over_http(**fields: object) -> list[dict[str, Any]]:
        body = create(**{"model": "sim-max", "store": True, "stream": True} | fields)
        async with town.httpx() as client:
            answer = await client.post("/responses", content=body)
        if answer.status_code != 200:
            return [{"type": "error", "status": answer.status_code} | answer.json()]
        lines = answer.text.split("\n")
        return [orjson.loads(line[6:]) for line in lines if line.startswith("data: {")]

    return over_socket if request.param == "socket" else over_http


def output(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert events[-1]["type"] == "response.completed", events[-1]
    items: list[dict[str, Any]] = events[-1]["response"]["output"]
    return items


def names(events: list[dict[str, Any]]) -> list[str]:
    """The functions that were called; empty for an answer in text."""
    return [item["name"] for item in output(events) if item["type"] == "function_call"]


async def test_arguments_come_in_deltas_and_are_the_same_in_every_place(play: Play) -> None:
    metadata = {"sim.output_tokens": "9000"}
    events = await play(tools=TOOLS, metadata=metadata, max_output_tokens=10_000)
    (call,) = output(events)
    added = next(e["item"] for e in events if e["type"] == "response.output_item.added")
    assert (added["arguments"], added["status"]) == ("", "in_progress")
    kind = "response.function_call_arguments"
    deltas = [event["delta"] for event in events if event["type"] == f"{kind}.delta"]
    (done,) = (event for event in events if event["type"] == f"{kind}.done")
    assert len(deltas) > 1
    assert "".join(deltas) == done["arguments"] == call["arguments"]
    assert set(orjson.loads(call["arguments"])) == {"path", "depth"}
    assert (call["id"], call["call_id"]) == (added["id"], added["call_id"])
    assert (done["name"], call["status"]) == ("read", "completed")


@pytest.mark.parametrize(
    ("tool_choice", "called"),
    [
        ("auto", ["read"]),
        ("none", []),
        ("required", ["read"]),
        ({"type": "function", "name": "write"}, ["write"]),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "write"}],
            },
            ["write"],
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, []),
    ],
)
async def test_tool_choice_is_obeyed(play: Play, tool_choice: object, called: list[str]) -> None:
    events = await play(tools=TOOLS, tool_choice=tool_choice)
    assert names(events) == called
    assert bool(called) != any(item["type"] == "message" for item in output(events))


async def test_calls_must_be_made_even_after_an_output_when_it_is_required(play: Play) -> None:
    history = [*CALL, {"type": "function_call_output", "call_id": "c1", "output": "x"}]
    assert names(await play(input=history, tools=TOOLS, tool_choice="auto")) == []
    assert names(await play(input=history, tools=TOOLS, tool_choice="required")) == ["read"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": "required", "tools": [{"type": "web_search"}]},
        {"tool_choice": {"type": "function", "name": "other"}, "tools": TOOLS},
        {"tool_choice": {"type": "function"}, "tools": TOOLS},
    ],
)
async def test_a_choice_that_cannot_be_obeyed_is_refused_before_the_response_exists(
    play: Play, fields: dict[str, Any]
) -> None:
    (refusal,) = await play(**fields)
    assert refusal["status"] == 400
    assert refusal["error"]["param"].startswith("tool_choice")


@pytest.mark.parametrize(("parallel", "calls"), [(None, 3), (True, 3), (False, 1)])
async def test_parallel_calls_are_items_of_their_own(
    play: Play, parallel: bool | None, calls: int
) -> None:
    metadata = {"sim.parallel_calls": "3"}
    events = await play(tools=TOOLS, parallel_tool_calls=parallel, metadata=metadata)
    items = output(events)
    assert len(items) == len({item["call_id"] for item in items}) == calls
    added = [e for e in events if e["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == list(range(calls))
    assert events[-1]["response"]["parallel_tool_calls"] is (parallel is not False)


CALL: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
]
OUTPUTS: dict[str, object] = {
    "text": "done",
    "nothing": "",
    "parts": [{"type": "input_text", "text": "done"}],
    "an image": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}],
}


@pytest.mark.parametrize("given", OUTPUTS.values(), ids=OUTPUTS.keys())
async def test_an_output_answers_the_call_before_it(play: Play, given: object) -> None:
    (call,) = output(events := await play(tools=TOOLS))
    answer = {"type": "function_call_output", "call_id": call["call_id"], "output": given}
    parent = events[-1]["response"]["id"]
    by_parent = await play(previous_response_id=parent, input=[answer], tools=TOOLS)
    by_history = await play(input=[CALL[0], call, answer], tools=TOOLS)
    assert names(by_parent) == names(by_history) == []


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
async def test_an_output_of_no_call_is_refused_and_named(play: Play, kind: str) -> None:
    stray = {"type": kind, "call_id": "call_nobody", "output": "x"}
    (refusal,) = await play(input=[*CALL, stray], tools=TOOLS)
    assert (refusal["status"], refusal["error"]["param"]) == (400, "input")
    assert "call_nobody" in refusal["error"]["message"]


async def test_an_output_before_its_call_in_one_request_is_taken(play: Play) -> None:
    answer = {"type": "function_call_output", "call_id": "c1", "output": "x"}
    assert names(await play(input=[CALL[0], answer, CALL[1]], tools=TOOLS)) == []


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
        {"type": "input_image", "file_id": "file_1"},
        {"type": "input_file", "file_data": "AA==", "filename": "a.pdf"},
    ],
)
async def test_parts_that_are_not_text_are_taken(play: Play, part: dict[str, Any]) -> None:
    content = [{"type": "input_text", "text": "what is it?"}, part]
    (item,) = output(await play(input=[{"role": "user", "content": content}]))
    assert item["content"][0]["text"]
