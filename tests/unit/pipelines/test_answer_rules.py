"""Answers of engines that hold them to nothing: checked, completed once, or the turn fails."""

from typing import Any

import msgspec
import pytest
from lark_grammars import APPLY_PATCH

from turnwire.pipelines.answer_rules import AnswerCheck, rules_of
from turnwire.pipelines.messages import (
    CallProduced,
    Counts,
    EngineEvent,
    Finish,
    GenerationFinished,
    Model,
    TextProduced,
)
from turnwire.pipelines.protocol.errors import Internal
from turnwire.pipelines.protocol.requests import RequestParser

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
LARK = {"type": "grammar", "syntax": "lark", "definition": APPLY_PATCH}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "weather", "parameters": CITY, "strict": True},
    {"type": "function", "name": "stop"},
    {"type": "custom", "name": "patch", "format": LARK},
]
FREE = Model("m", "items")
HELD = Model("m", "items", constrains=True)
TEXT = {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": CITY}}
PATCH = '{"input": "*** Begin Patch\\n*** Delete File: a\\n*** End Patch"}'


def check(model: Model = FREE, **members: object) -> AnswerCheck | None:
    if "text_" in members:
        members["text"] = members.pop("text_")
    frame = msgspec.json.encode({"model": "m", "input": "hi"} | members)
    rules = rules_of(RequestParser(bytes, 10_000).parse(frame, "websocket"), model)
    return None if rules is None else AnswerCheck(rules)


def answer(
    *calls: tuple[str, str], text: str = "", finish: Finish = "stop", **members: object
) -> list[EngineEvent]:
    """What is passed on of an answer whose every character comes alone."""
    events: list[EngineEvent] = [TextProduced(letter, Counts()) for letter in text]
    for index, (name, arguments) in enumerate(calls):
        events += [CallProduced(index, "c", name, letter, Counts()) for letter in arguments]
        events.append(CallProduced(index, "c", name, "", Counts(), finished=True))
    events.append(GenerationFinished(finish, Counts()))
    held = check(**members)
    assert held is not None
    return [passed for event in events for passed in held.feed([event])]


def arguments(events: list[EngineEvent]) -> dict[int, str]:
    found: dict[int, str] = {}
    for event in events:
        if isinstance(event, CallProduced):
            found[event.index] = found.get(event.index, "") + event.arguments
    return found


def said(events: list[EngineEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextProduced))


def test_an_answer_that_may_be_anything_costs_nothing() -> None:
    assert check() is None
    assert check(HELD, tools=TOOLS, text=TEXT) is None


@pytest.mark.parametrize("form", [FREE, HELD])
@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ("none", "stop"),
        ({"type": "function", "name": "stop"}, "weather"),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "weather"}],
            },
            "stop",
        ),
    ],
)
def test_a_tool_that_may_not_be_called_fails_the_turn(
    form: Model, choice: object, called: str
) -> None:
    with pytest.raises(Internal, match=called):
        answer((called, "{}"), model=form, tools=TOOLS, tool_choice=choice)


@pytest.mark.parametrize(
    ("members", "kept"), [({"parallel_tool_calls": False}, 1), ({"max_tool_calls": 2}, 2)]
)
def test_calls_beyond_the_limit_are_left_out(members: dict[str, Any], kept: int) -> None:
    events = answer(*[("stop", "{}")] * 4, tools=TOOLS, **members)
    assert list(arguments(events)) == list(range(kept))


def test_an_answer_without_a_call_fails_where_one_is_required() -> None:
    with pytest.raises(Internal):
        answer(text="hello", tools=TOOLS, tool_choice="required")
    cut = answer(text="hello", finish="length", tools=TOOLS, tool_choice="required")
    assert said(cut) == "hello"


def test_arguments_that_were_broken_off_are_completed_once() -> None:
    events = answer(("weather", '{"city": "Rome'), tools=TOOLS)
    assert arguments(events) == {0: '{"city": "Rome"}'}


@pytest.mark.parametrize(
    "wrong", ['{"city": 1}', '{"city": "a", "b": 1}', "{}", "no", '{"city": "a"} more']
)
def test_arguments_that_fit_no_strict_schema_fail_the_turn(wrong: str) -> None:
    with pytest.raises(Internal, match="weather"):
        answer(("weather", wrong), tools=TOOLS)
    # An engine that holds answers to their schemas is believed.
    held = check(HELD, tools=TOOLS, max_tool_calls=3)
    assert held is not None
    assert held.feed([CallProduced(0, "c", "weather", wrong, Counts(), finished=True)])


def test_the_input_of_a_custom_tool_is_checked_with_its_grammar() -> None:
    assert arguments(answer(("patch", PATCH), tools=TOOLS)) == {0: PATCH}
    for wrong in (PATCH.replace("Delete", "Eat"), '{"input": 1}'):
        with pytest.raises(Internal, match="patch"):
            answer(("patch", wrong), tools=TOOLS)


def test_a_grammar_that_no_engine_is_held_to_is_checked_for_all() -> None:
    definition = "start: A\nA: /[a-z\\n]+/ & ~/b/"
    form = {"type": "grammar", "syntax": "lark", "definition": definition}
    tools = [{"type": "custom", "name": "c", "format": form}]
    assert answer(("c", '{"input": "ab"}'), model=HELD, tools=tools)
    with pytest.raises(Internal):
        answer(("c", '{"input": "b"}'), model=HELD, tools=tools)


def test_a_message_is_completed_to_its_schema_or_fails() -> None:
    assert said(answer(text='{"city": "Ro', text_=TEXT)) == '{"city": "Ro"}'
    with pytest.raises(Internal):
        answer(text='{"town": "Rome"}', text_=TEXT)
    plain = {"format": {"type": "json_object"}}
    assert said(answer(text='{"a": [1', text_=plain)) == '{"a": [1]}'
    with pytest.raises(Internal):
        answer(text="[1]", text_=plain)
    assert arguments(answer(("stop", "{}"), tools=TOOLS, text_=TEXT)) == {0: "{}"}
