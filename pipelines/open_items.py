"""Output items while they are produced: the events that open, extend and close each kind."""

from typing import Literal

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.events import EventWriter, place, quoted
from turnwire.pipelines.sealing import Seal

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OpenText:
    """A message or a reasoning item: one part of text."""

    def __init__(
        self, writer: EventWriter, item_id: str, output_index: int, seal: Seal | None = None
    ) -> None:
        """`seal`: how reasoning is sealed, if it is."""
        self.output_index = output_index
        self._writer = writer
        self._seal = seal
        self._id = quoted(item_id)
        self._pieces: list[str] = []
        self._entries: list[Json] = []
        self._place = place(self._id, output_index, 0)
        self._delta = b'%b%b,"delta":' % (self._place, self._logprobs(b""))

    prefix = "msg"
    _delta_type = b"response.output_text.delta"
    _done_type = b"response.output_text.done"

    def opened(self) -> list[Json]:
        added = b'"output_index":%d,"item":%b' % (self.output_index, self._empty())
        part = b'%b,"part":%b' % (self._place, self._part(b'""'))
        return [
            self._writer.event(b"response.output_item.added", added),
            self._writer.event(b"response.content_part.added", part),
        ]

    def delta(self, text: str, logprobs: Json = b"") -> Json:
        """`logprobs`: entries of its tokens, where asked for. Empty: nothing is shown of it."""
        self._pieces.append(text)
        if not logprobs:
            return self._writer.event(self._delta_type, self._delta + quoted(text))
        self._entries.append(logprobs)
        members = b'%b%b,"delta":%b' % (self._place, self._logprobs(logprobs), quoted(text))
        return self._writer.event(self._delta_type, members)

    def closed(self, status: ItemStatus) -> tuple[list[Json], Json]:
        """The closing events, and the finished item."""
        text = quoted("".join(self._pieces))
        part = self._part(text)
        item = self._item(part, status.encode())
        logprobs = self._logprobs(b",".join(self._entries))
        done = b'%b%b,"text":%b' % (self._place, logprobs, text)
        return [
            self._writer.event(self._done_type, done),
            self._writer.event(
                b"response.content_part.done", b'%b,"part":%b' % (self._place, part)
            ),
            self._writer.event(
                b"response.output_item.done",
                b'"output_index":%d,"item":%b' % (self.output_index, item),
            ),
        ], item

    def _empty(self) -> Json:
        return self._item(b"", b"in_progress")

    def _logprobs(self, entries: Json) -> Json:
        return b',"logprobs":[%b]' % entries

    def _part(self, text: Json) -> Json:
        logprobs = self._logprobs(b",".join(self._entries))
        return b'{"type":"output_text","text":%b,"annotations":[]%b}' % (text, logprobs)

    def _item(self, part: Json, status: bytes) -> Json:
        return b'{"type":"message","id":%b,"status":"%b","role":"assistant","content":[%b]}' % (
            self._id,
            status,
            part,
        )


class OpenReasoning(OpenText):
    """Raw reasoning text, under OpenAI's names."""

    prefix = "rs"
    kind = b"response.reasoning_text"
    _delta_type = kind + b".delta"
    _done_type = kind + b".done"

    def _logprobs(self, entries: Json) -> Json:
        return b""

    def _part(self, text: Json) -> Json:
        return b'{"type":"reasoning_text","text":%b}' % text

    def _item(self, part: Json, status: bytes) -> Json:
        return b'{"type":"reasoning","id":%b,"status":"%b","summary":[]%b%b}' % (
            self._id,
            status,
            self._content(part),
            self._sealed() if status != b"in_progress" else b"",
        )

    def _content(self, part: Json) -> Json:
        return b',"content":[%b]' % part

    def _sealed(self) -> Json:
        if self._seal is None:
            return b""
        return b',"encrypted_content":%b' % quoted(self._seal("".join(self._pieces)))


class OpenResponsesReasoning(OpenReasoning):
    """The same under the names of Open Responses."""

    kind = b"response.reasoning"
    _delta_type = kind + b".delta"
    _done_type = kind + b".done"


class SealedReasoning(OpenReasoning):
    """Reasoning of which clients see only that it is there, and what they are to send back."""

    def opened(self) -> list[Json]:
        added = b'"output_index":%d,"item":%b' % (self.output_index, self._empty())
        return [self._writer.event(b"response.output_item.added", added)]

    def delta(self, text: str, logprobs: Json = b"") -> Json:
        self._pieces.append(text)
        return b""

    def closed(self, status: ItemStatus) -> tuple[list[Json], Json]:
        item = self._item(b"", status.encode())
        done = b'"output_index":%d,"item":%b' % (self.output_index, item)
        return [self._writer.event(b"response.output_item.done", done)], item

    def _content(self, part: Json) -> Json:
        return b""


ReasoningEvents = Literal["openai", "open_responses", "hidden"]

REASONING: dict[ReasoningEvents, type[OpenReasoning] | None] = {
    "openai": OpenReasoning,
    "open_responses": OpenResponsesReasoning,
    "hidden": None,
}
"""By the setting `gateway.reasoning_events`."""


def shown_as(setting: ReasoningEvents, *, sealed: bool) -> type[OpenReasoning] | None:
    """How reasoning is shown. What is hidden and sealed all the same is an item without a text."""
    return REASONING[setting] or (SealedReasoning if sealed else None)


class OpenCall:
    """A function call: its arguments arrive in pieces."""

    def __init__(
        self,
        writer: EventWriter,
        item_id: str,
        output_index: int,
        call_id: str,
        name: str,
        namespace: str = "",
    ) -> None:
        self.output_index = output_index
        self._writer = writer
        self._id = quoted(item_id)
        self._call_id = quoted(call_id)
        self._name = quoted(name)
        self._namespace = b'"namespace":%b,' % quoted(namespace) if namespace else b""
        self._pieces: list[str] = []
        self._place = place(self._id, output_index)

    prefix = "fc"
    _delta_type = b"response.function_call_arguments.delta"
    _done_type = b"response.function_call_arguments.done"

    def opened(self) -> list[Json]:
        item = self._item(b'""', b"in_progress")
        added = b'"output_index":%d,"item":%b' % (self.output_index, item)
        return [self._writer.event(b"response.output_item.added", added)]

    def delta(self, text: str) -> list[Json]:
        self._pieces.append(text)
        members = b'%b,"delta":%b' % (self._place, quoted(text))
        return [self._writer.event(self._delta_type, members)]

    def closed(self, status: ItemStatus) -> tuple[list[Json], Json]:
        """The closing events, and the finished item."""
        arguments = quoted("".join(self._pieces))
        item = self._item(arguments, status.encode())
        return [
            self._writer.event(self._done_type, self._done(arguments)),
            self._writer.event(
                b"response.output_item.done",
                b'"output_index":%d,"item":%b' % (self.output_index, item),
            ),
        ], item

    def _done(self, arguments: Json) -> Json:
        return b'%b,"name":%b,"arguments":%b' % (self._place, self._name, arguments)

    def _item(self, arguments: Json, status: bytes) -> Json:
        return (
            b'{"type":"function_call","id":%b,"call_id":%b,%b"name":%b,"arguments":%b,"status":"%b"}'
        ) % (self._id, self._call_id, self._namespace, self._name, arguments, status)


def reasoning_kind(setting: ReasoningEvents) -> bytes:
    """What the events of a reasoning text that is shown begin with."""
    return (REASONING[setting] or OpenReasoning).kind
