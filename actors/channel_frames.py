"""The frame codec of the data plane: bytes to frames and messages, and back. No I/O, no clock.

A frame is a header (payload length, stream id, kind) and a payload. Calls and streams are numbered
by the side that connects; stream id 0 belongs to the connection itself.
"""

import struct
from collections.abc import Iterator
from functools import reduce
from operator import or_

import msgspec

from turnwire.pipelines import messages
from turnwire.pipelines.messages import Failure, Message
from turnwire.pipelines.protocol.errors import BY_NAME, ApiError, Internal

HEADER = struct.Struct("<IIB")
MAX_STREAM_ID = 2**32 - 1
_BATCH = struct.Struct(">BI")
_ARRAY32 = 0xDD
_CREDIT = struct.Struct("<I")


class Kind:
    """What a frame is. Plain integers: an enum's members cost several times the look-up."""

    HELLO = 1
    CALL = 2
    REPLY = 3
    FAILURE = 4
    OPEN = 5
    ITEMS = 6
    END = 7
    CANCEL = 8
    CREDIT = 9
    PING = 10
    PONG = 11


_KINDS = range(Kind.HELLO, Kind.PONG + 1)

Payload = bytes | memoryview
Frame = tuple[int, int, memoryview]
"""Kind, stream id, payload. The payload is valid as long as it is held."""


class MalformedFrame(Exception):
    """The bytes are no frame of ours, or one over the limit: the connection cannot go on."""


class FrameParser:
    """Cuts a byte stream into frames, however it arrives; copies only a frame split over reads."""

    def __init__(self, max_payload_bytes: int) -> None:
        self.max_payload_bytes = max_payload_bytes
        self._held = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._held)

    def feed(self, data: Payload) -> Iterator[Frame]:
        """The frames that `data` completes. Raises MalformedFrame; the parser is then spent."""
        view = memoryview(data)
        offset = 0
        if self._held:
            offset = self._hold(view)
            if not self._complete():
                return
            held, self._held = self._held, bytearray()
            _, stream_id, kind = HEADER.unpack_from(held)
            yield kind, stream_id, memoryview(held)[HEADER.size :]
        end = len(view)
        while end - offset >= HEADER.size:
            length, stream_id, kind = self._header(view, offset)
            start = offset + HEADER.size
            if end - start < length:
                break
            offset = start + length
            yield kind, stream_id, view[start:offset]
        if offset < end:
            self._held += view[offset:]

    def _hold(self, view: memoryview) -> int:
        """Take what the frame under way lacks; the number of bytes taken."""
        taken = 0
        if (lacking := HEADER.size - len(self._held)) > 0:
            self._held += view[:lacking]
            taken = min(lacking, len(view))
        if len(self._held) >= HEADER.size:
            lacking = HEADER.size + self._header(self._held, 0)[0] - len(self._held)
            self._held += view[taken : taken + lacking]
            taken = min(taken + lacking, len(view))
        return taken

    def _complete(self) -> bool:
        if len(self._held) < HEADER.size:
            return False
        length: int = HEADER.unpack_from(self._held)[0]
        return len(self._held) == HEADER.size + length

    def _header(self, buffer: memoryview | bytearray, offset: int) -> tuple[int, int, int]:
        length, stream_id, kind = HEADER.unpack_from(buffer, offset)
        if kind not in _KINDS:
            raise MalformedFrame(f"unknown frame kind {kind}")
        if length > self.max_payload_bytes:
            raise MalformedFrame(f"frame of {length} bytes, allowed are {self.max_payload_bytes}")
        return length, stream_id, kind


class Outbox:
    """What a connection will write next, in order. Items of one stream share a frame."""

    def __init__(self, max_payload_bytes: int) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._frames: list[bytes] = []
        self._items: dict[int, list[bytes]] = {}
        self._items_bytes: dict[int, int] = {}
        self.size_bytes = 0

    def add(self, kind: int, stream_id: int, payload: bytes = b"") -> None:
        """A frame, behind the items its stream already has here."""
        if stream_id in self._items:
            self._seal(stream_id)
        size = len(payload)
        self._frames.append(HEADER.pack(size, stream_id, kind))
        if size:
            self._frames.append(payload)
        self.size_bytes += HEADER.size + size

    def add_item(self, stream_id: int, payload: bytes) -> None:
        """One encoded message of a stream. Its caller has checked `item_fits`."""
        size = len(payload)
        waiting = self._items_bytes.get(stream_id, 0)
        if waiting and _BATCH.size + waiting + size > self._max_payload_bytes:
            self._seal(stream_id)
            waiting = 0
        self._items.setdefault(stream_id, []).append(payload)
        self._items_bytes[stream_id] = waiting + size
        self.size_bytes += size

    def drop_items(self, stream_id: int) -> None:
        """Forget the items of a stream nobody reads any more."""
        if self._items.pop(stream_id, None) is not None:
            self.size_bytes -= self._items_bytes.pop(stream_id)

    def take(self) -> list[bytes]:
        """All of it, as the buffers to write; the outbox is empty afterwards."""
        for stream_id in tuple(self._items):
            self._seal(stream_id)
        frames, self._frames = self._frames, []
        self.size_bytes = 0
        return frames

    def _seal(self, stream_id: int) -> None:
        items = self._items.pop(stream_id)
        size = _BATCH.size + self._items_bytes.pop(stream_id)
        self._frames.append(HEADER.pack(size, stream_id, Kind.ITEMS))
        self._frames.append(_BATCH.pack(_ARRAY32, len(items)))
        self._frames += items
        self.size_bytes += HEADER.size + _BATCH.size


def item_fits(payload: bytes, max_payload_bytes: int) -> bool:
    """Does one stream message fit a frame?"""
    return _BATCH.size + len(payload) <= max_payload_bytes


MESSAGE_TYPES: tuple[type[Message], ...] = tuple(
    found
    for found in vars(messages).values()
    if isinstance(found, type) and issubclass(found, Message) and found is not Message
)
_UNION = reduce(or_, MESSAGE_TYPES)
_ENCODER = msgspec.msgpack.Encoder()
_ONE: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(_UNION)
_MANY: msgspec.msgpack.Decoder[list[Message]] = msgspec.msgpack.Decoder(
    list[_UNION]  # type: ignore[valid-type]  # built from the classes themselves
)

encode = _ENCODER.encode
"""A message as the payload of a frame."""


class Undecodable(Exception):
    """The payload is no message this side knows."""


def decode(payload: Payload) -> Message:
    """The message of a `CALL`, `OPEN`, `REPLY` or `FAILURE`. Raises Undecodable."""
    try:
        return _ONE.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Undecodable("the payload is no known message") from error


def decode_items(payload: Payload) -> list[Message]:
    """The messages of an `ITEMS` frame. Raises Undecodable."""
    try:
        return _MANY.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Undecodable("the payload is no list of known messages") from error


def encode_credit(count: int) -> bytes:
    """The payload of a `CREDIT`: so many more messages may be sent."""
    return _CREDIT.pack(count)


def decode_credit(payload: Payload) -> int:
    """Raises MalformedFrame."""
    if len(payload) != _CREDIT.size:
        raise MalformedFrame("credit of a wrong size")
    count: int = _CREDIT.unpack(payload)[0]
    return count


def encode_error(error: ApiError) -> bytes:
    """An error as the payload of a `FAILURE`, under the nearest name the other side knows."""
    name = next(base.__name__ for base in type(error).__mro__ if base.__name__ in BY_NAME)
    return encode(Failure(name, error.message, error.param))


def decode_error(payload: Payload) -> ApiError:
    """The error the other side raised, of the same class. Raises Undecodable."""
    failure = decode(payload)
    if not isinstance(failure, Failure):
        raise Undecodable("the payload is no failure")
    return BY_NAME.get(failure.name, Internal)(failure.message, failure.param)
