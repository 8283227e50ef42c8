"""ChatML with tools as Qwen2.5 and its kin are trained on them.

The system message lists the functions between `<tools>` and `</tools>`, a JSON object a line. The
markers and the JSON are the models'; the sentences around them are our own.
"""

import json
from typing import Any

import msgspec

from turnwire.pipelines.prompts.chatml import CALL, CALL_END, ChatML
from turnwire.pipelines.protocol.tools import Tools

_INTRODUCTION = (
    "# Tools\n\nThese functions can be called to help the user. Each line between <tools> and "
    "</tools> is the JSON signature of one of them:\n<tools>"
)
_HOW = (
    "\n</tools>\n\nTo call a function, write a JSON object with its name and arguments between ",
    CALL,
    " and ",
    CALL_END,
    ", one such block a call:\n",
    CALL,
    '\n{"name": <name of the function>, "arguments": <object of arguments>}\n',
    CALL_END,
)


class Hermes(ChatML):
    """Implements `prompts.format.Format`."""

    default_system: str | None = (
        "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    )

    def tool_section(self, tools: Tools) -> tuple[str, ...]:
        lines = tool_lines(tools)
        return tool_text(lines) if lines else ()


def tool_text(lines: list[str]) -> tuple[str, ...]:
    """What a model is told of functions, `lines` being their signatures."""
    return (_INTRODUCTION, *(f"\n{line}" for line in lines), *_HOW)


def tool_lines(tools: Tools) -> list[str]:
    """The functions a model may see, a JSON object each."""
    return [json.dumps(signature(tool), ensure_ascii=False) for tool in functions(tools)]


def functions(tools: Tools) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = msgspec.json.decode(tools.shown)
    return shown


def signature(tool: dict[str, Any]) -> dict[str, Any]:
    """A function in the form of chat templates."""
    members = {name: tool.get(name) for name in ("name", "description", "parameters")}
    said = {name: value for name, value in members.items() if value is not None}
    return {"type": "function", "function": said}
