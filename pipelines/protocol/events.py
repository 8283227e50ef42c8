"""Server events as ready JSON bytes: where a number is given, and the members each kind carries.

Strings from outside go through orjson, everything else is spliced as it is. `type` always comes
first, so that a transport can read it without decoding.
"""

import orjson

from turnwire.pipelines.messages import Json

_TYPE_AT = len(b'{"type":"')


def event_type(event: Json) -> bytes:
    """The `type` of an event made here."""
    return event[_TYPE_AT : event.index(b'"', _TYPE_AT)]


def quoted(text: str) -> Json:
    """`text` as a JSON string; half a surrogate pair, which UTF-8 cannot carry, becomes `?`."""
    try:
        return orjson.dumps(text)
    except orjson.JSONEncodeError:
        return orjson.dumps(text.encode("utf-8", "replace").decode())


class EventWriter:
    """Numbers the events of one response from 0 and marks them with its lane."""

    def __init__(self, lane: str | None) -> None:
        self._tail = b"}" if lane is None else b',"stream_id":%b}' % quoted(lane)
        self._next = 0

    def event(self, kind: bytes, members: Json) -> Json:
        """`members` without braces, at least one."""
        number = self._next
        self._next = number + 1
        return b'{"type":"%b","sequence_number":%d,%b%b' % (kind, number, members, self._tail)


def place(item_id: Json, output_index: int, content_index: int | None = None) -> Json:
    """The members that say which item, and which of its parts, an event is about."""
    members = b'"item_id":%b,"output_index":%d' % (item_id, output_index)
    return members if content_index is None else b'%b,"content_index":%d' % (members, content_index)


def steer_failed(request: dict[str, object], lane: str | None) -> Json:
    """`response.steer.failed`: no model here takes input in the middle of a turn."""
    parent, given = request.get("previous_response_id"), request.get("input")
    steer = {"previous_response_id": parent or "", "input": "" if given is None else given}
    error = {
        "type": "invalid_request_error",
        "code": "steering_not_supported",
        "message": "Steering is not supported; send the input with the next response.create.",
    }
    members = b'"error":%b,"steer":%b' % (orjson.dumps(error), orjson.dumps(steer))
    return EventWriter(lane).event(b"response.steer.failed", members)
