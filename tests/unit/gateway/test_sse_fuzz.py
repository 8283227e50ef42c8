"""Server-sent events, read by a parser of the standard that gets them in any pieces."""

from dataclasses import dataclass, field

import orjson
from hypothesis import given
from hypothesis import strategies as st

from turnwire.gateway.sse import sse
from turnwire.pipelines.protocol.events import EventWriter, quoted


@dataclass
class Reader:
    """The WHATWG's rules for `text/event-stream`, byte by byte: LF, CR and CRLF end a line."""

    events: list[tuple[str, str]] = field(default_factory=list)
    _line: bytearray = field(default_factory=bytearray)
    _after_cr: bool = False
    _type: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, piece: bytes) -> None:
        for byte in piece:
            if byte == 0x0A and self._after_cr:
                self._after_cr = False
                continue
            self._after_cr = byte == 0x0D
            if byte in (0x0A, 0x0D):
                self._end_line(self._line.decode())
                self._line.clear()
            else:
                self._line.append(byte)

    def _end_line(self, line: str) -> None:
        if not line:
            if self._data:
                self.events.append((self._type or "message", "\n".join(self._data)))
            self._type, self._data = "", []
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._type = value
        elif name == "data":
            self._data.append(value)


texts = st.text(max_size=20) | st.sampled_from(["\r\n\n", "\u2028\u0085", "data: x\n\nevent: y"])
kinds = st.sampled_from([b"response.output_text.delta", b"response.completed", b"error"])


@given(st.lists(st.tuples(kinds, texts), max_size=4), st.data())
def test_events_come_out_as_they_went_in_however_they_are_cut(
    given_events: list[tuple[bytes, str]], data: st.DataObject
) -> None:
    writer = EventWriter("lane")
    made = [writer.event(kind, b'"delta":' + quoted(text)) for kind, text in given_events]
    stream = b"".join(map(sse, made)) + b"data: [DONE]\n\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader = Reader()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[start:end])
    assert reader.events.pop() == ("message", "[DONE]")
    assert [kind for kind, _ in reader.events] == [kind.decode() for kind, _ in given_events]
    read = [orjson.loads(text) for _, text in reader.events]
    assert read == [orjson.loads(event) for event in made]
    assert [event["delta"] for event in read] == [text for _, text in given_events]


def test_a_stream_split_at_every_byte_is_the_same_stream() -> None:
    writer = EventWriter(None)
    texts = ("", "Hello\r\n", "\u2028 \U0001f642")
    events = [writer.event(b"response.output_text.delta", b'"delta":' + quoted(t)) for t in texts]
    stream = b"".join(map(sse, events)) + b"data: [DONE]\n\n"
    whole = Reader()
    whole.feed(stream)
    assert len(whole.events) == len(texts) + 1
    for cut in range(len(stream) + 1):
        reader = Reader()
        reader.feed(stream[:cut])
        reader.feed(stream[cut:])
        assert reader.events == whole.events
