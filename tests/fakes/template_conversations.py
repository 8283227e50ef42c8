"""Conversations in the form that chat templates take, and the same as items of the API."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

Message = dict[str, Any]


@dataclass(frozen=True)
class Conversation:
    """`tools`: as functions with name, description and parameters."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    thinks: bool = True
    """False: the model is told not to think."""


WEATHER = {
    "name": "get_weather",
    "description": "Says how the weather is, \u00e0 Paris par exemple \u2600.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
STOP = {"name": "stop", "description": "Ends.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [WEATHER, STOP]


def _calls(*calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{at}", "name": name, "arguments": arguments}
        for at, (name, arguments) in enumerate(calls)
    ]


SYSTEM: Message = {"role": "system", "content": "Be brief."}
ASKED: Message = {"role": "user", "content": "How is the weather?"}
ANSWERED: Message = {"role": "assistant", "content": "Fine."}
AGAIN: Message = {"role": "user", "content": "And tomorrow?"}
CALLED: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": _calls(("get_weather", {"city": "S\u00e3o \U0001f324", "days": 2})),
}
OUTPUT: Message = {"role": "tool", "content": '{"sky": "clear"}', "id": "call_0"}
BOTH: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": _calls(("get_weather", {"city": "Rome"}), ("stop", {})),
}
OTHER_OUTPUT: Message = {"role": "tool", "content": "done\nat last", "id": "call_1"}
THOUGHT = {"reasoning_content": "\nThe sky.\nIs it blue?\n"}

CONVERSATIONS = {
    "a question": Conversation([ASKED]),
    "a system message": Conversation([SYSTEM, ASKED, ANSWERED, AGAIN]),
    "several system messages": Conversation(
        [SYSTEM, ASKED, ANSWERED, {"role": "developer", "content": "Be kind."}, AGAIN]
    ),
    "tools alone": Conversation([ASKED], TOOLS),
    "tools and a system message": Conversation([SYSTEM, ASKED], TOOLS),
    "a call": Conversation([SYSTEM, ASKED, CALLED, OUTPUT], TOOLS),
    "words before a call": Conversation(
        [SYSTEM, ASKED, CALLED | {"content": "Wait."}, OUTPUT], TOOLS
    ),
    "calls in parallel": Conversation([ASKED, BOTH, OUTPUT, OTHER_OUTPUT], TOOLS),
    "a call answered": Conversation([ASKED, CALLED, OUTPUT, ANSWERED, AGAIN], TOOLS),
    "a call after a call": Conversation([ASKED, CALLED, OUTPUT, BOTH, OUTPUT, OTHER_OUTPUT], TOOLS),
    "a thought in a tool loop": Conversation([SYSTEM, ASKED, CALLED | THOUGHT, OUTPUT], TOOLS),
    "words after a thought": Conversation(
        [ASKED, CALLED | THOUGHT | {"content": "\nWait."}, OUTPUT], TOOLS
    ),
    "a thought of before": Conversation([ASKED, ANSWERED | THOUGHT, AGAIN]),
    "thoughts of a loop before": Conversation(
        [ASKED, CALLED | THOUGHT, OUTPUT, ANSWERED | THOUGHT, AGAIN], TOOLS
    ),
    "white space": Conversation(
        [
            {"role": "system", "content": "  Be brief.\n"},
            {"role": "user", "content": " hi\n\n"},
            {"role": "assistant", "content": "\n Hello. "},
            {"role": "user", "content": "\tbye \U0001f44b\U0001f3fd"},
        ]
    ),
    "no thinking": Conversation([SYSTEM, ASKED, ANSWERED, AGAIN], thinks=False),
}


def api_items(messages: list[Message]) -> list[dict[str, Any]]:
    """As a client of the API sends them."""
    return [item | {"id": f"item_{at}"} for at, item in enumerate(_items(messages))]


def _items(messages: list[Message]) -> Iterator[dict[str, Any]]:
    for message in messages:
        role, content = message["role"], message["content"]
        if thought := message.get("reasoning_content"):
            part = {"type": "reasoning_text", "text": thought}
            yield {"type": "reasoning", "summary": [], "content": [part]}
        if role == "tool":
            yield {"type": "function_call_output", "call_id": message["id"], "output": content}
        elif content or not message.get("tool_calls"):
            yield {"type": "message", "role": role, "content": content}
        for call in message.get("tool_calls", ()):
            yield {
                "type": "function_call",
                "call_id": call["id"],
                "name": call["name"],
                "arguments": _json(call["arguments"]),
            }


def _json(value: object) -> str:
    """As compact as many clients write it."""
    return msgspec.json.encode(value).decode()
