"""Calls between tags, whatever the pieces an answer comes in."""

import json
from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.pipelines.messages import (
    CallProduced,
    Counts,
    EngineEvent,
    Finish,
    GenerationFinished,
    Model,
    TextProduced,
)
from turnwire.pipelines.prompts.hermes_output import HermesOutput
from turnwire.pipelines.prompts.output import PlainOutput, output_parser
from turnwire.pipelines.protocol.errors import Internal

COUNTS = Counts(1, 0, 1)
ONE = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls </x>", "n": [1, {}]}}\n</tool_call>'
TWO = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'


def read(pieces: list[str], finish: Finish = "stop") -> list[EngineEvent]:
    parser = HermesOutput(lambda index: f"call_{index}")
    out: list[EngineEvent] = []
    for number, piece in enumerate(pieces):
        ids = array("I", [number]).tobytes()
        out += parser.feed(TextProduced(piece, COUNTS, ids, b"%d" % number))
    return out + parser.finish() + parser.feed(GenerationFinished(finish, COUNTS))


def cut(text: str, places: list[int]) -> list[str]:
    at = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(at)]


def said(events: list[EngineEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextProduced))


def calls(events: list[EngineEvent]) -> dict[int, tuple[str, str, bool]]:
    found: dict[int, tuple[str, str, bool]] = {}
    for event in events:
        if isinstance(event, CallProduced):
            _, before, finished = found.get(event.index, ("", "", False))
            assert not finished, "nothing follows the end of a call"
            found[event.index] = event.name, before + event.arguments, event.finished
    return found


@given(st.lists(st.integers(min_value=0), max_size=40))
def test_text_and_calls_are_the_same_however_the_answer_is_cut(places: list[int]) -> None:
    events = read(cut(f"Two < three.\n\n{ONE}\n{TWO}\n", places))
    assert said(events) in ("Two < three.", "Two < three.\n\n")
    assert calls(events) == {
        0: ("run", '{"cmd": "ls </x>", "n": [1, {}]}', True),
        1: ("stop", "{}", True),
    }


@given(st.text(alphabet="<tool_cal>/ \n{}", max_size=30), st.lists(st.integers(min_value=0)))
def test_text_without_a_call_stays_as_it_is(text: str, places: list[int]) -> None:
    if "<tool_call>" not in text:
        events = read(cut(text, places))
        assert said(events) == text
        assert not calls(events)


@given(st.lists(st.integers(min_value=0), max_size=20))
def test_every_id_is_passed_on_once_and_in_order(places: list[int]) -> None:
    pieces = cut(f"Yes. {ONE}", places)
    events = read(pieces)
    ids = b"".join(event.ids for event in events if isinstance(event, TextProduced))
    assert list(array("I", ids)) == list(range(len(pieces)))


def test_arguments_are_passed_on_while_they_are_written() -> None:
    parser = HermesOutput(lambda index: f"call_{index}")
    parser.feed(TextProduced('<tool_call>\n{"name": "f", "arguments": ', COUNTS))
    (piece,) = (
        event
        for event in parser.feed(TextProduced('{"a": "b', COUNTS))
        if isinstance(event, CallProduced) and event.arguments
    )
    assert piece.arguments == '{"a": "b'


def test_log_probabilities_of_text_stay_with_it_and_those_of_calls_are_dropped() -> None:
    events = read(["Hi", " there", TWO])
    assert [e.logprobs for e in events if isinstance(e, TextProduced) and e.text] == [b"0", b"1"]


def test_members_in_another_order_are_a_call_too() -> None:
    events = read(['<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>'])
    assert calls(events) == {0: ("f", '{"a": 1}', True)}


def test_what_only_looks_like_a_call_is_text() -> None:
    text = "<tool_call>later</tool_call>"
    assert said(read([text])) == text
    assert said(read(["<tool_call>"])) == "<tool_call>"


def test_line_ends_in_strings_are_escaped() -> None:
    events = read(['<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>'])
    assert json.loads(calls(events)[0][1]) == {"a": "x\ny"}


@pytest.mark.parametrize("broken", ['{"a": "x', '{"a": [1, {"b": 2', '{"a"', '{"a":', '{"a": "\\'])
def test_a_call_that_is_broken_off_is_completed(broken: str) -> None:
    events = read(['<tool_call>{"name": "f", "arguments": ' + broken])
    assert json.loads(calls(events)[0][1]).keys() == {"a"}
    assert calls(events)[0][2]


@pytest.mark.parametrize("wrong", ["{a: 1}", '{"a": 1,}', '{"a" 1}'])
def test_a_call_that_cannot_be_valid_fails_the_turn(wrong: str) -> None:
    with pytest.raises(Internal, match="not valid JSON"):
        read(['<tool_call>{"name": "f", "arguments": ' + wrong + "}</tool_call>"])


def test_a_call_that_the_limit_cut_stays_open() -> None:
    events = read(['<tool_call>{"name": "f", "arguments": {"a": '], "length")
    assert calls(events) == {0: ("f", '{"a": ', False)}


def test_ids_of_calls_differ_between_responses() -> None:
    ids = set()
    for response in ("resp_a", "resp_b"):
        parser = output_parser(Model("m", "tokens", "hermes"), response)
        events = parser.feed(TextProduced(f"{TWO}{TWO}", COUNTS))
        ids |= {event.call_id for event in events if isinstance(event, CallProduced)}
    assert len(ids) == 4


def test_without_tools_nothing_is_a_call() -> None:
    parser = output_parser(Model("m", "tokens", "hermes"), "resp_a", calls=False)
    assert isinstance(parser, PlainOutput)
