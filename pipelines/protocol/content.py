"""Content of items: a string or a list of parts, to the text a model can read."""

from typing import Any

import msgspec
from msgspec import Raw

from turnwire.pipelines.protocol.codec import opening, read
from turnwire.pipelines.protocol.errors import InvalidRequest

NOTE = " omitted: this model reads text only]"
"""Ends what is written in place of a part that is not text."""

_TEXT_MEMBER = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: Any = None
    refusal: Any = None


_strings = msgspec.json.Decoder(str)
_lists = msgspec.json.Decoder(list[Raw])
_parts = msgspec.json.Decoder(_Part)


def content_text(raw: Raw, at: str) -> str:
    """The text of a content field, its parts a line each.

    A part that is not text leaves a note in its place: a model that reads text only must not
    answer as if it had seen an image. Raises InvalidRequest about `at`.
    """
    return content_of(raw, at)[0]


def content_of(raw: Raw, at: str) -> tuple[str, int]:
    """The same, and how many of its parts are not text."""
    start = opening(raw)
    if start == b'"':
        return read(_strings.decode, raw, at), 0
    if start != b"[":
        raise InvalidRequest(f"Invalid '{at}': expected string or array of parts.", at)
    texts: list[str] = []
    unread = 0
    for index, part in enumerate(read(_lists.decode, raw, at)):
        text = _part_text(part, f"{at}[{index}]")
        unread += isinstance(text, _Note)
        texts.append(text)
    return "\n".join(texts), unread


class _Note(str):
    """What stands for a part that is not text."""

    __slots__ = ()


def _part_text(raw: Raw, at: str) -> str:
    part = read(_parts.decode, raw, at)
    member = _TEXT_MEMBER.get(part.type)
    if member is None:
        return _Note(f"[{part.type[:64]}{NOTE}")
    text = part.refusal if member == "refusal" else part.text
    if not isinstance(text, str):
        raise InvalidRequest(f"Invalid '{at}.{member}': expected string.", f"{at}.{member}")
    return text
