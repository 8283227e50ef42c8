"""Answers in Harmony: messages whose header says whether they are thought, said or a call.

Needs control tokens shown in the text. The markers that end an answer are not in it.
"""

import json
import re
from collections.abc import Callable

from msgspec.structs import replace

from turnwire.pipelines.messages import (
    CallProduced,
    Counts,
    EngineEvent,
    GenerationFinished,
    PromptEvaluated,
    ReasoningProduced,
    TextProduced,
)
from turnwire.pipelines.prompts.call_arguments import ArgumentText
from turnwire.pipelines.prompts.harmony import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START
from turnwire.pipelines.prompts.marked_text import ReasoningCount, undecided
from turnwire.pipelines.protocol.errors import Internal

_ENDS = (END, CALL, RETURN, START)
_END = re.compile("|".join(map(re.escape, _ENDS)))
_MARKER = re.compile("|".join(map(re.escape, (*_ENDS, CHANNEL, CONSTRAIN, MESSAGE))))
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS = "functions."
_NOT_TOOLS = ("assistant", "user", "all")
_MAX_HEADER_CHARACTERS = 512
"""What is longer has no header at all: it is taken for text."""


class HarmonyOutput:
    """Implements `prompts.output.OutputParser`. `call_id`: the id of a call, by its number."""

    def __init__(self, call_id: Callable[[int], str]) -> None:
        self._call_id = call_id
        self._count = ReasoningCount()
        self._counts = Counts()
        self._held = ""
        self._reads: Callable[[], bool] = self._read_header
        self._calls = 0
        self._name = ""
        self._arguments = ArgumentText()
        self._is_json: bool | None = None
        """Of the arguments of a call; None: nothing of them is there yet."""
        self._spoke = False
        """Did a message of text end just before?"""
        self._out: list[EngineEvent] = []

    def feed(self, event: EngineEvent) -> list[EngineEvent]:
        match event:
            case TextProduced(text, counts, ids):
                before = self._reads
                self._held += text
                self._counts = counts
                while self._reads():
                    pass
                thinking = self._read_thought in (before, self._reads)
                self._counts = self._count.counts(counts, thinking=thinking)
                return self._taken(ids)
            case GenerationFinished(finish, counts):
                thinking = self._reads == self._read_thought
                self._counts = self._count.counts(counts, thinking=thinking)
                if self._reads == self._read_call and finish in ("stop", "tool_calls"):
                    self._close_call()
                return [*self._taken(), replace(event, counts=self._counts)]
            case PromptEvaluated(counts):
                return [replace(event, counts=self._count.counts(counts, thinking=False))]
            case _:
                return [event]

    def finish(self) -> list[EngineEvent]:
        """A header that was cut off says nothing; text without any header is the answer."""
        if self._reads == self._read_header:
            text = "" if CHANNEL in self._held else _MARKER.sub("", self._held)
            text = "" if undecided(text, (CHANNEL,)) == len(text) else text
            self._held = ""
            self._say(text)
        elif self._reads == self._read_text:
            self._say(self._all())
        elif self._reads == self._read_thought:
            self._think(self._all())
        return self._taken()

    def _taken(self, ids: bytes = b"") -> list[EngineEvent]:
        out = [
            replace(piece, counts=self._counts)
            for piece in self._out
            if isinstance(piece, TextProduced | ReasoningProduced | CallProduced)
        ]
        self._out = []
        return [TextProduced("", self._counts, ids), *out] if ids else list(out)

    def _read_header(self) -> bool:
        """Each of these takes what it can from `_held`; True: another one goes on with it."""
        end = self._held.find(MESSAGE)
        if end < 0:
            if len(self._held) > _MAX_HEADER_CHARACTERS:
                self._begin_text()
                return True
            return False
        header, self._held = self._held[:end], self._held[end + len(MESSAGE) :]
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        if recipient is not None and recipient[1] not in _NOT_TOOLS:
            says_json = "json" in header[recipient.end() :] or None
            self._begin_call(recipient[1].removeprefix(_FUNCTIONS), says_json)
        elif channel is not None and channel[1] == "analysis":
            self._reads = self._read_thought
            self._spoke = False
        else:
            self._begin_text()
        return True

    def _read_thought(self) -> bool:
        text, ended = self._body()
        self._think(text)
        if ended:
            self._reads = self._read_header
        return ended

    def _read_text(self) -> bool:
        text, ended = self._body()
        self._say(text)
        if ended:
            self._reads = self._read_header
            self._spoke = True
        return ended

    def _read_call(self) -> bool:
        text, ended = self._body()
        self._argue(text)
        if ended:
            self._close_call()
        return ended

    def _body(self) -> tuple[str, bool]:
        """What of `_held` belongs to the message, and whether its end is there."""
        end = _END.search(self._held)
        if end is None:
            ready = len(self._held) - undecided(self._held, _ENDS)
            text, self._held = self._held[:ready], self._held[ready:]
            return text, False
        text = self._held[: end.start()]
        # The beginning of the next message ends this one as well.
        self._held = self._held[end.start() if end[0] == START else end.end() :]
        return text, True

    def _all(self) -> str:
        text, self._held = self._held, ""
        return text

    def _begin_text(self) -> None:
        self._reads = self._read_text
        if self._spoke:
            self._out.append(TextProduced("\n\n", self._counts))

    def _begin_call(self, name: str, is_json: bool | None) -> None:
        self._name = name
        self._is_json = is_json
        self._arguments = ArgumentText()
        self._spoke = False
        self._reads = self._read_call
        self._call("")

    def _argue(self, text: str) -> None:
        """Free text becomes the one argument of a custom tool."""
        if self._is_json is None:
            text = text.lstrip()
            if not text:
                return
            self._is_json = text.startswith("{")
            self._call("" if self._is_json else '{"input":"')
        if not self._is_json:
            self._call(json.dumps(text, ensure_ascii=False)[1:-1])
        elif not self._arguments.complete:
            piece, _ = self._arguments.feed(text)
            self._call(piece)

    def _close_call(self) -> None:
        """Raises Internal when the arguments are no JSON and cannot be made so."""
        if self._is_json is None:
            self._is_json = True
        if not self._is_json:
            self._call('"}')
        elif not self._arguments.complete:
            added = self._arguments.repair()
            self._argue({"null": "{}", None: ""}.get(added, added or ""))
        if self._is_json and not self._arguments.valid:
            raise Internal("The model wrote a call whose arguments are not valid JSON.")
        self._call("", finished=True)
        self._calls += 1
        self._reads = self._read_header

    def _call(self, arguments: str, *, finished: bool = False) -> None:
        call_id = self._call_id(self._calls)
        self._out.append(
            CallProduced(self._calls, call_id, self._name, arguments, self._counts, finished)
        )

    def _say(self, text: str) -> None:
        if text:
            self._out.append(TextProduced(text, self._counts))

    def _think(self, text: str) -> None:
        if text:
            self._out.append(ReasoningProduced(text, self._counts))
