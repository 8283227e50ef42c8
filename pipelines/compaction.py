"""When and how a conversation is compacted: what is summed up, what is kept, what goes on. Pure.

The summary is written by the model, which is asked for it behind the conversation itself, so that
its prompt is the one the worker holds already. What nobody has answered yet is kept as it was.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from turnwire.pipelines.lineage import Checkpoint, Context, context_of, joined
from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.codec import NULL, opening, read
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.items import (
    Call,
    CallOutput,
    Item,
    Message,
    Reasoning,
    asks,
    kept_items,
)
from turnwire.pipelines.protocol.requests import PLAIN_TEXT, Request
from turnwire.pipelines.window import is_summary

SUMMARIZE = (
    "Summarize the conversation so far, so that it can be continued from your summary alone: what "
    "was asked for, what was found out and decided, facts, names and values that matter, and what "
    "is still to be done. Answer with the summary only."
)
_SUMMARIZE_JSON = b'{"type":"message","id":"msg_summarize","role":"user","content":[%b]}' % (
    b'{"type":"input_text","text":%b}' % msgspec.json.encode(SUMMARIZE)
)
REQUEST = Message("msg_summarize", _SUMMARIZE_JSON, "user", SUMMARIZE)
"""What the model is asked; part of no history."""

Stage = Literal["only", "first", "count"]
"""The response is one compaction item; or begins with one; or does if its prompt, which only the
engine can count, is so long."""


class Plan(msgspec.Struct, frozen=True):
    """How a turn compacts its conversation."""

    stage: Stage
    folded: tuple[Item, ...]
    """New items that are summed up, with all that came before the turn."""
    kept: tuple[Item, ...]


def plan_of(
    request: Request, turn: Checkpoint, items: tuple[Item, ...], tokens: int
) -> Plan | None:
    """None: the turn goes on as it is. `items`: its own; `tokens`: of its prompt, 0 for unknown.

    Raises InvalidRequest when there is nothing that `compaction_trigger` could be about.
    """
    if request.compacts:
        before = _before(turn)
        if not (before or items):
            raise InvalidRequest("There is no conversation here that could be compacted.", "input")
        return Plan("only", items, _open_calls((*before, *items)))
    least = request.compact_threshold
    # A token has at least a byte, so what has fewer bytes need not be counted.
    if least is None or not request.generate or (tokens or turn.context.json_bytes) < least:
        return None
    at = _unanswered(items)
    past, tail = (*_before(turn), *items[:at]), items[at:]
    kept = (*_open_calls(past), *tail)
    if not any(map(asks, tail)):
        question = [item for item in past if asks(item) and not is_summary(item)][-1:]
        kept = (*question, *kept)
    if all(item in kept or is_summary(item) for item in past):
        return None
    return Plan("first" if tokens else "count", items[:at], kept)


def asking(turn: Checkpoint, plan: Plan) -> tuple[Checkpoint, tuple[Item, ...]]:
    """The turn as it asks for the summary, and its own items."""
    items = (*plan.folded, REQUEST)
    json = _run(items)
    asked = replace(
        turn,
        context=context_of(turn.parent).plus(items, json),
        input=json,
        asked=True,
        rendered={},
        mark=None,
    )
    return asked, items


def compacted(turn: Checkpoint, items: tuple[Item, ...], *, answers: bool) -> Checkpoint:
    """The turn as the beginning of a conversation. `items`: the window it begins with."""
    json = _run(items)
    return replace(
        turn,
        parent=None,
        generated=answers,
        context=Context().plus(items, json),
        input=json,
        asked=any(map(asks, items)),
        rendered={},
        mark=None,
    )


def summary_request(request: Request, plan: Plan) -> Request:
    """What is asked of the engine for a summary: plain text, as long as the model usually writes.

    `max_output_tokens` is the client's bound for what it asked for.
    """
    return msgspec.structs.replace(
        request,
        tool_choice=b'"none"',
        choice=b'"none"',
        text_format=PLAIN_TEXT,
        include=(),
        max_output_tokens=request.max_output_tokens if plan.stage == "only" else None,
    )


def kept_run(plan: Plan) -> Json:
    return _run(plan.kept)


def _run(items: Sequence[Item]) -> Json:
    return joined(*(item.json for item in items))


def _before(turn: Checkpoint) -> tuple[Item, ...]:
    return tuple(
        item
        for before in turn.ancestors()
        for run in (before.input, before.output)
        if run
        for item in kept_items(run)
    )


def _unanswered(items: Sequence[Item]) -> int:
    """Where what the model has not seen yet begins."""
    for at in range(len(items), 0, -1):
        item = items[at - 1]
        if isinstance(item, Call | Reasoning) or getattr(item, "role", "") == "assistant":
            return at
    return 0


def _open_calls(items: Sequence[Item]) -> tuple[Item, ...]:
    """Calls whose output is still to come."""
    over = {item.call_id for item in items if isinstance(item, CallOutput)}
    return tuple(item for item in items if isinstance(item, Call) and item.call_id not in over)


class _Body(msgspec.Struct, frozen=True):
    model: Raw = NULL
    input: Raw = NULL
    previous_response_id: Raw = NULL
    instructions: Raw = NULL
    tools: Raw = NULL
    prompt_cache_key: Raw = NULL
    service_tier: Raw = NULL
    metadata: Raw = NULL


_bodies = msgspec.json.Decoder(_Body)
_TRIGGER = b'{"type":"compaction_trigger"}'


def compact_frame(body: Json) -> Json:
    """The create body that does what a body of `/v1/responses/compact` asks for.

    Raises InvalidRequest for an `input` that is neither text nor a list.
    """
    given = read(_bodies.decode, body)
    members = [
        b'"%b":%b' % (name.encode(), value)
        for name in given.__struct_fields__
        if name != "input" and bytes(value := getattr(given, name)) != b"null"
    ]
    return b'{%b,"store":false}' % b",".join([*members, b'"input":[%b]' % _triggered(given.input)])


def _triggered(raw: Raw) -> Json:
    start = opening(raw)
    if start == b'"':
        return b'{"role":"user","content":%b},%b' % (bytes(raw), _TRIGGER)
    if bytes(raw) == b"null":
        return _TRIGGER
    if start != b"[":
        raise InvalidRequest("Invalid 'input': expected string or array of items.", "input")
    return joined(bytes(raw).strip()[1:-1].strip(), _TRIGGER)


class _Response(msgspec.Struct, frozen=True):
    id: str
    created_at: int
    output: Raw
    usage: Raw


_responses = msgspec.json.Decoder(_Response)


def compaction_object(response: Json) -> Json:
    """The answer of `/v1/responses/compact`, of the response that did the work."""
    made = _responses.decode(response)
    return b'{"id":%b,"object":"response.compaction","created_at":%d,"output":%b,"usage":%b}' % (
        msgspec.json.encode(made.id),
        made.created_at,
        bytes(made.output),
        bytes(made.usage),
    )
