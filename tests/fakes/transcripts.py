"""Wire scenarios as text files: what their lines are, and how an event is written in one.

    # what the scenario shows: the first line of every file
    > {"type":"response.create",...}    a client's frame; `2>` comes on the second connection
    < {"type":"response.created",...}   our frame, in short (see `shown`); `2<` likewise
    ! resp_1 says "Hello"               what the world does: see `transcript_core.Core`
    = resp_1 stopped                    what the world was told, beside the wire

Responses are named `resp_N` after the frame that asks for them, the N-th of the file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

FOLDER = Path(__file__).parents[1] / "transcripts"
FILES = sorted(FOLDER.glob("*.txt"))

_LINE = re.compile(r"(?:([#!=])|(\d?)([<>])) ?(.*)")

_USUAL = {
    "object": "response",
    "background": False,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "model": "sim-max",
    "output": [],
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "store": False,
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
    "usage": None,
    "user": None,
}
"""Members of a response object that go without saying."""


@dataclass(frozen=True, slots=True)
class Line:
    kind: str
    text: str
    connection: int = 1

    def __str__(self) -> str:
        number = "" if self.connection == 1 else str(self.connection)
        return f"{number}{self.kind} {self.text}".rstrip()


def lines_of(path: Path) -> list[Line]:
    """Raises AssertionError for a line that is none."""
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").rstrip("\n").split("\n"), 1):
        found = _LINE.fullmatch(text)
        assert found is not None, f"{path.name}:{number}: {text[:60]!r} is no line of a transcript"
        mark, connection, arrow, rest = found.groups()
        lines.append(Line(mark or arrow, rest, int(connection or 1)))
    return lines


def rewrite(path: Path, played: str) -> None:
    path.write_text(played, encoding="utf-8")


def text_of(lines: list[Line]) -> str:
    return "".join(f"{line}\n" for line in lines)


_INNER = (
    "content_part",
    "output_text",
    "reasoning_text",
    "function_call_arguments",
    "custom_tool_call_input",
)


def is_outer(event: dict[str, Any]) -> bool:
    """Not one of those that only carry an item on; `set events all` shows these too."""
    kind = event["type"].removeprefix("response.")
    return kind != "output_item.added" and not kind.startswith(_INNER)


def shown(event: dict[str, Any]) -> str:
    """An event in short: without what goes without saying, and what was sent before by its id."""
    return orjson.dumps(dict(_short(event))).decode()


def _short(event: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in event.items():
        match name:
            case "response":
                yield name, dict(_response(value))
            case "part":
                yield name, _without_empty(value)
            case "item":
                parts = value.get("content")
                yield name, value | ({"content": [*map(_without_empty, parts)]} if parts else {})
            case "logprobs" if value == []:
                pass
            case _:
                yield name, value


def _response(response: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "id", response["id"]
    yield "status", response["status"]
    for name, value in response.items():
        if name in ("id", "status", "created_at", "completed_at"):
            continue
        if name in _USUAL and _USUAL[name] == value:
            continue
        match name:
            case "output":
                yield name, [item["id"] for item in value]
            case "tools":
                yield name, [tool.get("name") or tool["type"] for tool in value]
            case "usage":
                yield name, _usage(value)
            case _:
                yield name, value


def _usage(usage: dict[str, Any]) -> str:
    given, made = usage["input_tokens_details"], usage["output_tokens_details"]
    return (
        f"{usage['input_tokens']} in, {given['cached_tokens']} cached, "
        f"{usage['output_tokens']} out, {made['reasoning_tokens']} reasoning"
    )


def _without_empty(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if value != []}
