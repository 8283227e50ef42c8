"""Answers with calls as Hermes and its kin write them: a JSON object between two tags.

Arguments are passed on as they are sampled. What only looks like a call stays text.
"""

import json
import re
from collections.abc import Callable

from turnwire.pipelines.messages import (
    CallProduced,
    Counts,
    EngineEvent,
    Finish,
    GenerationFinished,
    Json,
    TextProduced,
)
from turnwire.pipelines.prompts.call_arguments import ArgumentText
from turnwire.pipelines.protocol.errors import Internal

START, END = "<tool_call>", "</tool_call>"

_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\\x00-\x1f]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
    r"(?=\S)"
)
_MAX_HEAD_CHARACTERS = 64 * 1024
"""A call that is not written in order is held back up to here."""


class HermesOutput:
    """Implements `prompts.output.OutputParser`. `call_id`: the id of a call, by its number."""

    def __init__(self, call_id: Callable[[int], str]) -> None:
        self._call_id = call_id
        self._counts = Counts()
        self._held = ""
        self._logprobs: list[Json] = []
        self._reads: Callable[[], bool] = self._read_text
        self._calls = 0
        self._name = ""
        self._arguments = ArgumentText()
        self._out: list[EngineEvent] = []

    def feed(self, event: EngineEvent) -> list[EngineEvent]:
        match event:
            case TextProduced(text, counts, ids, logprobs):
                self._counts = counts
                self._held += text
                if logprobs:
                    self._logprobs.append(logprobs)
                while self._reads():
                    pass
                return self._taken(ids)
            case GenerationFinished(finish):
                self._end(finish)
                return [*self._taken(), event]
            case _:
                return [event]

    def finish(self) -> list[EngineEvent]:
        """What was held back as text; a call that is not over waits for the ending."""
        if self._reads == self._read_head:
            self._held = START + self._held
            self._reads = self._read_text
        if self._reads == self._read_text and (self._held.strip() or not self._calls):
            self._say(self._held)
            self._held = ""
        return self._taken()

    def _taken(self, ids: bytes = b"") -> list[EngineEvent]:
        out, self._out = self._out, []
        if ids:
            out.insert(0, TextProduced("", self._counts, ids))
        return out

    def _read_text(self) -> bool:
        """Each of these takes what it can from `_held`; True: another one goes on with it."""
        start = self._held.find(START)
        if start < 0:
            certain = len(self._held) - _undecided(self._held)
            text, self._held = self._held[:certain], self._held[certain:]
            self._say(text)
            return False
        before, self._held = self._held[:start], self._held[start + len(START) :]
        if before.strip():
            self._say(before.rstrip())
        self._logprobs.clear()
        self._reads = self._read_head
        return True

    def _read_head(self) -> bool:
        if head := _HEAD.match(self._held):
            self._held = self._held[head.end() :]
            self._name = json.loads(head[1])
            self._arguments = ArgumentText()
            self._call("")
            self._reads = self._read_arguments
            return True
        end = self._held.find(END)
        if end < 0:
            if len(self._held) > _MAX_HEAD_CHARACTERS:
                raise Internal("The model wrote a call that has no end.")
            return False
        self._whole(self._held[:end])
        self._held = self._held[end + len(END) :]
        self._reads = self._read_text
        return True

    def _read_arguments(self) -> bool:
        piece, self._held = self._arguments.feed(self._held)
        self._call(piece)
        if not self._arguments.complete:
            return False
        self._close_call()
        return True

    def _read_rest(self) -> bool:
        """What stands between the arguments and the end of the call says nothing."""
        end = self._held.find(END)
        if end < 0:
            self._held = self._held[-len(END) :]
            return False
        self._held = self._held[end + len(END) :]
        self._reads = self._read_text
        return True

    def _end(self, finish: Finish) -> None:
        if self._reads != self._read_arguments or finish not in ("stop", "tool_calls"):
            return  # a call that the limit cut stays incomplete
        added = self._arguments.repair()
        if added is None:
            raise Internal("The model wrote a call whose arguments are not valid JSON.")
        self._call(added)
        self._arguments.feed(added)
        self._close_call()

    def _close_call(self) -> None:
        if not self._arguments.valid:
            raise Internal("The model wrote a call whose arguments are not valid JSON.")
        self._call("", finished=True)
        self._calls += 1
        self._reads = self._read_rest

    def _call(self, arguments: str, *, finished: bool = False) -> None:
        call_id = self._call_id(self._calls)
        self._out.append(
            CallProduced(self._calls, call_id, self._name, arguments, self._counts, finished)
        )

    def _whole(self, block: str) -> None:
        """A call whose members came in another order; text if it is none."""
        try:
            call = json.loads(block)
            self._name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, TypeError, LookupError, AttributeError):
            self._out.append(TextProduced(START + block + END, self._counts))
            return
        self._call(json.dumps(arguments, ensure_ascii=False), finished=True)
        self._calls += 1

    def _say(self, text: str) -> None:
        if text:
            logprobs, self._logprobs = b",".join(self._logprobs), []
            self._out.append(TextProduced(text, self._counts, b"", logprobs))


def _undecided(text: str) -> int:
    """How much at the end may be the beginning of a call, or the space before one."""
    for length in range(min(len(START) - 1, len(text)), 0, -1):
        if START.startswith(text[-length:]):
            break
    else:
        length = 0
    return len(text) - len(text[: len(text) - length].rstrip())
