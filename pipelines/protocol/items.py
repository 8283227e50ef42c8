"""Items of a conversation as typed values, each beside its JSON as it is kept and passed on.

The JSON of an item is what arrived, with `type` and `id` added where they were missing.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.codec import check_portable, opening, read
from turnwire.pipelines.protocol.content import content_of, content_text
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.ids import RandomBytes, new_id
from turnwire.pipelines.protocol.tools import flat_name


class Message(msgspec.Struct, frozen=True):
    """Text of one side."""

    id: str
    json: Json
    role: str
    text: str
    phase: str = ""
    """Of an answer: `commentary` or `final_answer`, where it says so."""
    unread: int = 0
    """How many of its parts are not text: `text` has a note for each."""


class Call(msgspec.Struct, frozen=True):
    """`function_call` or `custom_tool_call`."""

    id: str
    json: Json
    kind: str
    call_id: str
    name: str
    """As the model knows it: with its namespace, if it has one."""
    arguments: str


class CallOutput(msgspec.Struct, frozen=True):
    """`function_call_output` or `custom_tool_call_output`."""

    id: str
    json: Json
    kind: str
    call_id: str
    text: str
    name: str = ""
    """Of the call, where a prompt format wants it."""
    unread: int = 0


class Reasoning(msgspec.Struct, frozen=True):
    """What a model thought."""

    id: str
    json: Json
    sealed: str = ""
    """Its `encrypted_content`, not yet opened."""


class Foreign(msgspec.Struct, frozen=True):
    """An item of a kind that is not understood here; it is kept and passed on."""

    id: str
    json: Json
    kind: str
    call_id: str | None


class Compaction(msgspec.Struct, frozen=True):
    """`compaction`, or `compaction_summary`: stands for all that came before it."""

    id: str
    json: Json
    sealed: str


class Reference(msgspec.Struct, frozen=True):
    """`item_reference`: stands for an item that is in the context already."""

    id: str


class Trigger(msgspec.Struct, frozen=True):
    """`compaction_trigger`: asks for a compaction item instead of an answer."""


Item = Message | Call | CallOutput | Reasoning | Foreign | Compaction

_PREFIX = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
    "compaction_summary": "cmp",
}
_ROLES = ("user", "assistant", "system", "developer")

CallId = Annotated[str, Meta(min_length=1, max_length=64)]


class _Kind(msgspec.Struct, frozen=True):
    type: str | UnsetType | None = UNSET
    id: str | UnsetType | None = UNSET


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: Raw
    phase: Any = None


class _FunctionCall(msgspec.Struct, frozen=True):
    call_id: CallId
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    arguments: str
    namespace: str | None = None


class _CustomCall(msgspec.Struct, frozen=True):
    call_id: CallId
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    input: str
    namespace: str | None = None


class _Output(msgspec.Struct, frozen=True):
    call_id: CallId
    output: Raw


class _Typed(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class _Reasoning(msgspec.Struct, frozen=True):
    summary: list[_Typed] | None = None
    content: list[_Typed] | None = None
    encrypted_content: str | None = None


class _Compaction(msgspec.Struct, frozen=True):
    encrypted_content: Annotated[str, Meta(min_length=1)]


class _Foreign(msgspec.Struct, frozen=True):
    call_id: Any = None


_lists = msgspec.json.Decoder(list[Raw])
_kinds = msgspec.json.Decoder(_Kind)
_messages = msgspec.json.Decoder(_Message)
_function_calls = msgspec.json.Decoder(_FunctionCall)
_custom_calls = msgspec.json.Decoder(_CustomCall)
_outputs = msgspec.json.Decoder(_Output)
_reasoning = msgspec.json.Decoder(_Reasoning)
_compactions = msgspec.json.Decoder(_Compaction)
_foreign = msgspec.json.Decoder(_Foreign)


def parse_input(raw: Raw, random_bytes: RandomBytes) -> tuple[tuple[Item | Reference, ...], bool]:
    """`input`: a string, a list of items, or nothing; and whether it ends with a `Trigger`.

    Raises InvalidRequest.
    """
    start = opening(raw)
    if start == b'"':
        text = content_text(raw, "input")
        item_id = new_id("msg", random_bytes)
        json = b'{"type":"message","id":"%b","role":"user","content":[%b]}' % (
            item_id.encode(),
            b'{"type":"input_text","text":%b}' % bytes(raw),
        )
        return (Message(item_id, json, "user", text),), False
    if bytes(raw) == b"null":
        return (), False
    if start != b"[":
        raise InvalidRequest("Invalid 'input': expected string or array of items.", "input")
    given = _given(raw, random_bytes, "input")
    triggered = bool(given) and isinstance(given[-1], Trigger)
    return _items(given[:-1] if triggered else given, "input"), triggered


def parse_items(
    raw: Raw | Json, random_bytes: RandomBytes, at: str
) -> tuple[Item | Reference, ...]:
    """A list of items. Raises InvalidRequest about `at`, for example `input[2].content`."""
    return _items(_given(raw, random_bytes, at), at)


def _given(
    raw: Raw | Json, random_bytes: RandomBytes, at: str
) -> tuple[Item | Reference | Trigger, ...]:
    return tuple(
        _item(item, random_bytes, f"{at}[{index}]")
        for index, item in enumerate(read(_lists.decode, raw, at))
    )


def _items(given: tuple[Item | Reference | Trigger, ...], at: str) -> tuple[Item | Reference, ...]:
    for index, item in enumerate(given):
        if isinstance(item, Trigger):
            raise InvalidRequest(
                f"Invalid '{at}[{index}]': a compaction_trigger can only be the last item.",
                f"{at}[{index}]",
            )
    return tuple(item for item in given if not isinstance(item, Trigger))


def kept_items(items: Json) -> tuple[Item, ...]:
    """Items that went through here before, so all of them have ids."""
    found = parse_items(b"[%b]" % items, bytes, "items")
    return tuple(item for item in found if not isinstance(item, Reference))


def role_of(item: Item) -> str:
    """Who speaks in an item; empty where nobody does."""
    match item:
        case Message(role=role):
            return role
        case Call():
            return "assistant"
        case CallOutput():
            return "tool"
        case _:
            return ""


def asks(item: Item) -> bool:
    """Does a person speak in it?"""
    return isinstance(item, Message) and item.role == "user"


def call_of(item: Item) -> str | None:
    """The `call_id` that an item opens, whatever kind of call it is."""
    match item:
        case Call(call_id=call_id):
            return call_id
        case Foreign(kind=kind, call_id=call_id) if not kind.endswith("_output"):
            return call_id
        case _:
            return None


def new_text(item: Item) -> str | None:
    """The text of an item that a person or a tool wrote."""
    match item:
        case Message(role=role, text=text) if role != "assistant":
            return text
        case CallOutput(text=text):
            return text
        case _:
            return None


def characters(item: Item) -> int:
    """How long the text of an item is; what is not understood counts in full."""
    match item:
        case Message() | CallOutput():
            return len(item.text)
        case Call():
            return len(item.arguments)
        case _:
            return len(item.json)


def _item(raw: Raw, random_bytes: RandomBytes, at: str) -> Item | Reference | Trigger:
    wire = read(_kinds.decode, raw, at)
    kind = wire.type or "message"
    if kind == "item_reference":
        if not wire.id:
            raise InvalidRequest(f"Invalid '{at}.id': it is required.", f"{at}.id")
        return Reference(wire.id)
    if kind == "compaction_trigger":
        return Trigger()
    check_portable(raw, at)
    item_id = wire.id or new_id(_PREFIX.get(kind, "item"), random_bytes)
    json = _complete(bytes(raw), wire, kind, item_id)
    match kind:
        case "message":
            return _message(raw, item_id, json, at)
        case "function_call":
            call = read(_function_calls.decode, raw, at)
            return Call(item_id, json, kind, call.call_id, _known_as(call), call.arguments)
        case "custom_tool_call":
            custom = read(_custom_calls.decode, raw, at)
            return Call(item_id, json, kind, custom.call_id, _known_as(custom), custom.input)
        case "function_call_output" | "custom_tool_call_output":
            output = read(_outputs.decode, raw, at)
            text, unread = content_of(output.output, f"{at}.output")
            return CallOutput(item_id, json, kind, output.call_id, text, unread=unread)
        case "reasoning":
            thought = read(_reasoning.decode, raw, at)
            return Reasoning(item_id, json, thought.encrypted_content or "")
        case "compaction" | "compaction_summary":
            sealed = read(_compactions.decode, raw, at).encrypted_content
            return Compaction(item_id, json, sealed)
        case _:
            call_id = read(_foreign.decode, raw, at).call_id
            return Foreign(item_id, json, kind, call_id if isinstance(call_id, str) else None)


def _known_as(call: _FunctionCall | _CustomCall) -> str:
    return flat_name(call.namespace, call.name) if call.namespace else call.name


def _message(raw: Raw, item_id: str, json: Json, at: str) -> Message:
    message = read(_messages.decode, raw, at)
    if message.role not in _ROLES:
        raise InvalidRequest(
            f"Invalid '{at}.role': expected one of {', '.join(_ROLES)}.", f"{at}.role"
        )
    text, unread = content_of(message.content, f"{at}.content")
    phase = message.phase if isinstance(message.phase, str) else ""
    return Message(item_id, json, message.role, text, phase, unread)


def _complete(raw: Json, wire: _Kind, kind: str, item_id: str) -> Json:
    """The item with `type` and `id`, spliced in where they are missing."""
    if wire.type and wire.id:
        return raw
    if (wire.type or wire.type is UNSET) and (wire.id or wire.id is UNSET):
        added = b"" if wire.type else b'"type":"message",'
        if not wire.id:
            added += b'"id":"%b",' % item_id.encode()
        return b"{" + added + raw[1:]
    # Present, but null or empty: a second member of the same name would be ambiguous.
    members = msgspec.json.decode(raw)
    return msgspec.json.encode({**members, "type": kind, "id": item_id})
