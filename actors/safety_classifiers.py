"""The classifiers of the safety pool: rule scanners, and a trained model for toxicity.

Each looks at one chunk and adds to the findings. Blocking, called in threads; both are safe to
share between threads. Neither keeps, logs or reports any text it has seen.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any, Literal, NamedTuple, Protocol

from glin_profanity.scanners import (  # type: ignore[import-untyped]  # ships no types
    INJECTION_PATTERNS,
    PII_PATTERNS,
    SECRET_PATTERNS,
)

from turnwire.pipelines.needles import Needles, lowered, may_match, needles
from turnwire.pipelines.protocol.errors import Internal
from turnwire.pipelines.safety import (
    INJECTION_WEIGHTS,
    OWN_INJECTION_RULES,
    PII_RULES,
    SECRET_ENTROPY_BITS,
    Findings,
    counts_as_pii,
    counts_as_secret,
    entropy_bits,
    passages,
)

Name = Literal["rules", "toxicity"]


class Classifier(Protocol):
    def look(self, chunk: str, findings: Findings) -> None:
        """Add what is found in one chunk."""


_KINDS = bytes(
    ord("0" if chr(c).isdigit() else "A" if chr(c).isupper() else "a" if chr(c) in "+/" else " ")
    if c < 128 and not chr(c).islower()
    else ord("a")
    for c in range(256)
)
"""Bytes by their kind: digits, capitals, and what else a secret is written with."""
_SOLID = bytes(ord(" ") if kind == ord(" ") else ord("a") for kind in _KINDS)
SHAPES = {
    "SEC-GEN-004": (_SOLID, b"a" * 32),
    "SEC-GEN-005": (_SOLID, b"a" * 32),
    "PII-SSN-001": (_KINDS, b"000"),
    "PII-IBAN-001": (_KINDS, b"AA00"),
}
"""What must be in a text, by kinds, for these rules to match. Theirs took most of the time: code is
full of the words that the first two begin with, and the others have none."""


def shaped(chunk: str) -> frozenset[str]:
    """Those of `SHAPES` that may match."""
    data = chunk.encode("utf-8", "surrogatepass")
    kinds = {table: data.translate(table) for table in (_KINDS, _SOLID)}
    return frozenset(id for id, (table, shape) in SHAPES.items() if shape in kinds[table])


class _Rule(NamedTuple):
    id: str
    pattern: re.Pattern[str]
    needles: Needles
    entry: Any
    """The scanner package's, which has no types; None for a rule of ours."""


def _rule(id: str, pattern: re.Pattern[str], entry: object = None) -> _Rule:
    return _Rule(id, pattern, needles(pattern), entry)


class Rules:
    """Prompt injection, secrets and personal numbers, by the scanner package's patterns.

    A pattern is only tried on text that has a word it cannot do without.
    """

    def __init__(self) -> None:
        injection = {id: _rule(id, pattern) for id, pattern in OWN_INJECTION_RULES.items()}
        for entry in INJECTION_PATTERNS:
            if entry.id in INJECTION_WEIGHTS:
                injection[entry.id] = _rule(entry.id, entry.pattern)
        self._injection = tuple(injection.values())
        self._pii = [
            _rule(entry.id, entry.pattern, entry) for entry in PII_PATTERNS if entry.id in PII_RULES
        ]
        self._secrets = [_rule(entry.id, entry.pattern, entry) for entry in SECRET_PATTERNS]
        missing = INJECTION_WEIGHTS.keys() - injection.keys()
        missing |= PII_RULES - {rule.id for rule in self._pii}
        if missing:
            raise Internal(f"glin-profanity does not know the rules {sorted(missing)}")

    def look(self, chunk: str, findings: Findings) -> None:
        within = lowered(chunk)
        shapeless = SHAPES.keys() - shaped(chunk)
        for rule in self._injection:
            if (
                rule.id not in findings.injection
                and may_match(rule.needles, within)
                and rule.pattern.search(chunk)
            ):
                findings.injection.add(rule.id)
        if not findings.secret:
            findings.secret = any(
                _is_secret(rule, match)
                for rule, match in _matches(self._secrets, chunk, within, shapeless)
            )
        if not findings.pii:
            findings.pii = any(
                _is_pii(rule, match)
                for rule, match in _matches(self._pii, chunk, within, shapeless)
            )


def _matches(
    rules: Iterable[_Rule], chunk: str, within: str, shapeless: Set[str]
) -> Iterator[tuple[_Rule, re.Match[str]]]:
    for rule in rules:
        if rule.id in shapeless:
            continue
        if may_match(rule.needles, within):
            for match in rule.pattern.finditer(chunk):
                yield rule, match


def _is_secret(rule: _Rule, match: re.Match[str]) -> bool:
    """Where the package asks for it, only what looks random: its first group, if it has one."""
    token = match.group(1) if match.lastindex else match.group(0)
    if rule.entry.entropy_check and entropy_bits(token) < SECRET_ENTROPY_BITS:
        return False
    return counts_as_secret(rule.id, match.group(0))


def _is_pii(rule: _Rule, match: re.Match[str]) -> bool:
    found, valid = match.group(0), rule.entry.validator
    return counts_as_pii(rule.id, found) and (valid is None or valid(found))


class Toxicity:
    """The trained classifier of `alt-profanity-check`; loading it takes about two seconds."""

    def __init__(self) -> None:
        try:
            from profanity_check import (  # type: ignore[import-untyped]  # ships no types
                predict_prob,
            )
        except ImportError as error:
            raise Internal(
                "the classifier `toxicity` is switched on, but its packages are missing: "
                "install turnwire[toxicity]"
            ) from error
        self._predict = predict_prob

    def look(self, chunk: str, findings: Findings) -> None:
        if pieces := passages(chunk):
            found = max(float(score) for score in self._predict(pieces))
            findings.toxicity = max(findings.toxicity, found)


CLASSIFIERS: dict[Name, Callable[[], Classifier]] = {"rules": Rules, "toxicity": Toxicity}


def load_classifiers(names: tuple[Name, ...]) -> list[Classifier]:
    """Raises Internal when one cannot be loaded."""
    return [CLASSIFIERS[name]() for name in names]
