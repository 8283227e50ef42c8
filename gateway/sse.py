"""Events as server-sent events, and what every answer to a turn begins with."""

from typing import Final

from starlette.types import Message

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.events import event_type

DONE: Final = b"data: [DONE]\n\n"


EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"


def head(response_id: str, content_type: bytes) -> Message:
    """The first message of an answer."""
    headers = [
        (b"content-type", content_type),
        (b"cache-control", b"no-store"),
        (b"x-request-id", response_id.encode()),
    ]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def sse(event: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event_type(event), event)
