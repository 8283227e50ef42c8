"""The events of a response that is over, made from its object: each item in one piece.

For clients that stream a stored response. They are told what they were told when it was made, with
fewer deltas and so with other numbers.
"""

from collections.abc import Iterator
from typing import Any, Final

import orjson

from turnwire.pipelines.background import terminal_event
from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.events import EventWriter, place, quoted

_TEXT: Final[dict[str, tuple[bytes, str]]] = {
    "output_text": (b"response.output_text", "text"),
    "refusal": (b"response.refusal", "refusal"),
}
_CALLS: Final[dict[str, tuple[bytes, str]]] = {
    "function_call": (b"response.function_call_arguments", "arguments"),
    "custom_tool_call": (b"response.custom_tool_call_input", "input"),
}


def replayed(response: Json, reasoning: bytes) -> list[Json]:
    """From `response.created` to the terminal event. The response is not running any more.

    `reasoning`: how the events of raw reasoning are called.
    """
    final = orjson.loads(response)
    writer = EventWriter(None)
    first = final | {
        "status": "in_progress",
        "output": [],
        "usage": None,
        "error": None,
        "incomplete_details": None,
        "completed_at": None,
    }
    state = b'"response":' + orjson.dumps(first)
    events = [writer.event(b"response." + kind, state) for kind in (b"created", b"in_progress")]
    for index, item in enumerate(final["output"]):
        events += _item(writer, index, item, reasoning)
    return [*events, terminal_event(final["status"], len(events), response)]


def _item(
    writer: EventWriter, index: int, item: dict[str, Any], reasoning: bytes
) -> Iterator[Json]:
    kind, item_id = item["type"], quoted(item.get("id") or "")
    call = _CALLS.get(kind)
    empty: dict[str, Any] = {"content": []} if item.get("content") else {}
    if call is not None:
        empty = {call[1]: ""}
    if "status" in item:
        empty["status"] = "in_progress"
    yield _whole(writer, b"response.output_item.added", index, item | empty)
    for number, part in enumerate(item.get("content") or ()):
        yield from _part(writer, place(item_id, index, number), part, reasoning)
    if call is not None:
        name = b',"name":' + quoted(item["name"]) if kind == "function_call" else b""
        yield from _text(writer, place(item_id, index), call, item[call[1]], name)
    yield _whole(writer, b"response.output_item.done", index, item)


def _part(writer: EventWriter, at: Json, part: dict[str, Any], reasoning: bytes) -> Iterator[Json]:
    known = (reasoning, "text") if part["type"] == "reasoning_text" else _TEXT.get(part["type"])
    empty: dict[str, Any] = {}
    if known is not None:
        empty = {known[1]: ""} | ({"logprobs": []} if "logprobs" in part else {})
    yield writer.event(
        b"response.content_part.added", b'%b,"part":%b' % (at, orjson.dumps(part | empty))
    )
    if known is not None:
        more = b""
        if part["type"] == "output_text":
            more = b',"logprobs":' + orjson.dumps(part.get("logprobs", []))
        yield from _text(writer, at + more, known, part[known[1]])
    yield writer.event(b"response.content_part.done", b'%b,"part":%b' % (at, orjson.dumps(part)))


def _text(
    writer: EventWriter, at: Json, kind: tuple[bytes, str], text: str, done: Json = b""
) -> Iterator[Json]:
    name, member = kind
    if text:
        yield writer.event(name + b".delta", b'%b,"delta":%b' % (at, quoted(text)))
    yield writer.event(name + b".done", b'%b%b,"%b":%b' % (at, done, member.encode(), quoted(text)))


def _whole(writer: EventWriter, kind: bytes, index: int, item: dict[str, Any]) -> Json:
    return writer.event(kind, b'"output_index":%d,"item":%b' % (index, orjson.dumps(item)))
