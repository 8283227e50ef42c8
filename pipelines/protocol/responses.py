"""The response object as JSON bytes: what changes is built, what repeats a request is spliced."""

from collections.abc import Mapping
from typing import Literal

import msgspec
import orjson

from turnwire.pipelines.messages import Counts, Json, Prepared
from turnwire.pipelines.protocol.errors import ApiError
from turnwire.pipelines.protocol.open_responses import narrowed_members, narrowed_tools

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed"]

TRIMMED = b'"instructions":null,"tools":[]'


class Echo(msgspec.Struct, frozen=True):
    """Members of the response object that repeat the request; they rarely change between turns."""

    key: bytes = b""
    members: Json = b""
    tools: Json = b""
    """`instructions` and `tools`, the bulk of it."""
    namespaced: Mapping[str, tuple[str, str]] = msgspec.field(default_factory=dict)
    """Namespace and name of functions that the model is shown under another name."""
    custom: tuple[str, ...] = ()
    """Names of custom tools."""


def echo_of(prepared: Prepared, known: Echo, narrow: bool = False) -> Echo:
    """The echo of a prepared turn, whose `Prepare` carried the key of `known`.

    `narrow`: only what Open Responses has a schema for.
    """
    if prepared.echo is None:
        return Echo(prepared.echo_key, known.members, known.tools, known.namespaced, known.custom)
    members, tools = prepared.echo, prepared.echo_tools or b""
    if narrow:
        members, tools = narrowed_members(members), narrowed_tools(tools)
    return Echo(prepared.echo_key, members, tools, prepared.namespaced, prepared.custom)


def usage_object(counts: Counts) -> Json:
    """What was not cached was evaluated and kept, so it counts as written to the cache."""
    return (
        b'{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":%d},'
        b'"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}'
    ) % (
        counts.input_tokens,
        counts.cached_tokens,
        max(0, counts.input_tokens - counts.cached_tokens),
        counts.output_tokens,
        counts.reasoning_tokens,
        counts.input_tokens + counts.output_tokens,
    )


def failure_object(error: ApiError) -> Json:
    """The `error` of a failed response."""
    return orjson.dumps({"code": error.code, "message": error.message})


class ResponseObject:
    """Everything about one response that is known when it is created."""

    def __init__(self, response_id: str, created_at: int, echo: Echo, turn_members: Json) -> None:
        self._head = b'{"id":"%b","object":"response","created_at":%d' % (
            response_id.encode(),
            created_at,
        )
        self._tools = echo.tools
        self._echo = b"".join(b"," + part for part in (echo.members, turn_members) if part)

    def render(
        self,
        status: Status,
        *,
        output: Json = b"[]",
        usage: Json = b"null",
        error: Json = b"null",
        incomplete_details: Json = b"null",
        completed_at: int | None = None,
        trimmed: bool = False,
    ) -> Json:
        """The whole object. `trimmed`: without the request's tools and instructions."""
        tools = TRIMMED if trimmed and self._tools else self._tools
        return b"".join(
            (
                self._head,
                b',"completed_at":',
                b"null" if completed_at is None else b"%d" % completed_at,
                b',"status":"',
                status.encode(),
                b'","error":',
                error,
                b',"incomplete_details":',
                incomplete_details,
                b',"output":',
                output,
                b',"usage":',
                usage,
                self._echo,
                b"," if tools else b"",
                tools,
                b"}",
            )
        )

    def with_metadata(self, name: str, value: str) -> None:
        """Add one pair to the `metadata` that the object repeats from the request."""
        members = orjson.loads(b"{" + self._echo[1:] + b"}")
        members["metadata"] = {**(members.get("metadata") or {}), name: value}
        self._echo = b"," + orjson.dumps(members)[1:-1]
