"""Rules of a grammar for the calls a turn may make: how formats write them, and what is in them.

A schema or grammar that cannot be kept is refused by the name of its tool. Pure.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from turnwire.pipelines.prompts.json_schema import ANY_OBJECT, SchemaRefused, closed, schema_term
from turnwire.pipelines.prompts.lark_in_json import NotEscapable, complaint, lark_in_json

Tool = dict[str, Any]
"""As the model is shown it."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a model writes a call: `trigger`, `opening`, its name, `middle`, arguments, `closing`."""

    trigger: str
    opening: str
    middle: str
    closing: str
    separator: str = "\n"
    alone: bool = False
    """A call is the whole answer: there is none behind text, nor behind another."""
    thinks: bool = False
    """The model may think first, and says what."""


HERMES = CallSyntax("<tool_call>", '\n{"name": "', '", "arguments": ', "}\n</tool_call>")
LLAMA3 = CallSyntax('{"name": "', "", '", "parameters": ', "}", alone=True)

CALLS: dict[str, CallSyntax] = {
    "chatml": HERMES,
    "gemma": HERMES,
    "hermes": HERMES,
    "jinja": replace(HERMES, thinks=True),
    "llama3": LLAMA3,
    "qwen3": replace(HERMES, thinks=True),
}
"""By prompt format; that of `harmony` is in `harmony_rules`."""


class ToolRefused(Exception):
    """What a tool asks of its calls cannot be kept; the message says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


def callable_tools(tools: list[Tool], choice: object) -> tuple[list[Tool], bool]:
    """The tools that may be called, and whether one must be."""
    match choice:
        case "none":
            return [], False
        case "required":
            return tools, True
        case {"type": "function" | "custom", "name": name}:
            return _named(tools, [name]), True
        case {"type": "allowed_tools", "mode": mode, "tools": allowed}:
            return _named(tools, [tool.get("name") for tool in allowed]), mode == "required"
        case _:
            return tools, False


def names_one(choice: object) -> bool:
    """Is it one tool that is to be called, once?"""
    return isinstance(choice, dict) and choice["type"] in ("function", "custom")


def _named(tools: list[Tool], names: Iterable[object]) -> list[Tool]:
    wanted = set(names)
    return [tool for tool in tools if tool["name"] in wanted]


def answer_rules(syntax: CallSyntax, text: str, calls: bool, required: bool) -> list[str]:
    """Rules of an answer: text, calls, or either."""
    called = f"{quoted(syntax.trigger)} calls"
    if required:
        return [f"answer: {called}"]
    if text:
        return [f"answer: text | {called}" if calls else "answer: text", f"text: {text}"]
    before = "" if syntax.alone else "(?s:.*)"
    words = f"WORDS: /(?s:.*)/ & ~/{before}{re.escape(syntax.trigger)}(?s:.*)/"
    if not calls:
        return ["answer: WORDS", words]
    if syntax.alone:
        return [f"answer: WORDS | {called}", words]
    lead = f"lead[lazy]: /(?s:.*)/ {quoted(syntax.trigger)}"
    return ["answer: WORDS | lead calls", words, lead]


def call_rules(tools: list[Tool], syntax: CallSyntax, most: int) -> list[str]:
    """Rules of one call after another, the first without its trigger."""
    rules = [f"calls: call (more call){{0,{most - 1}}}"] if most > 1 else ["calls: call"]
    if most > 1:
        rules.append(f"more: {quoted(syntax.separator + syntax.trigger)}")
    rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
    for index, tool in enumerate(tools):
        opening = quoted(f"{syntax.opening}{tool['name']}{syntax.middle}")
        rules.append(f"call_{index}: {opening} arguments_{index} {quoted(syntax.closing)}")
        rules += argument_rules(tool, index)
    return rules


def argument_rules(tool: Tool, index: int) -> list[str]:
    """Rules of what a tool is called with. Raises ToolRefused."""
    if (grammar := tool.get("lark")) is not None:
        if reason := complaint(grammar):
            raise ToolRefused(tool["name"], reason)
        try:
            inside = f"input_{index}: %lark {{\n{lark_in_json(grammar)}}}"
        except NotEscapable:
            pass  # checked when it is written
        else:
            around = f"{quoted(OPEN_INPUT)} input_{index} {quoted(CLOSE_INPUT)}"
            return [f"arguments_{index}: {around}", inside]
    schema = tool.get("parameters") or ANY_OBJECT
    strict = tool.get("strict") is True
    try:
        term = schema_term(schema if strict else closed(schema), strict=strict)
    except SchemaRefused as error:
        raise ToolRefused(tool["name"], str(error)) from None
    return [f"arguments_{index}: {term}"]


OPEN_INPUT, CLOSE_INPUT = '{"input": "', '"}'


def quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
