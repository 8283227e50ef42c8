"""The simulated models' tokenizer and prose. Pure.

A token is four characters, so that the text of N tokens has 4N characters, counting costs a length
and nothing is ever split or joined differently the second time.
"""

import random
from typing import Protocol

import msgspec

TOKEN_CHARACTERS = 4

_CORPUS_CHARACTERS = 65_536


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# None of these is the name of a shell command, in case somebody runs what a model made of them.
_NOUNS = _words(
    "actor answer branch buffer cache channel client context delta engine event frame gateway "
    "history lane ledger message model network output prefix prompt queue replica request result "
    "route sample server session signal socket stream token turn verdict window worker"
)
_VERBS = _words(
    "answers builds carries checks closes counts delivers follows grows holds keeps leaves moves "
    " names opens passes reaches reads returns sees settles shares starts takes waits writes"
)
_ADJECTIVES = _words(
    "bounded brief calm clear common early empty exact final first fresh full idle late light "
    "local long next open plain quick quiet ready recent short simple small steady warm whole"
)
_LINKS = ("while", "because", "before", "after", "until", "and", "so that", "unless")


def count(text: str) -> int:
    """Tokens of a text."""
    return -(-len(text) // TOKEN_CHARACTERS)


def _clause(source: random.Random) -> str:
    subject, thing = source.choice(_NOUNS), source.choice(_NOUNS)
    return f"the {source.choice(_ADJECTIVES)} {subject} {source.choice(_VERBS)} the {thing}"


def _corpus() -> tuple[str, list[int]]:
    source = random.Random(1)
    starts, sentences, length = [], [], 0
    while length < _CORPUS_CHARACTERS:
        sentence = f"{_clause(source)} {source.choice(_LINKS)} {_clause(source)}. ".capitalize()
        starts.append(length)
        sentences.append(sentence)
        length += len(sentence)
    return "".join(sentences), starts


_TEXT, _STARTS = _corpus()


class Passage(Protocol):
    """Text of a known length, read in pieces and made no sooner than it is read."""

    @property
    def characters(self) -> int: ...

    def piece(self, start: int, end: int) -> str: ...


class Written(msgspec.Struct, frozen=True):
    """A given text."""

    text: str

    @property
    def characters(self) -> int:
        return len(self.text)

    def piece(self, start: int, end: int) -> str:
        return self.text[start:end]


class Prose(msgspec.Struct, frozen=True):
    """So many tokens of plausible prose: the same for the same seed, of any length."""

    seed: int
    tokens: int

    @property
    def characters(self) -> int:
        return self.tokens * TOKEN_CHARACTERS

    def piece(self, start: int, end: int) -> str:
        end = min(end, self.characters)
        if start >= end:
            return ""
        closes = end == self.characters
        first = _sentence_start(self.seed)
        text = _cyclic(first + start, first + end - closes)
        return text + "." if closes else text


def prose(seed: int, characters: int) -> str:
    """Exactly so many characters of prose, without quotes, backslashes or line ends."""
    first = _sentence_start(seed)
    return _cyclic(first, first + characters)


def _sentence_start(seed: int) -> int:
    return _STARTS[seed % len(_STARTS)]


def _cyclic(start: int, end: int) -> str:
    size = len(_TEXT)
    pieces = []
    while start < end:
        offset = start % size
        piece = _TEXT[offset : offset + end - start]
        pieces.append(piece)
        start += len(piece)
    return "".join(pieces)
