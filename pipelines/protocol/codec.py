"""From the bytes of a frame to fields. The bulk stays raw bytes, so a body is decoded once.

Whatever is wrong with the JSON becomes an `InvalidRequest` that names the field at fault and never
quotes its value.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw

from turnwire.pipelines.protocol.errors import InvalidRequest, InvalidStreamId

T = TypeVar("T")

NULL = Raw(b"null")

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

    type: str
    compact_threshold: Annotated[int, Meta(ge=1000)] | None = None


class Reasoning(msgspec.Struct, frozen=True):
    """`reasoning`, as it is repeated in the response."""

    effort: str | None = None
    summary: str | None = None


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
    reasoning: Reasoning | None = None
    text: Raw = NULL
    max_output_tokens: Positive | None = None
    max_tool_calls: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
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
    # Raw members are later spliced into text frames, so all of it must be UTF-8.
    if not frame.isascii():
        try:
            frame.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("The request is not valid UTF-8.") from None
    return read(_bodies.decode, frame)


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
        reason = "this value is not one of those allowed"
    param = (at + path).lstrip(".") or None
    if param is None:
        return InvalidRequest("The request must be a JSON object.")
    return InvalidRequest(f"Invalid '{param}': {_plain(reason)}.", param)


def _plain(reason: str) -> str:
    words = re.sub(r"`([^`]*)`", lambda found: _spoken(found.group(1)), reason)
    return words[:1].lower() + words[1:]


def _spoken(kinds: str) -> str:
    return " or ".join(_WORDS.get(kind, kind) for kind in kinds.split(" | "))
