import json
from typing import Any

import pytest
from msgspec import Raw

from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.tools import Instructions, Parsed, Tools, parse_tools

FUNCTION = {"type": "function", "name": "f"}


def tools(*given: object) -> Tools:
    return parse_tools(json.dumps(given).encode())


def test_a_function_is_repeated_with_all_five_members() -> None:
    (echoed,) = json.loads(tools(FUNCTION | {"defer_loading": True}).echo)
    assert echoed == FUNCTION | {
        "description": None,
        "parameters": None,
        "strict": None,
        "defer_loading": True,
    }


def test_kinds_the_model_cannot_use_are_repeated_but_not_shown() -> None:
    found = tools(FUNCTION, {"type": "web_search"}, {"type": "custom", "name": "apply_patch"})
    assert [tool["type"] for tool in json.loads(found.echo)] == ["function", "web_search", "custom"]
    assert [tool["name"] for tool in json.loads(found.shown)] == ["f", "apply_patch"]
    assert (found.custom, found.dropped) == (("apply_patch",), ("web_search",))
    assert found.names == {("function", "f"), ("custom", "apply_patch")}


def test_no_tools_are_an_empty_list() -> None:
    assert parse_tools(b"null").echo == parse_tools(b"[]").echo == b"[]"


def test_the_order_of_members_does_not_change_the_key() -> None:
    first = parse_tools(b'[{"type":"function","name":"f","parameters":{"a":1,"b":2}}]')
    second = parse_tools(b'[{"parameters":{"b":2,"a":1},"name":"f","type":"function"}]')
    assert first.key == second.key
    assert first.key != tools(FUNCTION).key


class Counting:
    """A parser that counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, raw: bytes) -> Instructions:
        self.calls += 1
        if raw == b"bad":
            raise InvalidRequest("bad")
        return Instructions(raw.strip(), "", raw)


def test_a_document_is_parsed_once_however_often_it_comes() -> None:
    parse = Counting()
    parsed = Parsed(parse)
    for raw in (b"a", b"a", b"b", b"a", b"b"):
        assert parsed.get(Raw(raw)).json == raw
    assert parse.calls == 2


def test_documents_with_the_same_key_share_one_result() -> None:
    parsed = Parsed(Counting())
    assert parsed.get(Raw(b"a")) is parsed.get(Raw(b" a"))


def test_only_the_latest_documents_are_kept() -> None:
    parse = Counting()
    parsed = Parsed(parse, max_entries=2)
    for raw in (b"a", b"b", b"c", b"a"):
        parsed.get(Raw(raw))
    assert parse.calls == 4


def test_big_documents_push_others_out_by_their_bytes() -> None:
    parse = Counting()
    parsed = Parsed(parse, max_bytes=10)
    for raw in (b"a", b"x" * 20, b"a"):
        parsed.get(Raw(raw))
    assert parse.calls == 3


def test_a_document_that_is_refused_is_refused_again() -> None:
    parsed = Parsed(Counting())
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            parsed.get(Raw(b"bad"))


NAMESPACE = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [
        {"type": "function", "name": "find", "description": "Find one.", "parameters": None},
        {"type": "custom", "name": "note"},
    ],
}


def test_functions_of_a_namespace_are_shown_flattened_and_repeated_as_they_came() -> None:
    tools = parse_tools(json.dumps([NAMESPACE, {"type": "web_search"}]).encode())
    shown, note = json.loads(tools.shown)
    assert (shown["type"], shown["name"], shown["strict"]) == ("function", "crm__find", None)
    assert (note["type"], note["name"]) == ("custom", "crm__note")
    assert tools.namespaced == {"crm__find": ("crm", "find"), "crm__note": ("crm", "note")}
    assert tools.custom == ("crm__note",)
    assert tools.dropped == ("web_search",)
    assert json.loads(tools.echo) == [NAMESPACE, {"type": "web_search"}]


def test_a_bad_function_in_a_namespace_is_named() -> None:
    bad = NAMESPACE | {"tools": [{"type": "function", "name": "no spaces"}]}
    with pytest.raises(InvalidRequest) as refused:
        parse_tools(json.dumps([bad]).encode())
    assert refused.value.param == "tools[0].tools[0].name"


def shown(form: dict[str, object] | None) -> dict[str, Any]:
    tool = {"type": "custom", "name": "patch", "description": "Patches.", "format": form}
    (found,) = json.loads(tools(tool).shown)
    assert found["parameters"]["required"] == ["input"]
    made: dict[str, Any] = found
    return made


def test_a_custom_tool_is_called_like_a_function_of_one_string() -> None:
    for form in (None, {"type": "text"}):
        tool = shown(form)
        assert tool["parameters"]["properties"] == {"input": {"type": "string"}}
        assert tool["description"] == "Patches."


def test_the_regex_of_a_custom_tool_holds_its_input() -> None:
    tool = shown({"type": "grammar", "syntax": "regex", "definition": "a|b"})
    assert tool["parameters"]["properties"]["input"]["pattern"] == "^(?:a|b)$"
    assert tool["description"].endswith("this regex grammar:\na|b")


def test_any_other_grammar_of_a_custom_tool_is_told_to_the_model() -> None:
    tool = shown({"type": "grammar", "syntax": "lark", "definition": 'start: "x"'})
    assert tool["parameters"]["properties"]["input"] == {"type": "string"}
    assert tool["description"].endswith('this lark grammar:\nstart: "x"')


def test_a_custom_tool_with_an_unknown_grammar_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as refused:
        shown({"type": "grammar", "syntax": "bnf", "definition": ""})
    assert refused.value.param == "tools[0].format.syntax"
