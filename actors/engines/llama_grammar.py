"""Grammars over one vocabulary: which tokens may come next, by llguidance."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from turnwire.pipelines.protocol.errors import InvalidRequest

_KEPT = 16
"""Grammars that begin without being read again."""
_LIMITS = LLParserLimits(verbose_errors=False)


class GuideFailed(Exception):
    """The grammar cannot go on: its limits are reached. The stream is lost, the model is not."""


class Guide:
    """Where one answer is in its grammar. For one thread at a time."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def narrow(self, logits: NDArray[np.float32]) -> None:
        """Take every token out that may not come next. Raises GuideFailed."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(mask, count=len(logits), bitorder="little")
        logits[allowed == 0] = -np.inf

    def took(self, token: int) -> None:
        """`token` was chosen. Raises GuideFailed."""
        self._matcher.consume_token(token)
        self._check()

    def forced(self, most: int) -> list[int]:
        """Tokens that have to come next, now taken. Raises GuideFailed."""
        tokens = self._matcher.compute_ff_tokens()[:most]
        self._check()
        if tokens:
            self._matcher.consume_tokens(tokens)
            self._check()
        return tokens

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GuideFailed(self._matcher.get_error())


class Vocabulary:
    """All ids of a model, under the names `TokenizerWrapper` wants."""

    bos_token_id = None

    def __init__(
        self,
        pieces: Sequence[bytes],
        special: Sequence[int],
        terminal: int,
        encode: Callable[[str], list[int]],
    ) -> None:
        """`special`: ids that are never text. `terminal`: ends an answer."""
        self.tokens = pieces
        self.special_token_ids = special
        self.eos_token_id = terminal
        self._encode = encode

    def __call__(self, text: bytes) -> list[int]:
        """What a grammar forces is written with the ids that the model is used to."""
        return self._encode(text.decode("utf-8", "replace"))


class Grammars:
    """Makes guides; keeps the grammars that were used last. For one thread at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = LLTokenizer(TokenizerWrapper(vocabulary))
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()

    def begin(self, grammar: str) -> Guide:
        """A guide at the grammar's start. Raises InvalidRequest for one that cannot be used."""
        matcher = self._kept.get(grammar)
        if matcher is None:
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
            if matcher.is_error():
                raise InvalidRequest("The tools or the text format are too complex to be kept to.")
            self._kept[grammar] = matcher
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(grammar)
        return Guide(matcher.deep_copy())
