"""From the bytes of a frame to fields. The bulk stays raw bytes, so a body is decoded once.

Whatever is wrong with the JSON becomes an `InvalidRequest` that names the field at fault and never
quotes its value.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar, get_args

import msgspec
import orjson
from msgspec import Meta, Raw

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.errors import InvalidRequest, InvalidStreamId

T = TypeVar("T")

NULL = Raw(b"null")

_DEEPER = b"[" * 8, b"]" * 8
"""What is kept becomes part of events and of other documents."""
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")
_PLACE = re.compile(r" - at (?:`key` in )?`(\$[^`]*)`\Z")
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_WORDS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


class Envelope(msgspec.Struct, frozen=True):
    """What the gateway must know of a frame; everything else in it is skipped, not read."""

    type: str = ""
    stream_id: str | None = None
    model: str | None = None
    generate: bool | None = None
    background: bool | None = None


Positive = Annotated[int, Meta(ge=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


class CacheOptions(msgspec.Struct, frozen=True):
    """`prompt_cache_options`, as far as it matters here."""

    prewarm: bool | None = None


class ContextRule(msgspec.Struct, frozen=True):
    """One entry of `context_management`."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Meta(ge=1000)] | None = None


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Summary = Literal["auto", "concise", "detailed"]
ReasoningContext = Literal["auto", "current_turn", "all_turns"]
Tier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Truncation = Literal["auto", "disabled"]
Verbosity = Literal["low", "medium", "high"]
FormatKind = Literal["text", "json_object", "json_schema"]
ChoiceMode = Literal["auto", "required"]

_ALLOWED: dict[str, tuple[str, ...]] = {
    "context_management.type": ("compaction",),
    "reasoning.context": get_args(ReasoningContext),
    "reasoning.effort": get_args(Effort),
    "reasoning.generate_summary": get_args(Summary),
    "reasoning.summary": get_args(Summary),
    "service_tier": get_args(Tier),
    "text.format.type": get_args(FormatKind),
    "text.verbosity": get_args(Verbosity),
    "tool_choice.mode": get_args(ChoiceMode),
    "tools.format.syntax": ("lark", "regex"),
    "tools.format.type": ("text", "grammar"),
    "truncation": get_args(Truncation),
}
"""What a refusal says is allowed: the decoder does not say it."""


class ReasoningOptions(msgspec.Struct, frozen=True):
    """`reasoning` of a request."""

    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: ReasoningContext | None = None
    mode: str | None = None


class Body(msgspec.Struct, frozen=True):
    """A create body. A field that is null is a field left out."""

    model: str | None = None
    previous_response_id: str | None = None
    input: Raw = NULL
    instructions: Raw = NULL
    tools: Raw = NULL
    tool_choice: Raw = NULL
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    generate: bool | None = None
    stream: Raw = NULL
    background: bool | None = None
    include: list[str] | None = None
    reasoning: ReasoningOptions | None = None
    text: Raw = NULL
    max_output_tokens: Positive | None = None
    max_tool_calls: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """Not OpenAI's: it makes an answer repeatable where the engine can."""
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    truncation: Truncation | None = None
    metadata: Metadata | None = None
    service_tier: Tier | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | None = None
    safety_identifier: str | None = None
    user: str | None = None
    conversation: Raw = NULL
    prompt: Raw = NULL
    context_management: list[ContextRule] | None = None


class _Parent(msgspec.Struct, frozen=True):
    previous_response_id: Raw = NULL


_envelopes = msgspec.json.Decoder(Envelope)
_bodies = msgspec.json.Decoder(Body)
_parents = msgspec.json.Decoder(_Parent)


def decode_envelope(frame: bytes | str) -> Envelope:
    """The envelope of a client event or of an HTTP body (whose `type` is empty).

    Raises InvalidRequest, and InvalidStreamId for a lane name that is not allowed.
    """
    try:
        envelope = read(_envelopes.decode, frame)
    except InvalidRequest as error:
        if error.param == "stream_id":
            raise InvalidStreamId(error.message, "stream_id") from None
        raise
    if envelope.stream_id is not None and not _STREAM_ID.match(envelope.stream_id):
        raise InvalidStreamId(
            "'stream_id' must be 1 to 256 characters of A-Z, a-z, 0-9, '_', '.' and '-'.",
            "stream_id",
        )
    return envelope


def decode_body(frame: bytes) -> Body:
    """The whole create body. Raises InvalidRequest."""
    return read_document(_bodies.decode, frame)


def read_document(decode: Callable[..., T], frame: bytes) -> T:
    """As `read`, for what has raw members and came from a client as it is."""
    # Raw members are later spliced into text frames, so all of it must be UTF-8.
    if not frame.isascii():
        try:
            frame.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("The request is not valid UTF-8.") from None
    return read(decode, frame)


def parent_named(frame: bytes) -> str | None:
    """The `previous_response_id` of a body that may be wrong in any other way."""
    try:
        return msgspec.json.decode(_parents.decode(frame).previous_response_id, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read(decode: Callable[..., T], data: Raw | bytes | str, at: str = "") -> T:
    """`decode(data)`; its complaint becomes an InvalidRequest about the field `at` and below."""
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), at) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The request is not valid JSON: {error}.", at or None) from None
    except UnicodeDecodeError:
        raise InvalidRequest("The request is not valid UTF-8.", at or None) from None
    except RecursionError:
        raise InvalidRequest("The request is nested too deeply.", at or None) from None


def check_portable(raw: Raw | Json, at: str) -> None:
    """Refuse what would be read here and nowhere else: it is passed on as it is.

    Legal JSON may have numbers beyond what fits a double, and be nested without a limit.
    """
    try:
        orjson.loads(_DEEPER[0] + bytes(raw) + _DEEPER[1])
    except orjson.JSONDecodeError:
        raise InvalidRequest(
            f"Invalid '{at}': it is nested too deeply, or a number in it is too large.", at
        ) from None


def opening(raw: Raw) -> bytes:
    """The first byte of a value: it tells strings, lists and objects apart."""
    return bytes(memoryview(raw)[:1])


def fingerprint(data: bytes) -> bytes:
    """A 128-bit hash."""
    return hashlib.blake2b(data, digest_size=16).digest()


def _refusal(complaint: str, at: str) -> InvalidRequest:
    place = _PLACE.search(complaint)
    reason = complaint[: place.start()] if place else complaint
    path = place.group(1)[1:].split("[...]")[0] if place else ""
    if missing := _MISSING.match(reason):
        path += f".{missing.group(1)}"
        reason = "it is required"
    elif reason.startswith("Invalid enum value"):
        reason = _choice(at + path)
    param = (at + path).lstrip(".") or None
    if param is None:
        return InvalidRequest("The request must be a JSON object.")
    return InvalidRequest(f"Invalid '{param}': {_plain(reason)}.", param)


def _choice(path: str) -> str:
    allowed = _ALLOWED[re.sub(r"\[\d+\]", "", path).lstrip(".")]
    return f"expected one of {', '.join(allowed)}"


def _plain(reason: str) -> str:
    words = re.sub(r"`([^`]*)`", lambda found: _spoken(found.group(1)), reason)
    return words[:1].lower() + words[1:]


def _spoken(kinds: str) -> str:
    return " or ".join(_WORDS.get(kind, kind) for kind in kinds.split(" | "))
