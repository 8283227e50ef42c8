"""Events as server-sent events."""

from typing import Final

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.events import event_type

DONE: Final = b"data: [DONE]\n\n"


def sse(event: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event_type(event), event)
