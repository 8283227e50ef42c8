"""Text to token ids, for one vocabulary. Control markers are reached by name, never by text."""

import re
from array import array
from functools import lru_cache
from typing import Any, Protocol

import splintr

from turnwire.pipelines.config import BUNDLED
from turnwire.pipelines.messages import TokenIds
from turnwire.pipelines.protocol.errors import Internal

_CHUNK_CHARACTERS = 1 << 16

# Byte-level vocabularies start a new word before a single space between two letters, so no token
# reaches over such a place, whatever else the pattern that splits words says.
_WORD_ENDS = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")


class Tokenizer(Protocol):
    """One vocabulary."""

    def encode(self, text: str) -> TokenIds:
        """All of `text` as text: a control marker that somebody typed stays text."""

    def special(self, name: str) -> int:
        """The id of a control marker. Raises Internal when the vocabulary has none of that name."""

    def find(self, name: str) -> int | None:
        """The same, or None."""

    def markers(self, *others: str) -> dict[str, int]:
        """All control markers, those of `others` among them that the vocabulary has."""


class VocabularyTokenizer:
    """A tokenizer.json, or a vocabulary that ships with the library."""

    def __init__(self, path: str) -> None:
        bundled = path.removeprefix(BUNDLED)
        try:
            # Any: the library has no types.
            self._vocabulary: Any = (
                splintr.from_json(path)
                if bundled == path
                else splintr.Tokenizer.from_pretrained(bundled)
            )
        except (OSError, ValueError) as error:
            raise Internal("the model's tokenizer cannot be loaded") from error
        if self._vocabulary.encode_ordinary(""):
            raise Internal("the model's tokenizer adds tokens of its own to every text")
        self._cuttable = self._vocabulary.family == "BPE"

    def encode(self, text: str) -> TokenIds:
        # The library holds the interpreter lock: other threads get their turn between pieces.
        return b"".join(
            array("I", self._vocabulary.encode_ordinary(piece)).tobytes()
            for piece in (pieces(text) if self._cuttable else (text,))
        )

    def special(self, name: str) -> int:
        found = self.find(name)
        if found is None:
            raise Internal(f"the model's tokenizer has no {name}")
        return found

    def find(self, name: str) -> int | None:
        found = self._vocabulary.special_token_id(name)
        if found is not None:
            return int(found)
        # Some vocabularies read markers that they do not list.
        ids = self._vocabulary.encode(name)
        is_marker = len(ids) == 1 and self._vocabulary.encode_ordinary(name) != ids
        return int(ids[0]) if is_marker else None

    def markers(self, *others: str) -> dict[str, int]:
        listed = dict(self._vocabulary.special_tokens())
        found = {name: self.find(name) for name in others if name and name not in listed}
        return listed | {name: id for name, id in found.items() if id is not None}


def pieces(text: str, characters: int = _CHUNK_CHARACTERS) -> list[str]:
    """`text` in pieces whose ids put together are the ids of the whole.

    A piece has at least `characters`; it is longer when the text offers no place to cut.
    """
    out: list[str] = []
    start = 0
    while len(text) - start > characters:
        cut = _WORD_ENDS.search(text, start + characters)
        if cut is None:
            break
        out.append(text[start : cut.start()])
        start = cut.start()
    out.append(text[start:] if start else text)
    return out


@lru_cache(maxsize=8)
def load_tokenizer(path: str) -> Tokenizer:
    """The tokenizer of that file, loaded once in this process. Raises Internal."""
    return VocabularyTokenizer(path)


def pack(*ids: int) -> TokenIds:
    return array("I", ids).tobytes()
