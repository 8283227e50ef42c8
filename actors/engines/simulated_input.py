"""The text a simulated model calls a custom tool with: it fits the tool's grammar. Pure."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
from llguidance import LLMatcher

from turnwire.actors.engines.simulated_text import prose
from turnwire.pipelines.prompts.lark_in_json import byte_tokenizer

_PATCH: Final = (
    "*** Begin Patch\n*** Add File: simulated-note.txt\n+Written by a simulated model.\n"
    "*** End Patch\n"
)
_FIRST: Final = b"\n ae1xE"
"""Which letters to try first, where any would do."""
_FEW: Final = 8
_MOST_CHOICES: Final = 12
_MOST_TRIES: Final = 4000
_MOST_BYTES: Final = 2048


def input_text(tool: Mapping[str, Any], seed: int, characters: int) -> str | None:
    """None: no text was found that fits. `characters`: how long it may be where it is free."""
    grammar = tool.get("lark")
    if grammar is None:
        return prose(seed, max(characters, 24))
    return _fitting(grammar)


@lru_cache(maxsize=16)
def _fitting(grammar: str) -> str | None:
    matcher = LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_lark(grammar), log_level=0)
    if matcher.is_error():
        return None
    for text in (_PATCH, _PATCH.rstrip("\n")):
        if _fits(matcher.deep_copy(), text.encode()):
            return text
    for choices in range(_MOST_CHOICES):
        tries = iter(range(_MOST_TRIES))
        found = _search(matcher, b"", choices, tries)
        if found is not None:
            return found.decode("utf-8", "replace")
    return None


def _fits(matcher: LLMatcher, text: bytes) -> bool:
    tokens = list(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def _search(matcher: LLMatcher, so_far: bytes, choices: int, tries: Iterator[int]) -> bytes | None:
    """A text that needs no more than so many choices, where more than one letter is possible."""
    if next(tries, None) is None or len(so_far) > _MOST_BYTES:
        return None
    if matcher.is_accepting():
        return so_far
    letters = _letters(matcher)
    if len(letters) > 1:
        choices -= 1
    if choices < 0:
        return None
    for letter in letters:
        after = matcher.deep_copy()
        after.consume_token(letter)
        found = _search(after, so_far + bytes([letter]), choices, tries)
        if found is not None:
            return found
    return None


def _letters(matcher: LLMatcher) -> list[int]:
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    allowed = np.flatnonzero(np.unpackbits(mask, count=128, bitorder="little")).tolist()
    usual = [letter for letter in _FIRST if letter in allowed]
    others = [letter for letter in allowed if letter not in usual]
    if len(others) <= _FEW:
        return usual + others
    # One of many letters is as good as another; a sign may lead somewhere else.
    signs = [letter for letter in others if not chr(letter).isalnum()]
    return usual + (signs or others[: not usual])
