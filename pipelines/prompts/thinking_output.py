"""Answers that may begin with a thought, between `<think>` and `</think>`."""

from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from turnwire.pipelines.messages import (
    Counts,
    EngineEvent,
    GenerationFinished,
    Json,
    PromptEvaluated,
    ReasoningProduced,
    TextProduced,
    TokenIds,
)
from turnwire.pipelines.prompts.marked_text import ReasoningCount, undecided

START, END = "<think>", "</think>"


class _Parser(Protocol):
    def feed(self, event: EngineEvent) -> list[EngineEvent]: ...

    def finish(self) -> list[EngineEvent]: ...


class ThinkingOutput:
    """Implements `prompts.output.OutputParser`. `rest`: for all that follows the thought.

    The tags count at the beginning only: an answer may speak of them.
    """

    def __init__(self, rest: _Parser, *, thinking: bool = False) -> None:
        """`thinking`: the prompt has begun the thought already."""
        self._rest = rest
        self._count = ReasoningCount()
        self._counts = Counts()
        self._held = ""
        self._logprobs: list[Json] = []
        self._begun = thinking
        self._thought = False
        """Was any of the thought passed on?"""
        self._reads: Callable[[], bool] = self._read_thought if thinking else self._read_start
        self._out: list[EngineEvent] = []

    def feed(self, event: EngineEvent) -> list[EngineEvent]:
        match event:
            case TextProduced(text, counts, ids, logprobs):
                return self._text(text, counts, ids, logprobs)
            case PromptEvaluated(counts) | GenerationFinished(_, counts):
                thinking = self._reads == self._read_thought
                counted = self._count.counts(counts, thinking=thinking)
                return self._rest.feed(replace(event, counts=counted))
            case _:
                return self._rest.feed(event)

    def finish(self) -> list[EngineEvent]:
        if self._reads == self._read_thought:
            self._think(len(self._held))
        elif self._held:
            self._say()
        return [*self._taken(b""), *self._rest.finish()]

    def _text(self, text: str, counts: Counts, ids: TokenIds, logprobs: Json) -> list[EngineEvent]:
        if self._reads == self._read_rest:
            self._counts = self._count.counts(counts, thinking=False)
            return self._rest.feed(TextProduced(text, self._counts, ids, logprobs))
        before = self._reads
        self._held += text
        self._logprobs.append(logprobs)
        self._counts = counts
        while self._reads():
            pass
        thinking = self._begun and before in (self._read_start, self._read_thought)
        self._counts = self._count.counts(counts, thinking=thinking)
        self._out = [_counted(piece, self._counts) for piece in self._out]
        return self._taken(ids)

    def _taken(self, ids: TokenIds) -> list[EngineEvent]:
        out, self._out = self._out, []
        if ids:
            out.insert(0, TextProduced("", self._counts, ids))
        return out

    def _read_start(self) -> bool:
        """Each of these takes what it can from `_held`; True: another one goes on with it."""
        begun = self._held.lstrip()
        if begun.startswith(START):
            self._held = begun[len(START) :]
            self._logprobs.clear()
            self._begun = True
            self._reads = self._read_thought
            return True
        if START.startswith(begun):
            return False
        self._reads = self._read_rest
        return True

    def _read_thought(self) -> bool:
        if not self._thought:
            self._held = self._held.lstrip()
        end = self._held.find(END)
        if end < 0:
            ready = self._held[: len(self._held) - undecided(self._held, (END,))]
            self._think(len(ready.rstrip()))
            return False
        self._think(len(self._held[:end].rstrip()))
        self._held = self._held.lstrip()[len(END) :]
        self._logprobs.clear()
        self._reads = self._read_gap
        return True

    def _read_gap(self) -> bool:
        """Empty lines between the thought and the answer belong to neither."""
        self._held = self._held.lstrip()
        if not self._held:
            self._logprobs.clear()
            return False
        self._reads = self._read_rest
        return True

    def _read_rest(self) -> bool:
        if self._held:
            self._say()
        return False

    def _think(self, length: int) -> None:
        text, self._held = self._held[:length], self._held[length:]
        if text:
            self._thought = True
            self._out.append(ReasoningProduced(text, self._counts))

    def _say(self) -> None:
        text, self._held = self._held, ""
        logprobs, self._logprobs = b",".join(filter(None, self._logprobs)), []
        self._out += self._rest.feed(TextProduced(text, self._counts, b"", logprobs))


def _counted(piece: EngineEvent, counts: Counts) -> EngineEvent:
    return replace(piece, counts=counts) if hasattr(piece, "counts") else piece
