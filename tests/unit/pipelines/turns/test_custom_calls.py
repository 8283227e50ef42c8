"""A custom tool's call: the model writes JSON, the client gets text."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.pipelines.messages import CallProduced, Counts, GenerationFinished
from turnwire.pipelines.open_custom_call import InputText
from turnwire.pipelines.protocol.responses import Echo
from turnwire.pipelines.response_stream import ResponseStream

COUNTS = Counts(1, 0, 1)


def events(pieces: list[str], name: str = "patch") -> list[dict[str, Any]]:
    stream = ResponseStream("resp_1", 0, Echo(custom=("patch",)))
    out = [*stream.created(), *stream.started()]
    for piece in pieces:
        out += stream.produced([CallProduced(0, "call_1", name, piece, COUNTS)])
    out += stream.produced([CallProduced(0, "call_1", name, "", COUNTS, finished=True)])
    out += stream.produced([GenerationFinished("stop", COUNTS)])
    out += stream.closed("stop", 0)
    return [json.loads(event) for event in out]


def given_text(found: list[dict[str, Any]]) -> str:
    return "".join(
        event["delta"]
        for event in found
        if event["type"] == "response.custom_tool_call_input.delta"
    )


@given(st.text(), st.booleans(), st.booleans(), st.lists(st.integers(min_value=0), max_size=20))
def test_the_text_is_what_the_json_says_however_it_is_cut(
    text: str, ascii_only: bool, bare: bool, places: list[int]
) -> None:
    written = json.dumps(text if bare else {"input": text}, ensure_ascii=ascii_only)
    cuts = [0, *sorted(place % (len(written) + 1) for place in places), len(written)]
    reader = InputText()
    pieces = (written[start:end] for start, end in pairwise(cuts))
    assert "".join(reader.feed(piece) for piece in pieces) == text
    assert reader.rest == ""


def test_a_call_of_a_custom_tool_is_an_item_of_its_own_kind() -> None:
    found = events(['{"input": "*** Be', "gin\\", 'nPatch"}'])
    assert given_text(found) == "*** Begin\nPatch"
    (done,) = (e for e in found if e["type"] == "response.custom_tool_call_input.done")
    assert done["input"] == "*** Begin\nPatch"
    (item,) = (e["item"] for e in found if e["type"] == "response.output_item.done")
    assert item == {
        "type": "custom_tool_call",
        "id": item["id"],
        "call_id": "call_1",
        "name": "patch",
        "input": "*** Begin\nPatch",
        "status": "completed",
    }
    assert item["id"].startswith("ctc_")


@pytest.mark.parametrize("written", ['{"patch": "x"}', "{}", "[1]"])
def test_what_is_no_input_is_passed_on_as_it_is(written: str) -> None:
    found = events([written])
    assert given_text(found) == written


def test_functions_beside_it_stay_functions() -> None:
    found = events(['{"input": "x"}'], "other")
    (item,) = (e["item"] for e in found if e["type"] == "response.output_item.done")
    assert (item["type"], item["arguments"]) == ("function_call", '{"input": "x"}')
