"""What an answer may be: the grammar a token engine samples under. Pure.

Made from `tool_choice`, the tools and `text.format`; the same request members give the same text,
which is kept, so that a turn with unchanged members costs a look-up.
"""

from functools import lru_cache
from typing import Any

import msgspec
from llguidance import LLMatcher

from turnwire.pipelines.messages import Json
from turnwire.pipelines.prompts import harmony_rules
from turnwire.pipelines.prompts.call_grammar import (
    CALLS,
    ToolRefused,
    answer_rules,
    call_rules,
    callable_tools,
    names_one,
)
from turnwire.pipelines.prompts.json_schema import ANY_OBJECT, SchemaRefused, closed, schema_term
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.requests import Request

_MAX_CALLS = 32
"""In one answer, where the request names no limit: repeating calls would end at no other."""
_PLAIN = b'{"type":"text"}'
_HARMONY = "harmony"


def constraint_of(request: Request, prompt_format: str, *, thinking: bool = False) -> str:
    """The grammar of the answer; empty: anything. Raises InvalidRequest that names a member.

    `thinking`: the prompt ends inside of a thought.
    """
    tools = request.tools
    try:
        return _constraint(
            prompt_format,
            tools.shown,
            request.choice,
            request.text_format,
            request.max_tool_calls if request.parallel_tool_calls else 1,
            thinking,
        )
    except ToolRefused as error:
        at = _place(msgspec.json.decode(tools.echo), error.name)
        raise InvalidRequest(f"Invalid '{at}': {error}.", at) from None


@lru_cache(maxsize=64)
def _constraint(
    prompt_format: str,
    shown: Json,
    choice: Json,
    text_format: Json,
    max_calls: int | None,
    thinking: bool,
) -> str:
    chosen = msgspec.json.decode(choice)
    tools, required = callable_tools(msgspec.json.decode(shown), chosen)
    text = _text_term(text_format)
    syntax = CALLS.get(prompt_format)
    if syntax is None and prompt_format != _HARMONY and required:
        reason = "this model cannot be held to it"
        raise InvalidRequest(f"Invalid 'tool_choice': {reason}.", "tool_choice")
    if required and not tools:
        reason = "it names a tool that this model cannot call"
        raise InvalidRequest(f"Invalid 'tool_choice': {reason}.", "tool_choice")
    if prompt_format == _HARMONY:
        if not text and shown == b"[]":
            return ""
        return _grammar(harmony_rules.rules(text, tools, required=required))
    if syntax is None or shown == b"[]":
        if not text:
            return ""
        started = _started(syntax is not None and syntax.thinks, thinking)
        return _grammar([*started, f"answer: {text}"])
    rules = [*_started(syntax.thinks, thinking), *answer_rules(syntax, text, bool(tools), required)]
    if tools:
        once = syntax.alone or names_one(chosen)
        rules += call_rules(tools, syntax, 1 if once else max_calls or _MAX_CALLS)
    return _grammar(rules)


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


_REST_OF_THOUGHT = [
    r"thought: think /\n{0,2}/",
    'think[lazy]: /(?s:.*)/ "</think>"',
]
_THOUGHT = [
    "start: thought? answer",
    r"thought: think /\n{0,2}/",
    'think[lazy]: "<think>" /(?s:.*)/ "</think>"',
]


def _started(thinks: bool, thinking: bool) -> list[str]:
    if thinking:
        return ["start: thought answer", *_REST_OF_THOUGHT]
    return _THOUGHT if thinks else ["start: answer"]


def _grammar(rules: list[str]) -> str:
    grammar = LLMatcher.grammar_from_lark("\n".join(["%llguidance {}", *rules, ""]))
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
