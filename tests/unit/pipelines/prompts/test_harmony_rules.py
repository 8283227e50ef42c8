"""What an answer in Harmony may be, over a vocabulary of bytes and its markers."""

import re
from typing import Any

import msgspec
import pytest
from lark_grammars import APPLY_PATCH
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from turnwire.pipelines.prompts.constraint import constraint_of
from turnwire.pipelines.protocol.requests import RequestParser

MARKERS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>")
CUT = re.compile("(" + "|".join(map(re.escape, MARKERS)) + ")")


class Marked:
    """All bytes, the markers, and an end."""

    bos_token_id = None
    eos_token_id = 256
    special_token_ids = tuple(range(256, 257 + len(MARKERS)))
    tokens = (
        *(bytes([value]) for value in range(256)),
        b"<|return|>",
        *(marker.encode() for marker in MARKERS),
    )

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


VOCABULARY = LLTokenizer(TokenizerWrapper(Marked()))
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "weather", "parameters": CITY, "strict": True},
    {"type": "function", "name": "stop"},
]
THOUGHT = '<|channel|>analysis<|message|>It is {"so"}.<|end|><|start|>assistant'
PREAMBLE = "<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>Hello."
JSON = '<|channel|>final<|message|>{"city": "Rome"}'
ARGUMENTS = '<|message|>{"city": "Rome"}<|call|>'
CALL = f"<|channel|>commentary to=functions.weather <|constrain|>json{ARGUMENTS}"
EARLY = f" to=functions.weather<|channel|>commentary <|constrain|>json{ARGUMENTS}"
BARE = f"<|channel|>commentary to=functions.weather{ARGUMENTS}"
STOP = "<|channel|>commentary to=functions.stop <|constrain|>json<|message|>{}<|call|>"
OTHER = STOP.replace("stop", "other")
WRONG = CALL.replace("city", "town")
FORMAT = {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": CITY}}


def constraint(**members: object) -> str:
    frame = msgspec.json.encode({"model": "m", "input": "hi"} | members)
    return constraint_of(RequestParser(bytes, 10_000).parse(frame, "websocket"), "harmony")


def fits(grammar: str, text: str) -> bool:
    matcher = LLMatcher(VOCABULARY, grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens: list[int] = []
    for piece in CUT.split(text):
        marked = piece in MARKERS
        tokens += [257 + MARKERS.index(piece)] if marked else piece.encode()
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        {"tools": TOOLS},
        [FINAL, THOUGHT + FINAL, THOUGHT + PREAMBLE + CALL, EARLY, BARE, STOP, PREAMBLE + FINAL],
        [OTHER, WRONG, CALL + FINAL, CALL + "<|start|>assistant" + STOP, THOUGHT, "Hello."],
    ),
    ({"tools": TOOLS, "tool_choice": "none"}, [FINAL, THOUGHT + FINAL], [CALL, STOP, EARLY]),
    ({"tools": TOOLS, "tool_choice": "required"}, [THOUGHT + CALL, STOP], [FINAL, THOUGHT + FINAL]),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "name": "stop"}},
        [STOP, THOUGHT + STOP],
        [CALL, FINAL],
    ),
    ({"text": FORMAT}, [JSON, THOUGHT + JSON], [FINAL, THOUGHT + FINAL, JSON + "<|call|>"]),
    ({"tools": TOOLS, "text": FORMAT}, [JSON, CALL, THOUGHT + JSON], [FINAL, WRONG]),
]


@pytest.mark.parametrize(("members", "right", "wrong"), CASES)
def test_harmony_is_held_to_its_channels_and_calls(
    members: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    grammar = constraint(**members)
    assert [text for text in right if not fits(grammar, text)] == []
    assert [text for text in wrong if fits(grammar, text)] == []


def test_without_tools_and_format_nothing_is_constrained() -> None:
    assert constraint() == ""


def test_a_custom_tool_is_held_to_its_grammar() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": APPLY_PATCH}
    tools = [{"type": "custom", "name": "stop", "format": form}]
    grammar = constraint(tools=tools)
    patch = '{"input": "*** Begin Patch\\n*** Delete File: a\\n*** End Patch"}'
    assert fits(grammar, STOP.replace("{}", patch))
    assert not fits(grammar, STOP.replace("{}", patch.replace("Delete", "Eat")))
