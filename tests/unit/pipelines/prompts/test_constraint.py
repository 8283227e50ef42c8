"""What a request lets an answer be, tried with texts over a vocabulary of bytes."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from lark_grammars import APPLY_PATCH
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from turnwire.pipelines.prompts.constraint import constraint_of
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.requests import RequestParser

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
UNKNOWN = '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'


class Bytes:
    """A vocabulary of all bytes, and an end."""

    bos_token_id = None
    eos_token_id = 256
    special_token_ids: Sequence[int] = (256,)
    tokens: Sequence[bytes] = (*(bytes([value]) for value in range(256)), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


VOCABULARY = LLTokenizer(TokenizerWrapper(Bytes()))


def fits(grammar: str, text: str) -> bool:
    """Is `text` a whole answer?"""
    matcher = LLMatcher(VOCABULARY, grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def function(name: str, parameters: dict[str, Any] | None, *, strict: bool) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": parameters, "strict": strict}


TOOLS = [function("weather", CITY, strict=True), function("stop", None, strict=False)]


def constraint(form: str = "chatml", **members: object) -> str:
    frame = msgspec.json.encode({"model": "m", "input": "hi"} | members)
    return constraint_of(RequestParser(bytes, 10_000).parse(frame, "websocket"), form)


def schema(value: dict[str, Any], *, strict: bool = True) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "x", "strict": strict, "schema": value}}


def test_without_tools_and_format_nothing_is_constrained() -> None:
    assert constraint() == ""
    assert constraint(text={"format": {"type": "text"}, "verbosity": "low"}) == ""


CHOICES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "auto",
        {},
        ["", "Hello <b>.", "<tool_cal", ONE, f"Wait.\n{ONE}\n{OTHER}"],
        [UNKNOWN, f"{ONE} and more", ONE[:-1]],
    ),
    ("none", {"tool_choice": "none"}, ["Hello.", "<tool_cal"], [ONE, f"Hello. {OTHER}"]),
    ("required", {"tool_choice": "required"}, [ONE, f"{ONE}\n{OTHER}"], ["", "Hello.", UNKNOWN]),
    (
        "one at a time",
        {"tool_choice": "required", "parallel_tool_calls": False},
        [ONE, OTHER],
        [f"{ONE}\n{OTHER}"],
    ),
    (
        "at most two",
        {"tool_choice": "required", "max_tool_calls": 2},
        [f"{ONE}\n{OTHER}"],
        [f"{ONE}\n{OTHER}\n{ONE}"],
    ),
    (
        "a function",
        {"tool_choice": {"type": "function", "name": "stop"}},
        [OTHER],
        [ONE, "Hello.", f"{OTHER}\n{OTHER}"],
    ),
    (
        "allowed, auto",
        {
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "stop"}],
            }
        },
        [OTHER, "Hello."],
        [ONE],
    ),
    (
        "allowed, required",
        {
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "stop"}],
            }
        },
        [OTHER],
        [ONE, "Hello."],
    ),
    (
        "json or calls",
        {"text": {"format": {"type": "json_object"}}},
        ['{"a": [1, null]}', ONE],
        ["Hello.", "[1]"],
    ),
]


@pytest.mark.parametrize(
    ("members", "right", "wrong"), [case[1:] for case in CHOICES], ids=[case[0] for case in CHOICES]
)
def test_a_choice_of_tools_decides_what_an_answer_may_be(
    members: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    grammar = constraint(tools=TOOLS, **members)
    assert [text for text in right if not fits(grammar, text)] == []
    assert [text for text in wrong if fits(grammar, text)] == []


def test_functions_of_a_namespace_are_called_by_their_flat_name() -> None:
    space = {"type": "namespace", "name": "mail", "tools": [function("send", CITY, strict=True)]}
    grammar = constraint(tools=[space], tool_choice="required")
    assert fits(grammar, ONE.replace("weather", "mail__send"))


def test_the_same_members_give_the_same_text_without_work() -> None:
    assert constraint(tools=TOOLS) is constraint(tools=TOOLS)


def test_an_object_is_the_only_answer_of_json_object() -> None:
    grammar = constraint(text={"format": {"type": "json_object"}})
    assert fits(grammar, '{"a": {"b": [true, 1.5e3, "x\\n"]}}')
    assert not fits(grammar, "[]")


def test_members_that_a_schema_leaves_open_are_closed_unless_it_is_strict() -> None:
    open_schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    more = '{"a": 1, "b": 2}'
    assert not fits(constraint(text=schema(open_schema, strict=False)), more)
    assert fits(constraint(text=schema(open_schema)), more)
    parts = {"allOf": [open_schema, {"type": "object", "properties": {"b": {"type": "integer"}}}]}
    assert fits(constraint(text=schema(parts, strict=False)), more)


UNSUPPORTED: list[dict[str, Any]] = [
    {"type": "object", "not": {"type": "string"}},
    {"type": "array", "uniqueItems": True},
    {"type": "string", "pattern": "(?=a)b"},
    {"type": "string", "format": "klingon"},
    {"$ref": "https://example.com/schema.json"},
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
]


@pytest.mark.parametrize("value", UNSUPPORTED, ids=lambda value: json.dumps(value)[:40])
def test_a_strict_schema_that_cannot_be_kept_is_refused_by_name(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        constraint(text=schema(value))
    assert refused.value.param == "text.format.schema"
    tools = [{"type": "web_search"}, function("f", value, strict=True)]
    with pytest.raises(InvalidRequest) as refused:
        constraint(tools=tools)
    assert refused.value.param == "tools[1].parameters"
    space = {"type": "namespace", "name": "n", "tools": tools}
    with pytest.raises(InvalidRequest) as refused:
        constraint(tools=[space])
    assert refused.value.param == "tools[0].tools[1].parameters"


@pytest.mark.parametrize("value", UNSUPPORTED, ids=lambda value: json.dumps(value)[:40])
def test_otherwise_it_is_kept_as_far_as_it_can_be(value: dict[str, Any]) -> None:
    grammar = constraint(tools=[function("f", value, strict=False)], tool_choice="required")
    assert not fits(grammar, "Hello.")


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        value = {"type": "array", "items": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        nested(300),
        {"enum": ["x" * 100] * 3000},
        {"allOf": [{"anyOf": [{"properties": {f"{a}{b}": {}}} for a in range(9)]} for b in "abcd"]},
    ],
    ids=["deep", "long", "wide"],
)
def test_a_schema_without_measure_is_refused_and_not_tried(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        constraint(text=schema(value))
    assert refused.value.param == "text.format.schema"
    assert len(refused.value.message) < 400


@pytest.mark.parametrize(
    ("form", "members", "param"),
    [
        ("unheard", {"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_what_a_format_cannot_be_held_to_is_refused_by_name(
    form: str, members: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        constraint(form, **members)
    assert refused.value.param == param


def test_a_format_without_calls_can_be_held_to_a_schema() -> None:
    assert fits(constraint("unheard", tools=TOOLS, text=schema(CITY)), '{"city": "Rome"}')
    assert constraint("unheard", tools=TOOLS) == ""


def test_a_model_that_thinks_may_do_so_first() -> None:
    thought = "<think>\nOne </thin of many.\n</think>\n\n"
    forced = constraint("qwen3", tools=TOOLS, tool_choice="required")
    assert fits(forced, thought + ONE)
    assert fits(forced, ONE)
    assert not fits(forced, thought)
    answered = constraint("qwen3", text=schema(CITY))
    assert fits(answered, thought + '{"city": "Rome"}')
    free = constraint("qwen3", tools=TOOLS)
    assert fits(free, thought + "Hello.")
    assert fits(free, thought + ONE)
    assert not fits(free, thought + UNKNOWN)


def test_a_thought_that_the_prompt_began_comes_first() -> None:
    frame = msgspec.json.encode({"model": "m", "input": "hi", "text": schema(CITY)})
    request = RequestParser(bytes, 10_000).parse(frame, "websocket")
    grammar = constraint_of(request, "jinja", thinking=True)
    assert fits(grammar, 'Hm </b>.\n</think>\n\n{"city": "Rome"}')
    assert not fits(grammar, '{"city": "Rome"}')


def test_a_call_of_llama_is_the_whole_answer() -> None:
    call = '{"name": "weather", "parameters": {"city": "Rome"}}'
    free = constraint("llama3", tools=TOOLS)
    assert fits(free, call)
    assert fits(free, f"Like this: {call}")
    assert not fits(free, f"{call} {call}")
    assert not fits(free, call.replace("weather", "other"))
    assert not fits(constraint("llama3", tools=TOOLS, tool_choice="none"), call)
    assert fits(constraint("llama3", tools=TOOLS, tool_choice="required"), call)


def custom(definition: str, syntax: str = "regex") -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "pick", "format": form}


def test_the_input_of_a_custom_tool_is_held_to_its_regex() -> None:
    choice = {"type": "custom", "name": "pick"}
    grammar = constraint(tools=[custom("[ab]{2}|c")], tool_choice=choice)
    call = '<tool_call>\n{"name": "pick", "arguments": {"input": "%s"}}\n</tool_call>'
    assert fits(grammar, call % "ab")
    assert fits(grammar, call % "c")
    assert not fits(grammar, call % "cc")


@pytest.mark.parametrize(
    ("syntax", "definition"),
    [("regex", "(?=a)b"), ("lark", "start: unknown"), ("lark", "no grammar"), ("lark", "")],
)
def test_a_grammar_that_cannot_be_kept_is_refused_by_name(syntax: str, definition: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        constraint(tools=[custom(definition, syntax)])
    assert refused.value.param == "tools[0].format.definition"
    space = {"type": "namespace", "name": "n", "tools": [custom(definition, syntax)]}
    with pytest.raises(InvalidRequest) as refused:
        constraint(tools=[space])
    assert refused.value.param == "tools[0].tools[0].format.definition"


@pytest.mark.parametrize("form", ["hermes", "llama3"])
def test_the_input_of_a_custom_tool_is_held_to_its_lark_grammar(form: str) -> None:
    tools = [custom(APPLY_PATCH, "lark"), TOOLS[0]]
    grammar = constraint(form, tools=tools, tool_choice={"type": "custom", "name": "pick"})
    right = '*** Begin Patch\n*** Add File: a "b".txt\n+\\d\té\n+\n*** End Patch\n'
    call = {
        "hermes": '<tool_call>\n{"name": "pick", "arguments": {"input": INPUT}}\n</tool_call>',
        "llama3": '{"name": "pick", "parameters": {"input": INPUT}}',
    }[form]
    assert fits(grammar, call.replace("INPUT", json.dumps(right, ensure_ascii=False)))
    wrong = right.replace("+\\d", "\\d")
    assert not fits(grammar, call.replace("INPUT", json.dumps(wrong, ensure_ascii=False)))


CHOSEN: list[dict[str, Any]] = [
    {"type": "custom", "namespace": "n", "name": "pick"},
    {"type": "custom", "name": "n__pick"},
    {"type": "custom", "name": "pick"},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "pick"}]},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "namespace", "name": "n"}]},
]


@pytest.mark.parametrize("choice", CHOSEN, ids=str)
def test_a_custom_tool_of_a_namespace_is_chosen_and_called(choice: dict[str, Any]) -> None:
    space = {"type": "namespace", "name": "n", "tools": [custom("[ab]{2}")]}
    grammar = constraint(tools=[space, *TOOLS], tool_choice=choice)
    call = '<tool_call>\n{"name": "n__pick", "arguments": {"input": "%s"}}\n</tool_call>'
    assert fits(grammar, call % "ab")
    assert not fits(grammar, call % "c")
    assert not fits(grammar, ONE)
