"""The members of a response object that repeat its request, spliced from bytes already there."""

from typing import NamedTuple

import msgspec

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.codec import fingerprint
from turnwire.pipelines.protocol.requests import Request


class Echo(NamedTuple):
    """Two runs of members, without braces."""

    key: bytes
    """Names `members` and what `tools_echo` makes together."""
    members: Json
    turn: Json
    """What differs from turn to turn; not covered by `key`."""


class Echoes:
    """Of the requests of one connection; what repeats is made once."""

    def __init__(self) -> None:
        self._last: tuple[Request, bytes, Json] | None = None

    def of(self, request: Request) -> Echo:
        """Every member that Open Responses or OpenAI's types require."""
        first = request.repeats
        if first is not None and self._last is not None and self._last[0] is first:
            return Echo(self._last[1], self._last[2], _turn(request))
        members = _members(request)
        key = fingerprint(members + request.tools.key + request.instructions.key)
        if first is not None:
            self._last = first, key, members
        return Echo(key, members, _turn(request))


def _turn(request: Request) -> Json:
    turn = b'"previous_response_id":%b,"metadata":%b' % (
        _json(request.previous_response_id),
        _json(request.metadata),
    )
    if request.conversation_id is not None:
        turn += b',"conversation":{"id":%b}' % _json(request.conversation_id)
    return turn


def tools_echo(request: Request) -> Json:
    """`instructions` and `tools`, the bulk of it."""
    return b'"instructions":%b,"tools":%b' % (request.instructions.json, request.tools.echo)


def _members(request: Request) -> Json:
    sampling = request.sampling
    return (
        b'"background":%b,"max_output_tokens":%b,"max_tool_calls":%b,"model":%b,'
        b'"parallel_tool_calls":%b,"prompt_cache_key":%b,"safety_identifier":%b,"reasoning":%b,'
        b'"service_tier":"default","store":%b,"temperature":%b,"top_p":%b,"presence_penalty":%b,'
        b'"frequency_penalty":%b,"top_logprobs":%d,"text":%b,"tool_choice":%b,"truncation":"%b",'
        b'"user":%b'
    ) % (
        _json(request.background),
        _json(request.max_output_tokens),
        _json(request.max_tool_calls),
        _json(request.model),
        _json(request.parallel_tool_calls),
        _json(request.prompt_cache_key),
        _json(request.safety_identifier),
        _json(request.reasoning),
        _json(request.store),
        _json(1.0 if sampling.temperature is None else sampling.temperature),
        _json(1.0 if sampling.top_p is None else sampling.top_p),
        _json(sampling.presence_penalty),
        _json(sampling.frequency_penalty),
        request.top_logprobs,
        request.text,
        request.tool_choice,
        request.truncation.encode(),
        _json(request.user),
    )


_json = msgspec.json.encode
