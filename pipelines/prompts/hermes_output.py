"""Answers with calls as Hermes and its kin write them: a JSON object between two tags.

Arguments are passed on as they are sampled. What only looks like a call stays text.
"""

import json
import re
from collections.abc import Callable

from turnwire.pipelines.messages import (
    EngineEvent,
    GenerationFinished,
    TextProduced,
)
from turnwire.pipelines.prompts.written_calls import WrittenCalls
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
        self._written = WrittenCalls(call_id)
        self._held = ""
        self._reads: Callable[[], bool] = self._read_text

    def feed(self, event: EngineEvent) -> list[EngineEvent]:
        match event:
            case TextProduced(text):
                self._written.arrived(event)
                self._held += text
                while self._reads():
                    pass
                return self._written.taken(event.ids)
            case GenerationFinished(finish):
                # A call that the limit cut stays incomplete.
                if self._reads == self._read_arguments and finish in ("stop", "tool_calls"):
                    self._written.close()
                    self._reads = self._read_rest
                return [*self._written.taken(), event]
            case _:
                return [event]

    def finish(self) -> list[EngineEvent]:
        """What was held back as text; a call that is not over waits for the ending."""
        if self._reads == self._read_head:
            self._held = START + self._held
            self._reads = self._read_text
        if self._reads == self._read_text and (self._held.strip() or not self._written.finished):
            self._written.say(self._held)
            self._held = ""
        return self._written.taken()

    def _read_text(self) -> bool:
        """Each of these takes what it can from `_held`; True: another one goes on with it."""
        start = self._held.find(START)
        if start < 0:
            certain = len(self._held) - _undecided(self._held)
            text, self._held = self._held[:certain], self._held[certain:]
            self._written.say(text)
            return False
        before, self._held = self._held[:start], self._held[start + len(START) :]
        if before.strip():
            self._written.say(before.rstrip())
        self._written.begin()
        self._reads = self._read_head
        return True

    def _read_head(self) -> bool:
        if head := _HEAD.match(self._held):
            self._held = self._held[head.end() :]
            self._written.open(json.loads(head[1]))
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
        over, self._held = self._written.read(self._held)
        if over:
            self._reads = self._read_rest
        return over

    def _read_rest(self) -> bool:
        """What stands between the arguments and the end of the call says nothing."""
        end = self._held.find(END)
        if end < 0:
            self._held = self._held[-len(END) :]
            return False
        self._held = self._held[end + len(END) :]
        self._reads = self._read_text
        return True

    def _whole(self, block: str) -> None:
        """A call whose members came in another order; text if it is none."""
        try:
            call = json.loads(block)
            name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, TypeError, LookupError, AttributeError):
            self._written.say(START + block + END)
            return
        self._written.whole(name, json.dumps(arguments, ensure_ascii=False))


def _undecided(text: str) -> int:
    """How much at the end may be the beginning of a call, or the space before one."""
    for length in range(min(len(START) - 1, len(text)), 0, -1):
        if START.startswith(text[-length:]):
            break
    else:
        length = 0
    return len(text) - len(text[: len(text) - length].rstrip())
