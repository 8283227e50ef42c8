"""A call of a custom tool while it is produced. Models write it as a function with one string."""

import json
import re

from turnwire.pipelines.messages import Json
from turnwire.pipelines.open_items import ItemStatus, OpenCall

_HEAD = re.compile(r'\s*(?:\{\s*"input"\s*:\s*)?"')
_RUN = re.compile(r'(?:[^"\\]|\\u[dD][89abAB]..\\u....|\\u(?![dD][89abAB])....|\\[^u])*', re.DOTALL)
"""Content of a JSON string up to its end, or to what may be half of an escape."""


class InputText:
    """From the JSON that a model writes to the text in it, piece by piece."""

    def __init__(self) -> None:
        self._unread = ""
        self._inside = False

    def feed(self, piece: str) -> str:
        """The text that is certain now."""
        self._unread += piece
        if not self._inside:
            head = _HEAD.match(self._unread)
            if head is None:
                return ""
            self._unread = self._unread[head.end() :]
            self._inside = True
        run = _RUN.match(self._unread)
        assert run is not None, "it matches nothing at all too"
        self._unread = self._unread[run.end() :]
        text: str = json.loads(f'"{run[0]}"', strict=False)
        return text

    @property
    def rest(self) -> str:
        """What was never recognized: all of it, where the model wrote something else."""
        return "" if self._inside else self._unread


class OpenCustomCall(OpenCall):
    """`custom_tool_call`: its input is text."""

    prefix = "ctc"
    _delta_type = b"response.custom_tool_call_input.delta"
    _done_type = b"response.custom_tool_call_input.done"

    def opened(self) -> list[Json]:
        self._text = InputText()
        return super().opened()

    def delta(self, text: str) -> list[Json]:
        """`text` is JSON, as it is sampled; nothing is sent of an escape that is not over."""
        found = self._text.feed(text)
        return super().delta(found) if found else []

    def closed(self, status: ItemStatus) -> tuple[list[Json], Json]:
        rest = self._text.rest
        events = super().delta(rest) if rest else []
        closing, item = super().closed(status)
        return [*events, *closing], item

    def _done(self, given: Json) -> Json:
        return b'%b,"input":%b' % (self._place, given)

    def _item(self, given: Json, status: bytes) -> Json:
        return (
            b'{"type":"custom_tool_call","id":%b,"call_id":%b,%b"name":%b,"input":%b,"status":"%b"}'
        ) % (self._id, self._call_id, self._namespace, self._name, given, status)
