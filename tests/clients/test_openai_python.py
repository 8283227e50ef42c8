"""`openai` for Python over a real server: sockets, lanes, the strict stream helper, HTTP."""

import json
from collections.abc import Iterator
from typing import Any, cast

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketLane,
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketAccumulator,
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
)
from openai.resources.responses.responses import ResponsesConnection
from openai.types.responses import FunctionToolParam, Response, ResponseFunctionToolCall
from openai.types.responses.responses_server_event import ResponseWsError
from running_server import RunningServer
from turn_counts import Turns, turns_of

# The SDK opens its socket in a way that websockets 17 calls old; it works.
pytestmark = pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")

MODEL = "sim-max"
TOOL_TURNS = 24
TOOL: FunctionToolParam = {
    "type": "function",
    "name": "look_up",
    "description": "Look a word up.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
    },
}
NAMESPACE: Any = {
    "type": "namespace",
    "name": "books",
    "description": "Reference works.",
    "tools": [TOOL],
}
LIMITS = ResponsesWebSocketLimits(
    max_lanes=8,
    max_events_per_lane=512,
    max_events=2048,
    max_bytes_per_lane=1 << 22,
    max_bytes=1 << 24,
)


@pytest.fixture
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def ask(connection: ResponsesConnection, **fields: Any) -> Response:  # noqa: ANN401 -- of the SDK
    """One turn over a socket."""
    connection.response.create(model=MODEL, store=False, **fields)
    for event in connection:
        if event.type in ("response.completed", "response.incomplete"):
            return event.response
        assert event.type not in ("error", "response.failed"), event
    raise AssertionError("the socket ended")


def call_of(response: Response) -> ResponseFunctionToolCall:
    (call,) = (item for item in response.output if item.type == "function_call")
    return call


def output_of(call: ResponseFunctionToolCall) -> Any:  # noqa: ANN401 -- a TypedDict of the SDK
    return {"type": "function_call_output", "call_id": call.call_id, "output": "a colour"}


def test_a_rollout_of_many_tool_turns_runs_over_one_connection(
    client: OpenAI, server: RunningServer
) -> None:
    before = turns_of(server, "openai-python")
    steering: Any = {"tools": [TOOL], "metadata": {"sim.tool_turns": str(TOOL_TURNS)}}
    cached: list[int] = []
    with client.responses.connect() as connection:
        response = ask(connection, input="remember:COLOUR=teal Look it all up.", **steering)
        for _ in range(TOOL_TURNS):
            given = [output_of(call_of(response))]
            response = ask(connection, input=given, previous_response_id=response.id, **steering)
            assert response.usage is not None
            cached.append(response.usage.input_tokens_details.cached_tokens)
        assert response.output_text
        recalled = ask(connection, input="recall:COLOUR", previous_response_id=response.id)
    assert recalled.output_text == "teal"
    assert cached == sorted(cached)
    assert cached[0] > 0
    counted = turns_of(server, "openai-python") - before
    assert counted == Turns(
        {
            ("websocket", "new", "completed"): 1,
            ("websocket", "incremental", "completed"): TOOL_TURNS + 1,
        }
    )


def test_a_function_of_a_namespace_is_called_by_both_its_names(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        response = ask(connection, input="Look it up.", tools=[NAMESPACE])
        call = call_of(response)
        assert (call.namespace, call.name) == ("books", "look_up")
        last = ask(
            connection,
            input=[output_of(call)],
            tools=[NAMESPACE],
            previous_response_id=response.id,
        )
    assert last.output_text


def test_an_error_on_a_socket_is_an_event_and_the_socket_stays(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, input="hi", previous_response_id="resp_unknown")
        event = connection.recv()
        assert isinstance(event, ResponseWsError)
        assert event.status == 400
        assert event.error.code == "previous_response_not_found"
        assert event.error.param == "previous_response_id"
        assert ask(connection, input="hi").output_text


async def test_the_async_client_warms_up_and_continues(server: RunningServer) -> None:
    async with (
        AsyncOpenAI(base_url=server.url, api_key="none") as client,
        client.responses.connect() as connection,
    ):
        await connection.response.create(
            model=MODEL, input="remember:COLOUR=teal", store=False, generate=False
        )
        warm = [await connection.recv() for _ in range(2)]
        assert [event.type for event in warm] == ["response.created", "response.completed"]
        parent = cast(Any, warm[1]).response
        assert parent.output == []
        await connection.response.create(
            model=MODEL, input="recall:COLOUR", store=False, previous_response_id=parent.id
        )
        async for event in connection:
            if event.type == "response.completed":
                assert event.response.output_text == "teal"
                break


async def test_lanes_run_side_by_side_and_one_forks_from_another(server: RunningServer) -> None:
    async with (
        AsyncOpenAI(base_url=server.url, api_key="none") as client,
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        first, second = session.lane("planner"), session.lane("critic")
        body: Any = {"type": "response.create", "model": MODEL, "store": False}
        await first.send(body | {"input": "remember:COLOUR=teal"})
        await second.send(body | {"input": "remember:COLOUR=red"})
        seen = await accumulated(first, "planner")
        planned, criticised = seen, await second.get_final_response()
        fork = {"input": "recall:COLOUR", "previous_response_id": planned.id}
        await second.send(body | fork)
        assert (await second.get_final_response()).output_text == "teal"
        await session.default.send(body | {"input": "hi", "previous_response_id": "resp_unknown"})
        with pytest.raises(ResponsesWebSocketError):
            await session.default.get_final_response()
        await first.send(body | {"input": "recall:COLOUR", "previous_response_id": criticised.id})
        # On its own lane the critic has gone on; what it said before is no parent for sure.
        assert (await first.get_final_response()).output_text == "red"


async def accumulated(lane: AsyncResponsesWebSocketLane, name: str) -> Response:
    """The response as the SDK's accumulator puts it together."""
    accumulator = ResponsesWebSocketAccumulator()
    while True:
        event = await lane.recv()
        assert getattr(event, "stream_id", None) == name
        accumulator.add_event(event)
        if event.type == "response.completed":
            final = accumulator.get_final_response()
            assert accumulator.snapshot().output_text == final.output_text
            return final


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "hi"},
        {"input": "hi", "metadata": {"sim.reasoning_tokens": "20"}},
        {"input": "Look it up.", "tools": [TOOL]},
        {
            "input": "Look both up.",
            "tools": [TOOL],
            "metadata": {"sim.parallel_calls": "3", "sim.reasoning_tokens": "8"},
        },
    ],
    ids=["text", "reasoning", "call", "parallel calls"],
)
def test_the_strict_stream_helper_takes_every_event(client: OpenAI, fields: dict[str, Any]) -> None:
    with client.responses.stream(model=MODEL, store=False, **fields) as stream:
        types = [event.type for event in stream]
        final = stream.get_final_response()
    assert types[0] == "response.created"
    assert types[-1] == "response.completed"
    assert final.output


def test_a_stored_response_is_retrieved_continued_and_deleted(client: OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="remember:COLOUR=teal")
    assert made.output_text
    assert client.responses.retrieve(made.id).output_text == made.output_text
    items = client.responses.input_items.list(made.id)
    (item,) = items.data
    assert item.type == "message"
    assert cast(Any, item).content[0].text == "remember:COLOUR=teal"
    with client.responses.connect() as connection:
        told = ask(connection, input="recall:COLOUR", previous_response_id=made.id)
    assert told.output_text == "teal"
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="hi", previous_response_id=made.id)
    assert refused.value.code == "previous_response_not_found"


def test_input_tokens_are_counted_as_a_turn_would(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input="How long is this?")
    made = client.responses.create(model=MODEL, input="How long is this?", store=False)
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens


def test_streaming_over_http_ends_as_the_sdk_expects(client: OpenAI) -> None:
    stream = client.responses.create(model=MODEL, input="hi", stream=True, store=False)
    events = list(stream)
    assert events[-1].type == "response.completed"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text


def test_structured_output_is_parsed_by_the_sdk(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"river": {"type": "string"}, "length_km": {"type": "integer"}},
        "required": ["river", "length_km"],
        "additionalProperties": False,
    }
    made = client.responses.create(
        model=MODEL,
        input="Name a river.",
        text={"format": {"type": "json_schema", "name": "river", "schema": schema}},
    )
    assert set(json.loads(made.output_text)) == {"river", "length_km"}


@pytest.mark.parametrize(
    ("error", "status", "code", "fields"),
    [
        (openai.BadRequestError, 400, "model_not_found", {"model": "no-such-model"}),
        (openai.BadRequestError, 400, "invalid_request_error", {"temperature": 9}),
        (
            openai.BadRequestError,
            400,
            "context_length_exceeded",
            {"model": "sim-65", "input": "word " * 4000},
        ),
    ],
    ids=["unknown model", "bad field", "too long"],
)
def test_a_refusal_is_the_exception_the_sdk_has_for_it(
    client: OpenAI,
    error: type[openai.APIStatusError],
    status: int,
    code: str,
    fields: dict[str, Any],
) -> None:
    with pytest.raises(error) as refused:
        client.responses.create(**{"model": MODEL, "input": "hi", "store": False} | fields)
    assert refused.value.status_code == status
    assert refused.value.code == code
