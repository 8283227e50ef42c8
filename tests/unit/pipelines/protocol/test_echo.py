import json
from typing import Any

from openai.types.responses import Response

from turnwire.pipelines.protocol.echo import Echo, Echoes, tools_echo
from turnwire.pipelines.protocol.requests import Request, RequestParser

OPEN_RESPONSES = {
    *("background", "instructions", "max_output_tokens", "max_tool_calls", "model", "metadata"),
    *("parallel_tool_calls", "previous_response_id", "prompt_cache_key", "safety_identifier"),
    *("reasoning", "service_tier", "store", "temperature", "top_p", "presence_penalty", "tools"),
    *("frequency_penalty", "top_logprobs", "text", "tool_choice", "truncation", "user"),
}


def request_of(fields: dict[str, object]) -> Request:
    frame = json.dumps({"model": "m"} | fields).encode()
    return RequestParser(bytes, 1000).parse(frame, "websocket")


def echo(**fields: object) -> bytes:
    """The whole of it, as an object."""
    request = request_of(fields)
    return whole(Echoes().of(request), tools_echo(request))


def whole(found: Echo, tools: bytes) -> bytes:
    return b"{%b,%b,%b}" % (found.members, tools, found.turn)


def key(**fields: object) -> bytes:
    return Echoes().of(request_of(fields)).key


def members(found: bytes) -> dict[str, Any]:
    joined: dict[str, Any] = json.loads(found)
    return joined


def test_every_member_that_repeats_the_request_is_there_once() -> None:
    found = echo()
    pairs = json.loads(found, object_pairs_hook=lambda pairs: [name for name, _ in pairs])
    assert set(members(found)) == OPEN_RESPONSES
    assert len(pairs) == len(OPEN_RESPONSES)


def test_the_echo_passes_the_types_of_the_official_client() -> None:
    repeated = members(
        echo(
            tools=[{"type": "function", "name": "f"}, {"type": "web_search"}],
            instructions="Be brief.",
            reasoning={"effort": "low"},
            text={"format": {"type": "json_schema", "name": "n", "schema": {}}},
            tool_choice={"type": "function", "name": "f"},
            metadata={"k": "v"},
        )
    )
    rest = {"id": "resp_1", "object": "response", "created_at": 1, "output": []}
    response = Response.model_validate(
        repeated | rest | {"error": None, "incomplete_details": None, "status": "completed"}
    )
    assert response.instructions == "Be brief."
    assert response.reasoning is not None
    assert response.reasoning.effort == "low"


def test_what_open_responses_wants_as_numbers_and_keys_is_never_null() -> None:
    repeated = members(echo())
    numbers = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs")
    assert [repeated[name] for name in numbers] == [1.0, 1.0, 0.0, 0.0, 0]
    assert repeated["reasoning"] == {"effort": None, "summary": None}
    assert repeated["text"] == {"format": {"type": "text"}}
    assert (repeated["service_tier"], repeated["truncation"]) == ("default", "disabled")


def test_the_key_covers_all_but_what_changes_each_turn() -> None:
    same = key(metadata={"a": "b"}, previous_response_id="r", input="x")
    assert same == key()
    for fields in (
        {"instructions": "x"},
        {"tools": [{"type": "web_search"}]},
        {"store": False},
        {"tool_choice": "none"},
        {"text": {"verbosity": "low"}},
        {"temperature": 0.5},
        {"user": "u"},
        {"model": "other"},
    ):
        assert key(**fields) != key()


def test_what_the_client_wrote_is_spliced_as_it_was() -> None:
    found = echo(text={"verbosity": "low", "format": {"type": "text"}})
    assert b'"text":{"verbosity": "low", "format": {"type": "text"}}' in found


def test_the_echo_of_a_request_that_repeats_another_is_the_same_as_by_itself() -> None:
    parser, echoes = RequestParser(bytes, 1000), Echoes()
    turns: list[dict[str, object]] = [
        {"input": "a"},
        {"input": "b", "metadata": {"k": "v"}},
        {"input": "c", "instructions": "Be brief."},
        {"input": "d", "instructions": "Be brief."},
        {"input": "e", "instructions": "Be brief.", "tools": [{"type": "web_search"}]},
        {"input": "f", "temperature": 0.5},
        {"input": "g", "temperature": 0.5},
    ]
    for number, fields in enumerate(turns):
        body = {"model": "m", "previous_response_id": f"resp_{number}"} | fields
        frame = json.dumps(body).encode()
        alone = Echoes().of(RequestParser(bytes, 1000).parse(frame, "websocket"))
        assert echoes.of(parser.parse(frame, "websocket")) == alone
