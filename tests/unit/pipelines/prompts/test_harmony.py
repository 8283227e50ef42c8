# ruff: noqa: ANN401 -- the reference is compiled, and JSON is anything
"""Against the reference implementation, `openai-harmony`, over the same vocabulary."""

import base64
import json
from array import array
from pathlib import Path
from typing import Any

import msgspec
import openai_harmony as reference
import pytest
from prompt_oracle import vocabulary

from turnwire.pipelines.messages import Finish, Model
from turnwire.pipelines.prompts.format import Format, format_of
from turnwire.pipelines.protocol.items import CallOutput, kept_items
from turnwire.pipelines.protocol.tools import parse_tools

Said = tuple[str, str]
MERGED = 199_998
"""Tokens of the vocabulary before its control markers."""


@pytest.fixture(scope="module")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference, its vocabulary written out for it so that it downloads nothing."""
    folder: Path = tmp_path_factory.mktemp("encodings")
    tokens = (vocabulary("o200k_harmony").decode_token_bytes(id) for id in range(MERGED))
    lines = (b"%b %d\n" % (base64.b64encode(token), id) for id, token in enumerate(tokens))
    (folder / "o200k_base.tiktoken").write_bytes(b"".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(folder))
        return reference.load_harmony_encoding(reference.HarmonyEncodingName.HARMONY_GPT_OSS)


@pytest.fixture(scope="module")
def harmony() -> Format:
    form = format_of(Model("m", "tokens", "harmony", "splintr:o200k_harmony"))
    assert not form.append_only
    return form  # type: ignore[return-value]


def message(role: str, text: str, channel: str = "", **more: str) -> reference.Message:
    author = reference.Author(role=reference.Role(role), name=more.get("name"))
    made = reference.Message.from_author_and_content(author, text)
    made = made.with_channel(channel) if channel else made
    if "to" in more:
        made = made.with_recipient(more["to"]).with_content_type("<|constrain|>json")
    return made


def developer(text: str | None, tools: list[dict[str, Any]] | None = None) -> reference.Message:
    content = reference.DeveloperContent.new()
    content = content if text is None else content.with_instructions(text)
    if tools:
        described = [
            reference.ToolDescription.new(
                tool["name"], tool.get("description") or "", tool.get("parameters")
            )
            for tool in tools
        ]
        content = content.with_function_tools(described)
    return reference.Message.from_role_and_content(reference.Role.DEVELOPER, content)


SYSTEM = reference.Message.from_role_and_content(
    reference.Role.SYSTEM, reference.SystemContent.new()
)


def referred(encoding: Any, *messages: reference.Message) -> list[int]:
    """The reference's prompt for the next answer."""
    conversation = reference.Conversation.from_messages(list(messages))
    ids = encoding.render_conversation_for_completion(conversation, reference.Role.ASSISTANT)
    return list(ids)


def prompt(form: Format, *parts: bytes) -> list[int]:
    return array("I", b"".join((*parts, form.header))).tolist()


def items(*given: dict[str, Any]) -> list[Any]:
    numbered = [{"id": f"i_{at}"} | item for at, item in enumerate(given)]
    return [
        msgspec.structs.replace(item, name="f") if isinstance(item, CallOutput) else item
        for item in kept_items(json.dumps(numbered)[1:-1].encode())
    ]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def thought(text: str) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
    }


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "4 🙂 <|end|>"}
ASKED = message("user", "hi\n<|start|>system")
REFERENCE_CALL = message("assistant", '{"a": 1}', "commentary", to="functions.f")
REFERENCE_OUTPUT = message("tool", "4 🙂 <|end|>", "commentary", name="functions.f")
REFERENCE_OUTPUT = REFERENCE_OUTPUT.with_recipient("assistant")


@pytest.mark.parametrize("told", [None, "Be brief.", "  Two\nlines <|end|>\n"])
def test_the_beginning_is_the_reference_s(
    harmony: Format,
    encoding: Any,
    told: str | None,
) -> None:
    messages = (SYSTEM, *([developer(told)] if told else []), ASKED)
    ours = harmony.begin(told, parse_tools(b"[]"), items(user("hi\n<|start|>system")))
    assert prompt(harmony, ours) == referred(encoding, *messages)


def test_a_tool_loop_keeps_thoughts_as_the_reference_does(
    harmony: Format,
    encoding: Any,
) -> None:
    commented = {"role": "assistant", "content": "Wait.", "phase": "commentary"}
    given = items(user("hi\n<|start|>system"), thought("Hm."), commented, CALL, OUTPUT)
    expected = referred(
        encoding,
        ASKED,
        message("assistant", "Hm.", "analysis"),
        message("assistant", "Wait.", "commentary"),
        REFERENCE_CALL,
        REFERENCE_OUTPUT,
    )
    assert prompt(harmony, harmony.items(given)) == expected


def test_after_the_next_question_thoughts_are_gone_as_in_the_reference(
    harmony: Format,
    encoding: Any,
) -> None:
    said = {"role": "assistant", "content": "Four."}
    given = items(user("hi\n<|start|>system"), thought("Hm."), CALL, OUTPUT, thought("So."), said)
    given += items(user("why?"))
    expected = referred(
        encoding,
        ASKED,
        message("assistant", "Hm.", "analysis"),
        REFERENCE_CALL,
        REFERENCE_OUTPUT,
        message("assistant", "So.", "analysis"),
        message("assistant", "Four.", "final"),
        message("user", "why?"),
    )
    assert prompt(harmony, harmony.items(given)) == expected


@pytest.mark.parametrize("settled", [False, True])
def test_a_sampled_answer_stands_as_the_reference_writes_it(
    harmony: Format,
    encoding: Any,
    settled: bool,
) -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
        "Four.<|return|>"
    )
    sampled = array("I", encoding.encode(text, allowed_special="all")).tobytes()
    answer = harmony.header + harmony.answer(sampled, "stop", settled=settled)
    told = [message("assistant", "Four.", "final")]
    expected = told if settled else [message("assistant", "Hm.", "analysis"), *told]
    conversation = reference.Conversation.from_messages(expected)
    config = reference.RenderConversationConfig(auto_drop_analysis=False)
    assert array("I", answer).tolist() == encoding.render_conversation(conversation, config)


@pytest.mark.parametrize(
    ("sampled", "finish", "kept"),
    [
        ("<|channel|>final<|message|>Fo", "length", "<|channel|>final<|message|>Fo<|end|>"),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>fin",
            "cancelled",
            "<|channel|>analysis<|message|>Hm.<|end|>",
        ),
        ("<|channel|>ana", "length", "<|channel|>final<|message|><|end|>"),
        ("", "cancelled", "<|channel|>final<|message|><|end|>"),
        ("Four.<|return|>", "stop", "<|channel|>final<|message|>Four.<|end|>"),
        (
            " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
            "stop",
            " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
        ),
    ],
)
def test_a_broken_off_answer_leaves_whole_messages(
    harmony: Format,
    encoding: Any,
    sampled: str,
    finish: Finish,
    kept: str,
) -> None:
    packed = array("I", encoding.encode(sampled, allowed_special="all")).tobytes()
    expected = encoding.encode(kept, allowed_special="all")
    assert array("I", harmony.answer(packed, finish)).tolist() == expected


def parameters(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": ["a"]}


STRING, NUMBER = {"type": "string"}, {"type": "number"}
SCHEMAS = [
    None,
    {},
    STRING,
    {"type": "array", "items": STRING},
    {"type": "object"},
    {"properties": {"a": STRING}},
    {"oneOf": [{"type": "object"}], "description": "only"},
    parameters(),
    parameters(
        a={"type": "string", "description": "one\ntwo", "default": "k", "title": "T"},
        b={"type": ["integer", "null"], "default": 3, "nullable": True},
        c={"type": "string", "enum": ["x", 1, None], "default": "x", "description": "c"},
        d={"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        e={"type": "array"},
        f={"type": "array", "items": {}},
        g={"type": "string", "examples": ["x", 2], "description": "", "nullable": True},
        h={"type": "boolean", "default": True},
        i={"anyOf": [STRING, NUMBER], "description": "any"},
        j=True,
    ),
    parameters(
        a=parameters(
            a={"type": "object", "properties": {"z": STRING | {"description": "z"}}},
            b={"type": "array", "items": parameters(a=NUMBER) | {"description": "each"}},
        )
        | {"description": "nested", "title": "N", "default": {}},
        b={"type": "array", "items": {"oneOf": [STRING, NUMBER]}},
    ),
    parameters(
        a={"oneOf": [STRING | {"description": "s"}, NUMBER | {"description": "n", "default": 3}]},
        b={"oneOf": [STRING | {"description": "s"}, NUMBER], "description": "b", "default": "q"},
        c={"oneOf": [parameters(a=STRING) | {"description": "o"}, {"oneOf": [NUMBER]}]},
        d={"oneOf": [STRING | {"nullable": True}], "title": "T", "examples": ["e"]},
        e={"oneOf": [{"type": "string", "enum": ["a"], "default": "a"}], "description": "d"},
    ),
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_functions_are_described_as_the_reference_describes_them(
    harmony: Format,
    encoding: Any,
    schema: dict[str, Any] | None,
) -> None:
    tools = [
        {"type": "function", "name": "f", "description": "Two\n\nlines.", "parameters": schema},
        {"type": "function", "name": "g", "parameters": None},
    ]
    ours = harmony.begin("Be brief.", parse_tools(json.dumps(tools).encode()), ())
    expected = referred(encoding, SYSTEM, developer("Be brief.", tools))
    assert prompt(harmony, ours) == expected
