"""What all messages have in common, and the names of what travels in them."""

from typing import Literal

import msgspec

TokenIds = bytes
"""Little-endian uint32 token ids, as `array("I").tobytes()`."""

Json = bytes
"""A JSON document, kept as the bytes it arrived or was built as."""

Form = Literal["tokens", "items"]
Finish = Literal["stop", "length", "tool_calls", "cancelled", "content_filter"]
Continuation = Literal["new", "incremental", "full", "full_cached", "full_after_error"]
"""How a turn came: as a new conversation, with a parent and what is new, or with all of it again:
to a connection that does not know it, though its parent was there, or after an error."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all that travels on a channel."""


class Done(Message, frozen=True):
    """The command was carried out."""


class Failure(Message, frozen=True):
    """A typed refusal: `name` is a class of `protocol.errors`, rebuilt at the caller."""

    name: str
    message: str
    param: str | None = None
