# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""What a response says of what its model was not shown."""

from typing import Any

import pytest

from turnwire.pipelines.messages import Model

IMAGE = {"type": "input_image", "image_url": "data:,x"}
FILE = {"type": "input_file", "file_id": "file_1"}
TEXT = {"type": "input_text", "text": "[input_image omitted: this model reads text only]"}
BLIND, SEEING = Model("m", "items"), Model("m", "items", sees=True)


def said(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    ("parts", "warning"),
    [((TEXT,), ""), ((TEXT, IMAGE), "1 image"), ((IMAGE, FILE), "2 images")],
)
def test_images_and_files_are_counted(new_talk: Any, parts: Any, warning: str) -> None:
    talk = new_talk(BLIND)
    warnings = talk.create("resp_1", input=said(*parts)).warnings
    assert [text[: len(warning)] for text in warnings] == ([warning] if warning else [])
    assert talk.create("resp_2", input=said(*parts), model=SEEING).warnings == ()


def test_those_of_earlier_turns_and_of_tool_outputs(new_talk: Any, token_model: Model) -> None:
    talk = new_talk(token_model)
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [IMAGE]}
    assert len(talk.create("resp_1", input=[*said(TEXT), call, output]).warnings) == 1
    talk.answer("resp_1")
    assert talk.create("resp_2", previous_response_id="resp_1", input="hi").warnings == ()


def test_verbosity_is_not_dropped_silently(new_talk: Any, token_model: Model) -> None:
    talk = new_talk(token_model)
    for given, count in ((None, 0), ("medium", 0), ("low", 1), ("high", 1)):
        prepared = talk.create(f"resp_{given}", input="hi", text={"verbosity": given})
        assert len(prepared.warnings) == count
    prepared = talk.create("resp_x", input="hi", text={"verbosity": "low"}, model=BLIND)
    assert (prepared.warnings, prepared.facts.verbosity) == ((), "low")


def test_items_of_unknown_kinds_are_counted(new_talk: Any, token_model: Model) -> None:
    talk = new_talk(token_model)
    strange = {"type": "computer_call_output", "call_id": "c", "output": {}}
    (warning,) = talk.create("resp_1", input=[*said(TEXT), strange]).warnings
    assert warning.startswith("1 input item ")
