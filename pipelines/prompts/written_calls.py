"""The events of an answer whose text is read for calls: what all such parsers write alike."""

from collections.abc import Callable

from turnwire.pipelines.messages import CallProduced, Counts, EngineEvent, Json, TextProduced
from turnwire.pipelines.prompts.call_arguments import ArgumentText
from turnwire.pipelines.protocol.errors import Internal


class WrittenCalls:
    """Text and calls in the order they were read. `call_id`: the id of a call, by its number."""

    def __init__(self, call_id: Callable[[int], str]) -> None:
        self.finished = 0
        """Calls that are over."""
        self._call_id = call_id
        self._counts = Counts()
        self._logprobs: list[Json] = []
        self._name = ""
        self._arguments = ArgumentText()
        self._out: list[EngineEvent] = []

    def arrived(self, event: TextProduced) -> None:
        """What is written from now on was sampled by then."""
        self._counts = event.counts
        if event.logprobs:
            self._logprobs.append(event.logprobs)

    def say(self, text: str) -> None:
        if text:
            logprobs, self._logprobs = b",".join(self._logprobs), []
            self._out.append(TextProduced(text, self._counts, b"", logprobs))

    def begin(self) -> None:
        """From here on a call is read: its log probabilities are nobody's text."""
        self._logprobs.clear()

    def open(self, name: str) -> None:
        self._name = name
        self._arguments = ArgumentText()
        self._write("")

    def read(self, text: str) -> tuple[bool, str]:
        """The next part of the open call. True when that was all of it; what is left of `text`."""
        piece, rest = self._arguments.feed(text)
        self._write(piece)
        if self._arguments.complete:
            self.close()
            return True, rest
        return False, rest

    def close(self) -> None:
        """End the open call. Raises Internal when it is no JSON and cannot be made so."""
        if not self._arguments.complete and (added := self._arguments.repair()) is not None:
            self._write(added)
            self._arguments.feed(added)
        if not self._arguments.valid:
            raise Internal("The model wrote a call whose arguments are not valid JSON.")
        self._finish("")

    def whole(self, name: str, arguments: str) -> None:
        """A call that was read at once."""
        self._name = name
        self._finish(arguments)

    def taken(self, ids: bytes = b"") -> list[EngineEvent]:
        """The events since the last time; `ids` are those sampled for them."""
        out, self._out = self._out, []
        return [TextProduced("", self._counts, ids), *out] if ids else out

    def _finish(self, arguments: str) -> None:
        self._write(arguments, finished=True)
        self.finished += 1

    def _write(self, arguments: str, *, finished: bool = False) -> None:
        call_id = self._call_id(self.finished)
        self._out.append(
            CallProduced(self.finished, call_id, self._name, arguments, self._counts, finished)
        )
