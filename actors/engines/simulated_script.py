"""What a simulated model answers: decided in full before its first token. Pure.

With tools offered and no tool output after the last user message it calls the first function, or
else the first custom tool; otherwise it answers in text. `recall:KEY` is answered with what
`remember:KEY=VALUE` of the context says, or `unknown`; a request for a summary with all of those.
The same prompt and facts give the same answer.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import orjson

from turnwire.actors.engines.simulated_agent import command_arguments, report, shell_function
from turnwire.actors.engines.simulated_input import input_text
from turnwire.actors.engines.simulated_prompt import Head, Items
from turnwire.actors.engines.simulated_schema import Unsatisfiable, instance
from turnwire.actors.engines.simulated_steering import Failure, Steering
from turnwire.actors.engines.simulated_text import (
    TOKEN_CHARACTERS,
    Passage,
    Prose,
    Written,
)
from turnwire.actors.engines.simulated_tool_choice import callable_functions
from turnwire.pipelines.messages import Facts, Finish
from turnwire.pipelines.protocol.errors import InvalidRequest

DEFAULT_OUTPUT_TOKENS: Final = 64


class Text(msgspec.Struct, frozen=True):
    """Part of the answer in words, or of the reasoning before it."""

    passage: Passage
    reasoning: bool = False


class Call(msgspec.Struct, frozen=True):
    """A function call."""

    index: int
    call_id: str
    name: str
    passage: Passage


Part = Text | Call


class Script(msgspec.Struct, frozen=True):
    """Everything one response will say. `finish`: unless it is cut short."""

    parts: tuple[Part, ...]
    finish: Finish
    failure: Failure | None = None


def tokens(part: Part) -> int:
    """Output tokens of a part."""
    return -(-part.passage.characters // TOKEN_CHARACTERS)


class Question(msgspec.Struct, frozen=True):
    """What a script is written for."""

    key: bytes
    head: Head
    items: Items
    facts: Facts
    steering: Steering
    agent_tool_turns: int = 0
    """Not 0: play a coding agent where a shell is offered, which runs so many commands."""

    @property
    def agent(self) -> bool:
        return self.agent_tool_turns > 0


def script(question: Question) -> Script:
    """Raises `InvalidRequest` for a tool choice or a schema that cannot be obeyed."""
    steering = question.steering
    functions, forced = callable_functions(question.head.functions, question.facts.tool_choice)
    reasoning: tuple[Part, ...] = ()
    if steering.reasoning_tokens:
        reasoning = (Text(Prose(_seed(question) + 1, steering.reasoning_tokens), reasoning=True),)
    if functions and (forced or _calls(question)):
        return Script((*reasoning, *_call(question, functions)), "tool_calls", steering.failure)
    return Script((*reasoning, Text(_answer(question))), "stop", steering.failure)


def _calls(question: Question) -> bool:
    if question.items.recall is not None:
        return False
    turns = question.steering.tool_turns
    if turns is None:
        turns = question.agent_tool_turns or 1
    return question.items.outputs < turns


def _call(question: Question, functions: list[Mapping[str, Any]]) -> list[Part]:
    shell = shell_function(functions) if question.agent else None
    function = shell or functions[0]
    calls = question.steering.parallel_calls if question.facts.parallel_tool_calls else 1
    calls = min(calls, question.facts.max_tool_calls or calls)
    wanted = (question.steering.output_tokens or 0) * TOKEN_CHARACTERS
    parts: list[Part] = []
    for index in range(calls):
        share = wanted // calls
        if shell:
            step = question.items.outputs + index
            arguments = _agent_arguments(shell, step, _seed(question), share)
        else:
            arguments = _arguments(function, _seed(question) + index, share)
        call_id = hashlib.blake2b(question.key, digest_size=12, salt=b"call%d" % index).hexdigest()
        parts.append(Call(index, f"call_{call_id}", str(function["name"]), Written(arguments)))
    return parts


def _arguments(function: Mapping[str, Any], seed: int, characters: int) -> str:
    if function.get("type") == "custom":
        return _custom_input(function, seed, characters)
    schema = function.get("parameters") or {"type": "object"}
    try:
        made = _document(schema, seed)
        if len(made) < characters:
            made = _document(schema, seed, characters - len(made))
    except Unsatisfiable as error:
        raise InvalidRequest(
            f"the simulated models find no arguments for {function['name']!r}: {error}", "tools"
        ) from error
    return made


def _custom_input(tool: Mapping[str, Any], seed: int, characters: int) -> str:
    given = (tool.get("parameters") or {}).get("properties", {}).get("input", {})
    if "pattern" in given:
        return _document(tool["parameters"], seed)
    text = input_text(tool, seed, characters)
    if text is None:
        message = f"the simulated models find no input for {tool['name']!r}"
        raise InvalidRequest(message, "tools")
    return orjson.dumps({"input": text}).decode()


def _agent_arguments(function: Mapping[str, Any], step: int, seed: int, characters: int) -> str:
    made = orjson.dumps(command_arguments(function, step, seed)).decode()
    if len(made) < characters:
        longer = command_arguments(function, step, seed, characters - len(made))
        made = orjson.dumps(longer).decode()
    return made


def _document(schema: object, seed: int, filler_characters: int = 0) -> str:
    return orjson.dumps(instance(schema, seed, filler_characters)).decode()


def _answer(question: Question) -> Passage:
    items, wanted = question.items, question.steering.output_tokens
    if items.summary:
        return Written(_summary(items))
    if items.recall is not None:
        remembered = items.memory.value(items.recall) if items.memory else None
        return Written(remembered or question.head.values.get(items.recall, "unknown"))
    text_format = orjson.loads(question.facts.text_format)
    match text_format.get("type"):
        case "json_schema":
            return Written(_structured(text_format["schema"], _seed(question)))
        case "json_object":
            return Written(_document({"type": "object", "required": ["answer"]}, _seed(question)))
    if question.agent and wanted is None and items.outputs:
        return Written(report(items.outputs))
    return Prose(_seed(question), wanted or DEFAULT_OUTPUT_TOKENS)


def _summary(items: Items) -> str:
    """What a simulated model knows of a conversation."""
    needles = items.memory.all() if items.memory else {}
    told = "".join(f" remember:{key}={value}" for key, value in needles.items())
    return f"A conversation of {items.tokens} tokens.{told}"


def _structured(schema: object, seed: int) -> str:
    try:
        return _document(schema, seed)
    except Unsatisfiable as error:
        message = f"the simulated models find no answer for the schema: {error}"
        raise InvalidRequest(message, "text.format.schema") from error


def _seed(question: Question) -> int:
    return int.from_bytes(question.key[:7])
