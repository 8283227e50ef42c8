"""Custom tools called by the simulated models: what they write fits the grammar."""

from typing import Any

import msgspec
import pytest
from lark_grammars import APPLY_PATCH
from llguidance import LLMatcher

from turnwire.actors.engines.simulated_input import input_text
from turnwire.actors.engines.simulated_prompt import Items, extended, read_head
from turnwire.actors.engines.simulated_script import Call, Question, script
from turnwire.actors.engines.simulated_steering import Profile, read_steering
from turnwire.pipelines import messages as m
from turnwire.pipelines.prompts.lark_in_json import byte_tokenizer
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.tools import parse_tools

USER = b'[{"type":"message","role":"user","content":"go on"}]'
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def custom(syntax: str, definition: str) -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "c", "format": form if syntax else None}


def called(tools: list[dict[str, Any]], choice: object = "auto", **facts: object) -> list[Call]:
    shown = parse_tools(msgspec.json.encode(tools)).shown
    head = read_head(b'{"instructions":null,"tools":%b}' % shown)
    asked = m.Facts("r", "t", "sim-max", 4096, tool_choice=msgspec.json.encode(choice))
    asked = msgspec.structs.replace(asked, **facts)
    steering = read_steering({"sim.parallel_calls": "4"}, Profile(0.0, 100.0, 0.0))
    items = extended(Items(), USER)
    parts = script(Question(b"k" * 16, head, items, asked, steering)).parts
    return [part for part in parts if isinstance(part, Call)]


def written(call: Call) -> str:
    text: str = msgspec.json.decode(call.passage.piece(0, call.passage.characters))["input"]
    return text


@pytest.mark.parametrize(
    "definition",
    [
        APPLY_PATCH,
        APPLY_PATCH.replace("Begin Patch", "Start"),
        'start: "SELECT " /[a-z]+/ (", " /[a-z]+/)* " FROM " /[a-z]+/ ";"',
        'start: e\ne: N | "(" e OP e ")"\nN: /[0-9]{2}/\nOP: "+" | "-"\n%ignore / +/',
    ],
)
def test_an_input_fits_its_lark_grammar(definition: str) -> None:
    call, *_ = called([custom("lark", definition)])
    matcher = LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_lark(definition))
    tokens = list(written(call).encode())
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    assert matcher.is_accepting()


def test_a_patch_only_adds_a_file_that_says_what_it_is() -> None:
    text = input_text({"lark": APPLY_PATCH}, 1, 0)
    assert text is not None
    assert "*** Add File: simulated-note.txt\n" in text


def test_an_input_fits_its_regex_and_is_text_without_a_grammar() -> None:
    assert written(called([custom("regex", "[ab]{3}")])[0]).strip("ab") == ""
    assert len(written(called([custom("", "")])[0])) >= 24


def test_a_custom_tool_is_called_where_no_function_is_or_where_it_is_named() -> None:
    tools = [custom("", ""), FUNCTION]
    assert {call.name for call in called(tools)} == {"f"}
    assert {call.name for call in called(tools, {"type": "custom", "name": "c"})} == {"c"}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "c"}]}
    assert {call.name for call in called(tools, allowed)} == {"c"}


def test_a_grammar_that_nothing_fits_in_reach_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        called([custom("lark", 'start: /[a-z]/ ("a" | "b") /[^a]{40}/ /[xyz]{40}/')])


@pytest.mark.parametrize(
    ("facts", "calls"), [({}, 4), ({"max_tool_calls": 2}, 2), ({"parallel_tool_calls": False}, 1)]
)
def test_no_more_calls_are_made_than_allowed(facts: dict[str, Any], calls: int) -> None:
    assert len(called([FUNCTION], **facts)) == calls
