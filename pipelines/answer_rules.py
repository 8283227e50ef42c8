"""What an answer must keep to, and what becomes of one that does not. Pure.

An engine that holds answers to tools and formats while it samples is asked for little here. Any
other is checked: what was broken off is completed once, since what was sent cannot be taken back;
an answer that fits nothing then fails the response.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
from llguidance import LLMatcher
from msgspec.structs import replace

from turnwire.pipelines.messages import (
    AnswerRules,
    CallProduced,
    Counts,
    EngineEvent,
    GenerationFinished,
    Json,
    Model,
    TextProduced,
)
from turnwire.pipelines.prompts.call_arguments import ArgumentText
from turnwire.pipelines.prompts.call_grammar import callable_tools
from turnwire.pipelines.prompts.lark_in_json import byte_tokenizer, escapable
from turnwire.pipelines.protocol.errors import Internal
from turnwire.pipelines.protocol.requests import PLAIN_TEXT, Request

_NOTHING = AnswerRules()


def rules_of(request: Request, model: Model) -> AnswerRules | None:
    """None: the answer may be anything."""
    most = request.max_tool_calls if request.parallel_tool_calls else 1
    shown = request.tools.shown
    rules = _rules(shown, request.choice, request.text_format, most, not model.constrains)
    return None if rules is _NOTHING else rules


@lru_cache(maxsize=64)
def _rules(
    shown: Json, choice: Json, text_format: Json, most_calls: int | None, checked: bool
) -> AnswerRules:
    tools: list[dict[str, Any]] = msgspec.json.decode(shown)
    allowed, required = callable_tools(tools, msgspec.json.decode(choice))
    names = tuple(tool["name"] for tool in allowed) if tools and len(allowed) < len(tools) else None
    schemas: dict[str, Json] = {}
    grammars: dict[str, str] = {}
    for tool in allowed:
        if checked and tool.get("strict") is True and tool.get("parameters"):
            schemas[tool["name"]] = msgspec.json.encode(tool["parameters"])
        # No engine is held to a grammar that cannot stand inside of JSON.
        if (lark := tool.get("lark")) and (checked or not escapable(lark)):
            grammars[tool["name"]] = lark
    text = _schema(text_format) if checked else b""
    rules = AnswerRules(names, most_calls if tools else None, required, schemas, grammars, text)
    return _NOTHING if rules == _NOTHING else rules


def _schema(text_format: Json) -> Json:
    """What JSON a message must be; empty: any text."""
    if text_format == PLAIN_TEXT:
        return b""
    given = msgspec.json.decode(text_format)
    if given["type"] == "json_schema" and given.get("strict") is True:
        return msgspec.json.encode(given["schema"])
    return b"" if given["type"] == "text" else b'{"type":"object"}'


class AnswerCheck:
    """One answer, whose text, reasoning and calls are told apart already."""

    def __init__(self, rules: AnswerRules) -> None:
        self._rules = rules
        self._calls: dict[int, list[str]] = {}
        self._ignored: set[int] = set()
        self._said: list[str] = []

    def feed(self, events: list[EngineEvent]) -> list[EngineEvent]:
        """The events to pass on. Raises Internal for an answer that may not be."""
        out: list[EngineEvent] = []
        for event in events:
            match event:
                case CallProduced():
                    out += self._call(event)
                case TextProduced(text) if self._rules.text:
                    self._said.append(text)
                    out.append(event)
                case GenerationFinished(finish, counts) if finish in ("stop", "tool_calls"):
                    out += self._end(counts)
                    out.append(event)
                case _:
                    out.append(event)
        return out

    def _call(self, event: CallProduced) -> list[EngineEvent]:
        """Calls beyond the limit are left out, as the API has it."""
        rules, written = self._rules, self._calls.get(event.index)
        if event.index in self._ignored:
            return []
        if written is None:
            if rules.allowed is not None and event.name not in rules.allowed:
                raise Internal(f"The model called '{event.name}', which this turn does not allow.")
            if rules.most_calls is not None and len(self._calls) >= rules.most_calls:
                self._ignored.add(event.index)
                return []
            written = self._calls[event.index] = []
        if event.name not in rules.schemas and event.name not in rules.grammars:
            return [event]
        written.append(event.arguments)
        if not event.finished:
            return [event]
        what = f"The model called '{event.name}' with arguments that"
        schema = rules.schemas.get(event.name, b"{}")
        added = _completed("".join(written), what, schema, rules.grammars.get(event.name))
        return [replace(event, arguments=event.arguments + added)] if added else [event]

    def _end(self, counts: Counts) -> list[EngineEvent]:
        if self._rules.required and not self._calls:
            raise Internal("The model called no tool, although 'tool_choice' asks for a call.")
        if not self._rules.text or self._calls:
            return []
        added = _completed("".join(self._said), "The model wrote an answer that", self._rules.text)
        return [TextProduced(added, counts)] if added else []


def _completed(text: str, what: str, schema: Json, grammar: str | None = None) -> str:
    """What is missing at the end of a JSON text. Raises Internal when it does not fit then."""
    written = ArgumentText()
    _, rest = written.feed(text)
    added = "" if written.valid else written.repair()
    if added is None or rest.strip():
        raise Internal(f"{what} cannot be made valid JSON.")
    value = json.loads(text + added, strict=False)
    if not _validator(schema)(value):
        raise Internal(f"{what} did not fit the schema.")
    if grammar is not None and not _fits(grammar, value):
        raise Internal(f"{what} did not fit the tool's grammar.")
    return added


@lru_cache(maxsize=64)
def _validator(schema: Json) -> Callable[[object], bool]:
    # Few models need it, and it takes 0.1 s to import.
    from jsonschema.validators import validator_for  # type: ignore[import-untyped]

    document = msgspec.json.decode(schema)
    valid: Callable[[object], bool] = validator_for(document)(document).is_valid
    return valid


def _fits(grammar: str, value: object) -> bool:
    given = value.get("input") if isinstance(value, dict) else None
    if not isinstance(given, str):
        return False
    matcher = LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_lark(grammar), log_level=0)
    tokens = list(given.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
