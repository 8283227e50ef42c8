"""Answers of Llama 3: text, or JSON objects that are calls and nothing else.

An object is a call when it has a name and then parameters, and nothing was said before it.
"""

import json
import re
from collections.abc import Callable

from turnwire.pipelines.messages import (
    EngineEvent,
    GenerationFinished,
    TextProduced,
)
from turnwire.pipelines.prompts.marked_text import undecided
from turnwire.pipelines.prompts.written_calls import WrittenCalls

_TAG = "<|python_tag|>"
_STRING = r'"((?:[^"\\\x00-\x1f]|\\.)*)"'
_NAME = r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*' + _STRING
_HEAD = re.compile(_NAME + r'\s*,\s*"(?:parameters|arguments)"\s*:\s*(?=\S)')
_FIRST_KEY = re.compile(r"\s*\{\s*" + _STRING)
_NEXT_KEY = re.compile(_NAME + r"\s*(?:,\s*" + _STRING + r"|\})")
_OTHER_TYPE = re.compile(r'\s*\{\s*"type"\s*:\s*(?:[^"\s]|"(?!function")[^"]*")')
_MAX_HEAD_CHARACTERS = 64 * 1024


class Llama3Output:
    """Implements `prompts.output.OutputParser`. `call_id`: the id of a call, by its number."""

    def __init__(self, call_id: Callable[[int], str]) -> None:
        self._written = WrittenCalls(call_id)
        self._held = ""
        self._reads: Callable[[], bool] = self._read_start
        self._spoke = False
        """Was anything said behind the last call?"""

    def feed(self, event: EngineEvent) -> list[EngineEvent]:
        match event:
            case TextProduced(text):
                self._written.arrived(event)
                self._held += text
                while self._reads():
                    pass
                return self._written.taken(event.ids)
            case GenerationFinished(finish):
                if self._reads == self._read_arguments and finish in ("stop", "tool_calls"):
                    self._written.close()
                    self._reads = self._read_rest
                return [*self._written.taken(), event]
            case _:
                return [event]

    def finish(self) -> list[EngineEvent]:
        if self._reads == self._read_start:
            self._reads = self._read_text
        if self._reads == self._read_text:
            self._say()
        return self._written.taken()

    def _read_start(self) -> bool:
        """Each of these takes what it can from `_held`; True: another one goes on with it."""
        begun = self._held.lstrip(" \n;" if self._written.finished else None)
        while begun.startswith(_TAG):
            self._held = begun[len(_TAG) :]
            begun = self._held.lstrip(" \n;" if self._written.finished else None)
        if head := _HEAD.match(begun):
            self._held = begun[head.end() :]
            self._written.begin()
            self._written.open(json.loads(f'"{head[1]}"'))
            self._reads = self._read_arguments
            return True
        if _may_be_call(begun):
            return False
        self._reads = self._read_text
        return True

    def _read_arguments(self) -> bool:
        over, self._held = self._written.read(self._held)
        if over:
            self._reads = self._read_rest
        return over

    def _read_rest(self) -> bool:
        """The end of the object; another call may follow."""
        end = self._held.find("}")
        if end < 0:
            self._held = ""
            return False
        self._held = self._held[end + 1 :]
        self._reads = self._read_start
        return True

    def _read_text(self) -> bool:
        self._say()
        return False

    def _say(self) -> None:
        """What only parts calls says nothing."""
        if self._spoke or not self._written.finished or self._held.strip(" \n;"):
            self._written.say(self._held)
            self._spoke = True
            self._held = ""


def _may_be_call(begun: str) -> bool:
    """Can what was written so far still become a call?"""
    if not begun or undecided(begun, (_TAG,)) == len(begun):
        return True
    if not begun.startswith("{") or len(begun) > _MAX_HEAD_CHARACTERS:
        return False
    first, following = _FIRST_KEY.match(begun), _NEXT_KEY.match(begun)
    if first is not None and first[1] not in ("name", "type"):
        return False
    if _OTHER_TYPE.match(begun):
        return False
    return following is None or following[2] in ("parameters", "arguments")
