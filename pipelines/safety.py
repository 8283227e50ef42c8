"""What screening means: which text is looked at, which findings count, and the verdict. Pure.

The classifiers themselves (rule scanners, a trained model) are the shell's. Most of what an agent
sends is code, logs and tool output, so a rule counts here only if such text does not trip it:
role headings, escapes, base64, IP and mail addresses are ordinary and weigh nothing.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from turnwire.pipelines.messages import Screened

Category = Literal["prompt_injection", "secret", "pii", "toxicity"]

CHUNK_CHARACTERS = 8192
"""Scanned at once: bounds how long one regular expression can hold the interpreter (about 1 ms)."""
OVERLAP_CHARACTERS = 256
"""Repeated at the start of the next chunk, so that a phrase across the border is seen whole."""
PASSAGE_CHARACTERS = 512
"""What the trained classifier judges at once: longer text thins out a single insult."""

INJECTION_WEIGHTS = {
    "PI-001": 1.0,
    "PI-002": 0.6,
    "PI-003": 1.0,
    "PI-004": 0.4,
    "PI-007": 0.4,
    "PI-008": 0.6,
    "PI-009": 0.4,
    "PI-010": 0.2,
    "PI-011": 1.0,
    "PI-012": 0.6,
    "PI-013": 1.0,
    "PI-015": 1.0,
    "PI-016": 0.4,
    "PI-017": 1.0,
    "PI-018": 0.6,
    "PI-019": 0.6,
    "PI-021": 0.6,
    "PI-022": 0.4,
    "PI-023": 0.8,
    "PI-025": 0.4,
    "PI-026": 0.8,
    "PI-045": 0.8,
    "PI-047": 0.6,
    "PI-050": 0.8,
    "TW-001": 1.0,
    "TW-002": 0.6,
}
"""Rules of the scanner package by id, and two of ours. One that is not listed is not scanned."""

OWN_INJECTION_RULES = {
    "TW-001": re.compile(
        r"\b(?:ignore|disregard|forget)\s+(?:all\s+|any\s+)?(?:of\s+)?(?:your|my|the|these)\s+"
        r"(?:previous|prior|earlier|above|preceding|original|system)\s+"
        r"(?:system\s+)?(?:instructions?|prompts?|guidelines|directions|directives)\b",
        re.IGNORECASE,
    ),
    "TW-002": re.compile(
        r"\b(?:disregard|ignore|bypass)\s+your\s+(?:safety\s+)?(?:guidelines|rules|restrictions)\b",
        re.IGNORECASE,
    ),
}

PII_RULES = frozenset({"PII-SSN-001", "PII-CC-001", "PII-CC-003", "PII-IBAN-001"})
"""Numbers that identify a person and can be checked; mail and IP addresses fill every log."""

_ORDINARY_IN_CODE = frozenset({"SEC-VAULT-002"})
"""Its pattern, `s.` and 24 letters, is any attribute of a long name."""

INJECTION_FLAG_AT = 0.8
TOXICITY_FLAG_AT = 0.9

SECRET_ENTROPY_BITS = 4.0
"""A character, at least, of what is taken for random."""

_CARD = re.compile(r"\d{13,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{4}|\d{4}([ -])\d{6}\2\d{5}")


@dataclass(frozen=True)
class Excerpt:
    """The text one turn is screened by. `complete`: nothing was left out."""

    chunks: tuple[str, ...]
    complete: bool


def excerpt(texts: tuple[str, ...], max_bytes: int) -> Excerpt:
    """The first `max_bytes` of the texts (UTF-8), in pieces that are scanned one by one."""
    chunks: list[str] = []
    room = max_bytes
    for text in texts:
        size = len(text) if text.isascii() else len(text.encode(errors="replace"))
        if size > room:
            head = text[:room].encode(errors="replace")[:room]
            chunks += _chunks(head.decode(errors="ignore"))
            return Excerpt(tuple(chunks), complete=False)
        chunks += _chunks(text)
        room -= size
    return Excerpt(tuple(chunks), complete=True)


def _chunks(text: str) -> list[str]:
    step = CHUNK_CHARACTERS - OVERLAP_CHARACTERS
    last = max(1, len(text) - OVERLAP_CHARACTERS)
    return [text[at : at + CHUNK_CHARACTERS] for at in range(0, last, step) if text]


def passages(chunk: str) -> list[str]:
    """The pieces the trained classifier is given; blank ones are left out."""
    cuts = range(0, len(chunk), PASSAGE_CHARACTERS)
    pieces = (chunk[at : at + PASSAGE_CHARACTERS] for at in cuts)
    return [piece for piece in pieces if not piece.isspace()]


def counts_as_pii(rule: str, matched: str) -> bool:
    """Is a match of a PII rule more than digits that happen to stand in a table?"""
    if rule == "PII-SSN-001":
        return "-" in matched
    if rule.startswith("PII-CC"):
        return _CARD.fullmatch(matched) is not None
    return True


def counts_as_secret(rule: str, matched: str) -> bool:
    """Is a match of a secret rule more than an attribute or the placeholder of a manual?"""
    return rule not in _ORDINARY_IN_CODE and not ("<" in matched and ">" in matched)


def entropy_bits(text: str) -> float:
    """Shannon's, of a character of the text."""
    shares = (count / len(text) for count in Counter(text).values())
    return -sum(share * math.log2(share) for share in shares)


@dataclass
class Findings:
    """What the classifiers have found so far in one turn. A rule counts once, however often."""

    injection: set[str] = field(default_factory=set)
    secret: bool = False
    pii: bool = False
    toxicity: float = 0.0
    complete: bool = True

    def verdict(self) -> Screened:
        injection = min(1.0, sum(INJECTION_WEIGHTS[rule] for rule in self.injection))
        flags: dict[Category, bool] = {
            "prompt_injection": injection >= INJECTION_FLAG_AT,
            "secret": self.secret,
            "pii": self.pii,
            "toxicity": self.toxicity >= TOXICITY_FLAG_AT,
        }
        categories = tuple(category for category, flagged in flags.items() if flagged)
        sure = 1.0 if self.secret or self.pii else 0.0
        return Screened(
            flagged=bool(categories),
            categories=categories,
            score=round(max(injection, self.toxicity, sure), 3),
            complete=self.complete,
        )
