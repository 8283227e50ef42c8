"""What an answer may be: the grammar a token engine samples under. Pure.

Made from `tool_choice`, the tools and `text.format`; the same request members give the same text,
which is kept, so that a turn with unchanged members costs a look-up.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec
from llguidance import LLMatcher

from turnwire.pipelines.messages import Json
from turnwire.pipelines.prompts.json_schema import ANY_OBJECT, SchemaRefused, closed, schema_term
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.requests import Request

_MAX_CALLS = 32
"""In one answer, where the request names no limit: repeating calls would end at no other."""
_PLAIN = b'{"type":"text"}'


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
"""By prompt format. Answers of any other are constrained as far as they are plain text."""

MARKED = frozenset({"harmony"})
"""Formats whose every answer has markers of its own around its parts: not constrained."""


def constraint_of(request: Request, prompt_format: str) -> str:
    """The grammar of the answer; empty: anything. Raises InvalidRequest that names a member."""
    tools = request.tools
    try:
        return _constraint(
            prompt_format,
            tools.shown,
            request.tool_choice,
            request.text_format,
            request.max_tool_calls if request.parallel_tool_calls else 1,
        )
    except _ToolRefused as error:
        at = _place(msgspec.json.decode(tools.echo), error.name)
        raise InvalidRequest(f"Invalid '{at}': {error}.", at) from None


class _ToolRefused(Exception):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


@lru_cache(maxsize=64)
def _constraint(
    prompt_format: str, shown: Json, choice: Json, text_format: Json, max_calls: int | None
) -> str:
    tools, required = _callable(msgspec.json.decode(shown), msgspec.json.decode(choice))
    text = _text_term(text_format)
    syntax = CALLS.get(prompt_format)
    if prompt_format in MARKED or (syntax is None and required):
        at = "text.format" if text else "tool_choice"
        if text or required:
            raise InvalidRequest(f"Invalid '{at}': this model cannot be held to it.", at)
        return ""
    if syntax is None or shown == b"[]":
        thinks = syntax is not None and syntax.thinks
        return _grammar([f"answer: {text}"], thinks=thinks) if text else ""
    if required and not tools:
        reason = "it names a tool that this model cannot call"
        raise InvalidRequest(f"Invalid 'tool_choice': {reason}.", "tool_choice")
    rules = _answer(syntax, text, bool(tools), required)
    if tools:
        once = syntax.alone or _names_one(msgspec.json.decode(choice))
        rules += _calls(tools, syntax, 1 if once else max_calls or _MAX_CALLS)
    return _grammar(rules, thinks=syntax.thinks)


def _answer(syntax: CallSyntax, text: str, calls: bool, required: bool) -> list[str]:
    """Rules of an answer: text, calls, or either."""
    called = f"{_quoted(syntax.trigger)} calls"
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
    lead = f"lead[lazy]: /(?s:.*)/ {_quoted(syntax.trigger)}"
    return ["answer: WORDS | lead calls", words, lead]


def _callable(tools: list[dict[str, Any]], choice: object) -> tuple[list[dict[str, Any]], bool]:
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


def _names_one(choice: object) -> bool:
    """Is it one tool that is to be called, once?"""
    return isinstance(choice, dict) and choice["type"] in ("function", "custom")


def _named(tools: list[dict[str, Any]], names: Iterable[object]) -> list[dict[str, Any]]:
    wanted = set(names)
    return [tool for tool in tools if tool["name"] in wanted]


def _calls(tools: list[dict[str, Any]], syntax: CallSyntax, most: int) -> list[str]:
    """Rules of one call after another, the first without its trigger."""
    rules = [f"calls: call (more call){{0,{most - 1}}}"] if most > 1 else ["calls: call"]
    if most > 1:
        rules.append(f"more: {_quoted(syntax.separator + syntax.trigger)}")
    rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
    for index, tool in enumerate(tools):
        opening = _quoted(f"{syntax.opening}{tool['name']}{syntax.middle}")
        rules.append(f"call_{index}: {opening} arguments_{index} {_quoted(syntax.closing)}")
        rules.append(f"arguments_{index}: {_arguments_term(tool)}")
    return rules


def _arguments_term(tool: dict[str, Any]) -> str:
    schema = tool.get("parameters") or ANY_OBJECT
    strict = tool.get("strict") is True
    try:
        return schema_term(schema if strict else closed(schema), strict=strict)
    except SchemaRefused as error:
        raise _ToolRefused(tool["name"], str(error)) from None


def _text_term(text_format: Json) -> str:
    """What a message must be; empty: any text."""
    if text_format == _PLAIN:
        return ""
    given = msgspec.json.decode(text_format)
    if given["type"] == "text":
        return ""
    if given["type"] == "json_object":
        return schema_term(ANY_OBJECT, strict=True)
    schema, strict = given["schema"], given.get("strict") is True
    try:
        return schema_term(schema if strict else closed(schema), strict=strict)
    except SchemaRefused as error:
        at = "text.format.schema"
        raise InvalidRequest(f"Invalid '{at}': {error}.", at) from None


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


_THOUGHT = [
    "start: thought? answer",
    r"thought: think /\n{0,2}/",
    'think[lazy]: "<think>" /(?s:.*)/ "</think>"',
]


def _grammar(rules: list[str], *, thinks: bool) -> str:
    start = _THOUGHT if thinks else ["start: answer"]
    lines = ["%llguidance {}", *start, *rules, ""]
    grammar = LLMatcher.grammar_from_lark("\n".join(lines))
    complaint = LLMatcher.validate_grammar(grammar)
    if complaint and not complaint.startswith("WARNING"):
        raise InvalidRequest(
            "The tools and the text format are too large to hold an answer to.", "tools"
        )
    return grammar


def _place(tools: list[dict[str, Any]], name: str, at: str = "tools") -> str:
    """Where the function that the model knows as `name` has its parameters."""
    for index, tool in enumerate(tools):
        here = f"{at}[{index}]"
        if tool.get("type") == "namespace":
            start = f"{tool['name']}__"
            if name.startswith(start):
                return _place(tool.get("tools", []), name[len(start) :], f"{here}.tools")
        elif tool.get("name") == name:
            custom = tool.get("type") == "custom"
            return f"{here}.format.definition" if custom else f"{here}.parameters"
    return at
