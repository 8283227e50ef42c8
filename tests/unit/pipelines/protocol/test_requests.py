import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.items import Message
from turnwire.pipelines.protocol.requests import Request, RequestParser, Transport

SECRET = "sk-secret-7f3a"


def parse(transport: Transport = "websocket", /, **fields: object) -> Request:
    parser = RequestParser(bytes, max_input_characters=1000)
    return parser.parse(json.dumps({"model": "m"} | fields).encode(), transport)


def user(content: object) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": content}]}


def tool(**members: object) -> dict[str, Any]:
    return {"tools": [{"type": "web_search"}, {"type": "function", "name": "f"} | members]}


def allowed(tools: list[object], mode: str = "auto") -> dict[str, Any]:
    return {"tool_choice": {"type": "allowed_tools", "mode": mode, "tools": tools}}


def schema(**members: object) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}} | members}}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": ""}, "model"),
    ({"model": 3}, "model"),
    ({"previous_response_id": 3}, "previous_response_id"),
    ({"input": 3}, "input"),
    ({"input": {"role": "user"}}, "input"),
    ({"input": "x" * 1001}, "input"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x" * 1001}]}, "input"),
    ({"input": [{"type": "future_item", "payload": "x" * 1001}]}, "input"),
    ({"input": [SECRET]}, "input[0]"),
    ({"input": [{"id": 3, "role": "user", "content": ""}]}, "input[0].id"),
    ({"input": [{"type": 3}]}, "input[0].type"),
    ({"input": [{"content": "x"}]}, "input[0].role"),
    ({"input": [{"role": SECRET, "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    (user("x") | {"input": [*user("x")["input"], *user(3)["input"]]}, "input[1].content"),
    (user(None), "input[0].content"),
    (user([SECRET]), "input[0].content[0]"),
    (user([{"text": "x"}]), "input[0].content[0].type"),
    (user([{"type": "input_text", "text": ["x"]}]), "input[0].content[0].text"),
    (user([{"type": "input_text"}]), "input[0].content[0].text"),
    (user([{"type": "refusal", "text": "x"}]), "input[0].content[0].refusal"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": ""}]}, "input[0].call_id"),
    (
        {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]},
        "input[0].arguments",
    ),
    (
        {"input": [{"type": "function_call", "call_id": "c", "name": "", "arguments": ""}]},
        "input[0].name",
    ),
    (
        {"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]},
        "input[0].input",
    ),
    (
        {"input": [{"type": "function_call_output", "call_id": "x" * 65, "output": ""}]},
        "input[0].call_id",
    ),
    (
        {"input": [{"type": "function_call_output", "call_id": "", "output": ""}]},
        "input[0].call_id",
    ),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
    (
        {"input": [{"type": "custom_tool_call_output", "call_id": "c", "output": 3}]},
        "input[0].output",
    ),
    ({"input": [{"type": "reasoning", "summary": SECRET}]}, "input[0].summary"),
    ({"input": [{"type": "reasoning", "summary": [SECRET]}]}, "input[0].summary[0]"),
    ({"input": [{"type": "reasoning", "content": [{"type": 3}]}]}, "input[0].content[0].type"),
    ({"input": [{"type": "reasoning", "encrypted_content": 3}]}, "input[0].encrypted_content"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id"),
    ({"instructions": ["x"]}, "instructions"),
    ({"tools": {}}, "tools"),
    ({"tools": [SECRET]}, "tools[0]"),
    ({"tools": [{"name": "f"}]}, "tools[0].type"),
    (tool(name=None), "tools[1].name"),
    (tool(name="not a name"), "tools[1].name"),
    (tool(name="x" * 65), "tools[1].name"),
    (tool(parameters=[]), "tools[1].parameters"),
    (tool(strict="yes"), "tools[1].strict"),
    (tool(description=3), "tools[1].description"),
    ({"tool_choice": SECRET}, "tool_choice"),
    ({"tool_choice": 3}, "tool_choice"),
    ({"tool_choice": {"name": "f"}}, "tool_choice.type"),
    ({"tool_choice": {"type": SECRET}}, "tool_choice.type"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
    (tool() | allowed([{}]), "tool_choice.tools[0].type"),
    (tool() | allowed([SECRET]), "tool_choice.tools[0]"),
    (tool() | allowed([{"type": "function"}]), "tool_choice.tools[0].name"),
    (tool() | allowed([{"type": "function", "name": "g"}]), "tool_choice.tools[0]"),
    (tool() | allowed([{"type": "web_search"}], "required"), "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
    (tool() | {"tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    (tool() | {"tool_choice": {"type": "custom", "name": "f"}}, "tool_choice"),
    (tool() | {"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    (
        {"tool_choice": {"type": "allowed_tools", "mode": SECRET, "tools": []}},
        "tool_choice.mode",
    ),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ({"store": 1}, "store"),
    ({"generate": "no"}, "generate"),
    ({"include": "all"}, "include"),
    ({"include": [3]}, "include[0]"),
    ({"reasoning": "high"}, "reasoning"),
    ({"reasoning": {"effort": 3}}, "reasoning.effort"),
    ({"reasoning": {"effort": SECRET}}, "reasoning.effort"),
    ({"reasoning": {"summary": SECRET}}, "reasoning.summary"),
    ({"reasoning": {"context": SECRET}}, "reasoning.context"),
    ({"service_tier": SECRET}, "service_tier"),
    ({"text": "short"}, "text"),
    ({"text": {"verbosity": SECRET}}, "text.verbosity"),
    ({"text": {"format": "text"}}, "text.format"),
    ({"text": {"format": {"type": SECRET}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    (schema(name="not a name"), "text.format.name"),
    (schema(name="x" * 65), "text.format.name"),
    (schema(strict="yes"), "text.format.strict"),
    (schema(description=3), "text.format.description"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "many"}, "max_output_tokens"),
    ({"max_tool_calls": -1}, "max_tool_calls"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": SECRET}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": -1}, "top_logprobs"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"truncation": SECRET}, "truncation"),
    ({"metadata": SECRET}, "metadata"),
    ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ({"metadata": {"k" * 65: ""}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"metadata": {"k": 3}}, "metadata"),
    ({"conversation": "c", "previous_response_id": "r"}, "conversation"),
    ({"conversation": {"id": 5}}, "conversation.id"),
    ({"conversation": {}}, "conversation.id"),
    ({"conversation": ["c"]}, "conversation"),
    ({"conversation": "no id"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"background": True, "store": False}, "background"),
    ({"background": True, "generate": False}, "background"),
    ({"background": "yes"}, "background"),
    ({"context_management": [{"type": "compaction", "compact_threshold": 999}]}, "context_"),
    ({"context_management": [{"type": SECRET}]}, "context_management[0].type"),
    ({"prompt_cache_options": {"prewarm": 1}}, "prompt_cache_options.prewarm"),
    ({"user": 3}, "user"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=[f"{p}-{i}" for i, (_, p) in enumerate(BAD)])
def test_a_wrong_field_is_named_and_its_value_is_not_quoted(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse(**fields)
    assert (refusal.value.param or "").startswith(param)
    assert SECRET not in str(refusal.value)
    assert refusal.value.status == 400


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"k" * 64: "v" * 512} | {str(number): "" for number in range(15)}},
        {"temperature": 0, "top_p": 1, "top_logprobs": 20},
        {"temperature": 2, "top_p": 0, "presence_penalty": -2, "frequency_penalty": 2},
        {"input": "x" * 1000},
        {"input": []},
        {"input": None},
        {"stream": "whatever", "stream_options": {"reasoning_summary_delivery": 3}},
        {"client_metadata": {"x-codex-turn-metadata": "{}"}, "access_programs": [1]},
        {"conversation": None, "previous_response_id": "r", "background": False},
        {"context_management": [{"type": "compaction", "compact_threshold": 1000}]},
        tool() | {"tool_choice": "required"},
        tool() | allowed([{"type": "function", "name": "f"}], "required"),
        {"reasoning": {"effort": "max", "generate_summary": "auto", "mode": "pro"}},
        {"service_tier": "priority", "include": ["reasoning.encrypted_content"]},
        schema(strict=True, description="d"),
        {"tool_choice": {"type": "web_search"}},
        {"tool_choice": {"type": "mcp", "server_label": "s"}},
        tool() | {"tool_choice": {"type": "function", "name": "f"}},
        tool() | allowed([{"type": "function", "name": "f"}, {"type": "mcp"}]),
        {"tools": [{"type": "namespace", "name": "n", "tools": []}, {"type": "custom"}]},
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}},
    ],
)
def test_what_clients_send_is_taken(fields: dict[str, Any]) -> None:
    assert parse(**fields).model == "m"


def test_null_is_as_good_as_left_out() -> None:
    names = (
        *("previous_response_id", "input", "instructions", "tools", "tool_choice", "store", "text"),
        *("parallel_tool_calls", "generate", "stream", "background", "include", "reasoning"),
        *("max_output_tokens", "max_tool_calls", "temperature", "top_p", "top_logprobs", "user"),
        *("presence_penalty", "frequency_penalty", "truncation", "metadata", "service_tier"),
        *("prompt_cache_key", "prompt_cache_options", "safety_identifier", "conversation"),
        *("prompt", "context_management"),
    )
    assert parse("websocket", **dict.fromkeys(names)) == parse()


def test_what_is_left_out_has_the_values_of_the_api() -> None:
    request = parse()
    assert (request.store, request.generate, request.parallel_tool_calls) == (True, True, True)
    assert (request.tool_choice, request.text_format) == (b'"auto"', b'{"type":"text"}')
    assert (request.truncation, request.metadata, request.stream) == ("disabled", {}, False)


@pytest.mark.parametrize(
    "fields", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}]
)
def test_a_warm_up_generates_nothing(fields: dict[str, Any]) -> None:
    assert parse(**fields).generate is False


def test_stream_means_something_over_http_only() -> None:
    assert parse("http", stream=True).stream is True
    assert parse("websocket", stream=True).stream is False
    with pytest.raises(InvalidRequest):
        parse("http", stream="yes")


def test_background_is_for_http() -> None:
    assert parse("http", background=True).background is True
    with pytest.raises(InvalidRequest, match="for HTTP") as refusal:
        parse("websocket", background=True)
    assert refusal.value.param == "background"


def test_the_limit_of_characters_is_one_of_each_text() -> None:
    texts = user("x" * 600)["input"] * 3
    assert len(parse(input=texts).input) == 3


TOO_DEEP = "[" * 1020 + "]" * 1020


@pytest.mark.parametrize("value", ["1e999", "-1e999", TOO_DEEP], ids=["big", "small", "deep"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('"input":[{"type":"other","x":VALUE}]', "input[0]"),
        ('"tools":[{"type":"function","name":"f","parameters":{"x":VALUE}}]', "tools[0]"),
        ('"tools":[{"type":"other","x":VALUE}]', "tools[0]"),
        ('"tool_choice":{"type":"mcp","x":VALUE}', "tool_choice"),
        ('"text":{"x":VALUE}', "text"),
        ('"text":{"format":{"type":"json_schema","name":"n","schema":{"x":VALUE}}}', "text"),
    ],
)
def test_json_that_others_could_not_read_is_refused(body: str, param: str, value: str) -> None:
    frame = f'{{"model":"m",{body.replace("VALUE", value)}}}'.encode()
    with pytest.raises(InvalidRequest) as refusal:
        RequestParser(bytes, 1000).parse(frame, "http")
    assert value == TOO_DEEP or (refusal.value.param or "").startswith(param)


def test_a_string_is_a_message_of_the_user() -> None:
    (message,) = parse(input='say "hi" 🙂').input
    assert isinstance(message, Message)
    assert (message.role, message.text) == ("user", 'say "hi" 🙂')
    assert json.loads(message.json) == {
        "type": "message",
        "id": message.id,
        "role": "user",
        "content": [{"type": "input_text", "text": 'say "hi" 🙂'}],
    }


_OPTIONS: dict[str, list[object]] = {
    "input": ["go on", user("more")["input"], [], None, [{"type": "compaction_trigger"}], 5],
    "previous_response_id": ["resp_1", "resp_2", None],
    "instructions": ["Be brief.", "Be long.", None, 7],
    "tools": [tool(name="f")["tools"], tool(name="g")["tools"], None, {}],
    "tool_choice": ["auto", {"type": "function", "name": "f"}, None],
    "metadata": [{"k": "v"}, {}, None],
    "model": ["m", "n", None],
    "stream": [True, False],
    "generate": [True, False],
    "conversation": [None, "conv_1"],
    "background": [False, True],
    "temperature": [0.5, None],
}


_USUAL = {name: values[0] for name, values in _OPTIONS.items()}
_CHANGES = st.lists(
    st.sampled_from([(name, value) for name, values in _OPTIONS.items() for value in values]),
    max_size=2,
).map(dict)


@given(st.lists(_CHANGES, min_size=2, max_size=8), st.sampled_from(["websocket", "http"]))
def test_what_a_parser_saw_before_changes_nothing(
    turns: list[dict[str, object]], transport: Transport
) -> None:
    """Most bodies of a conversation differ in little, and only that is read."""
    experienced = RequestParser(bytes, 1000)
    for changes in turns:
        alone = outcome(RequestParser(bytes, 1000), _USUAL | changes, transport)
        assert outcome(experienced, _USUAL | changes, transport) == alone


def outcome(
    parser: RequestParser, body: dict[str, object], transport: Transport
) -> Request | tuple[str, str | None]:
    try:
        return replace(parser.parse(json.dumps(body).encode(), transport), repeats=None)
    except InvalidRequest as error:
        return error.message, error.param
