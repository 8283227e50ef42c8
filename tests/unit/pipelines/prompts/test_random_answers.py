"""Whatever a model writes, in whatever pieces and however it ends: the same items, never none."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.pipelines.messages import (
    Counts,
    EngineEvent,
    Finish,
    GenerationFinished,
    Model,
    TextProduced,
)
from turnwire.pipelines.open_items import REASONING
from turnwire.pipelines.prompts.output import CALL_PARSERS, output_parser
from turnwire.pipelines.protocol.errors import Internal
from turnwire.pipelines.protocol.responses import Echo
from turnwire.pipelines.response_stream import ResponseStream

FORMS = sorted({*CALL_PARSERS, "harmony"})
COMMON = ("hello", " ", "\n", "\n\n", "<", "|", ">", "{", "}", '"', "\\", "é🙂", "; ", "[1]")
TAGGED = (
    "<tool_call>",
    "</tool_call>",
    '\n{"name": "f", "arguments": {"a": "b"}}\n',
    '{"arguments": {}, "name": "f"}',
    '{"name": "f", "arguments": ',
    "<tool_",
    "</tool_call",
)
THOUGHTS = ("<think>", "</think>", "<think>\n", "\n</think>\n\n", "</thi", "<thin")
FRAGMENTS = {
    "llama3": (
        '{"name": "f", "parameters": {"a": 1}}',
        '{"name": "f", "parameters": ',
        '{"name": "',
        '{"type": "function", "name": "f", "parameters": {}}',
        "<|python_tag|>",
        "<|python",
    ),
    "harmony": (
        *("<|start|>assistant", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|chan"),
        *("analysis", "final", "commentary", " to=functions.f", " <|constrain|>json", '{"a": 1}'),
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
    ),
    "qwen3": (*TAGGED, *THOUGHTS),
    "jinja": (*TAGGED, *THOUGHTS),
}
FINISHES: tuple[Finish, ...] = ("stop", "length", "cancelled")

Read = tuple[list[dict[str, object]], int] | None
"""Items, and how many events came; None: the answer failed."""


def read(form: str, pieces: list[str], finish: Finish, reasoning: str = "openai") -> Read:
    parser = output_parser(Model("m", "tokens", form), "resp_1")
    shown = REASONING[reasoning]  # type: ignore[index]
    stream = ResponseStream("resp_1", 1, Echo(), reasoning=shown)
    stream.created()
    stream.started()
    events: list[EngineEvent] = []
    try:
        for at, piece in enumerate(pieces, 1):
            events += parser.feed(TextProduced(piece, Counts(9, 0, at), b"%4d" % at))
        events += parser.finish()
        last = Counts(9, 0, len(pieces) + 1)
        events += parser.feed(GenerationFinished(finish, last, b"last"))
    except Internal:
        return None
    sent = stream.produced(events) + stream.closed(finish, 2)
    assert stream.sampled == b"".join(b"%4d" % at for at in range(1, len(pieces) + 1)) + b"last"
    return json.loads(stream.output), len(sent)


@st.composite
def cuts(draw: st.DrawFn, form: str) -> tuple[str, list[str]]:
    """An answer, and the same in pieces of any length."""
    fragments = (*COMMON, *FRAGMENTS.get(form, TAGGED))
    text = "".join(draw(st.lists(st.sampled_from(fragments), max_size=9)))
    text = text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text
    places = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=8)))
    bounds = [0, *(place for place in places if place < len(text)), len(text)]
    return text, [text[a:b] for a, b in pairwise(bounds)]


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(data=st.data(), finish=st.sampled_from(FINISHES))
def test_the_items_of_an_answer_do_not_depend_on_how_it_came(
    form: str, data: st.DataObject, finish: Finish
) -> None:
    text, pieces = data.draw(cuts(form))
    whole = read(form, [text], finish)
    cut = read(form, pieces, finish)
    letters = read(form, list(text) or [""], finish)
    assert (whole is None) == (cut is None) == (letters is None)
    if whole is not None and cut is not None and letters is not None:
        assert whole[0] == cut[0] == letters[0]


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(data=st.data(), finish=st.sampled_from(FINISHES), shown=st.sampled_from(sorted(REASONING)))
def test_no_answer_with_tokens_is_without_items(
    form: str, data: st.DataObject, finish: Finish, shown: str
) -> None:
    _, pieces = data.draw(cuts(form))
    answer = read(form, pieces, finish, shown)
    if answer is not None:
        items, events = answer
        assert items
        assert events >= 2 * len(items)
        for item in items:
            assert item["status"] in ("completed", "incomplete")
            assert finish == "length" or item["status"] == "completed"
