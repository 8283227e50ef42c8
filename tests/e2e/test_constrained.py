"""Tools, schemas and log probabilities of a real model, through the official client."""

import json
import math
from typing import Any, Literal

import jsonschema
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, ConfigDict
from running_server import RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}
ASKED = "What is the weather in Paris?"


class Rating(BaseModel):
    model_config = ConfigDict(extra="forbid")

    stars: Literal[1, 2, 3, 4, 5]
    verdict: Literal["good", "bad"]


def client_of(server: RunningServer) -> OpenAI:
    return OpenAI(base_url=server.url, api_key="none", max_retries=0)


def test_a_required_function_is_called_and_its_output_goes_on(
    server: RunningServer,
) -> None:
    with client_of(server) as client:
        first = client.responses.create(
            model="smollm2",
            input=ASKED,
            tools=[TOOL],
            tool_choice="required",
            parallel_tool_calls=False,
            max_output_tokens=100,
        )
        (call,) = first.output
        assert call.type == "function_call"
        assert (call.name, call.status) == ("get_weather", "completed")
        jsonschema.validate(json.loads(call.arguments), WEATHER)
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "18 C"}
        second = client.responses.create(
            model="smollm2",
            input=[output],
            previous_response_id=first.id,
            max_output_tokens=16,
        )
    assert second.output_text
    assert second.usage is not None
    assert first.usage is not None
    # The call stands in the prompt as it was sampled, so nothing of it is evaluated again.
    cached = second.usage.input_tokens_details.cached_tokens
    assert cached == first.usage.input_tokens + first.usage.output_tokens - 1


def test_arguments_of_a_call_are_streamed_as_they_are_sampled(
    server: RunningServer,
) -> None:
    with client_of(server) as client:
        stream = client.responses.create(
            model="smollm2",
            input=ASKED,
            tools=[TOOL],
            tool_choice={"type": "function", "name": "get_weather"},
            max_output_tokens=100,
            stream=True,
        )
        events = list(stream)
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    (done,) = (e for e in events if e.type == "response.function_call_arguments.done")
    assert len(deltas) > 1
    assert "".join(deltas) == done.arguments
    assert done.name == "get_weather"


def test_an_answer_is_parsed_by_the_schema_of_a_class(server: RunningServer) -> None:
    with client_of(server) as client:
        parsed = client.responses.parse(
            model="smollm2",
            input="Rate the film Jaws.",
            text_format=Rating,
            max_output_tokens=60,
        )
    assert isinstance(parsed.output_parsed, Rating)


def test_a_strict_schema_that_cannot_be_kept_is_refused_by_name(
    server: RunningServer,
) -> None:
    broken: Any = {**TOOL, "name": "broken", "parameters": {"type": "object", "not": {}}}
    with client_of(server) as client, pytest.raises(BadRequestError) as refused:
        client.responses.create(model="smollm2", input=ASKED, tools=[TOOL, broken])
    assert refused.value.param == "tools[1].parameters"


def test_log_probabilities_come_with_deltas_and_with_the_message(
    server: RunningServer,
) -> None:
    with client_of(server) as client:
        stream = client.responses.create(
            model="smollm2",
            input="Say hello.",
            include=["message.output_text.logprobs"],
            top_logprobs=2,
            temperature=0.0,
            max_output_tokens=8,
            stream=True,
        )
        events = list(stream)
    deltas = [e for e in events if e.type == "response.output_text.delta"]
    (done,) = (e for e in events if e.type == "response.output_text.done")
    entries = [entry for delta in deltas for entry in delta.logprobs]
    assert "".join(entry.token for entry in entries) == done.text
    assert [entry.logprob for entry in entries] == [entry.logprob for entry in done.logprobs]
    final = events[-1].response.output[0].content[0]
    assert [entry.token for entry in final.logprobs] == [entry.token for entry in entries]
    for entry in final.logprobs:
        assert len(entry.top_logprobs) == 2
        assert entry.logprob == entry.top_logprobs[0].logprob
        assert math.exp(entry.logprob) <= 1
        assert bytes(entry.bytes).decode() == entry.token


def test_a_model_without_log_probabilities_refuses_them(server: RunningServer) -> None:
    with client_of(server) as client, pytest.raises(BadRequestError) as refused:
        client.responses.create(
            model="sim-1000", input="hi", include=["message.output_text.logprobs"]
        )
    assert refused.value.param == "include"
