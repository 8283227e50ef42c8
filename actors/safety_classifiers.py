"""The classifiers of the safety pool: rule scanners, and a trained model for toxicity.

Each looks at one chunk and adds to the findings. Blocking, called in threads; both are safe to
share between threads. Neither keeps, logs or reports any text it has seen.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from glin_profanity.scanners import (  # type: ignore[import-untyped]  # ships no types
    INJECTION_PATTERNS,
    PII_PATTERNS,
    SecretsScanner,
)

from turnwire.pipelines.protocol.errors import Internal
from turnwire.pipelines.safety import (
    INJECTION_WEIGHTS,
    OWN_INJECTION_RULES,
    PII_RULES,
    Findings,
    counts_as_pii,
    counts_as_secret,
    passages,
)

Name = Literal["rules", "toxicity"]


class Classifier(Protocol):
    def look(self, chunk: str, findings: Findings) -> None:
        """Add what is found in one chunk."""


class Rules:
    """Prompt injection, secrets and personal numbers, by the scanner package's patterns."""

    def __init__(self) -> None:
        self._injection = dict(OWN_INJECTION_RULES)
        for entry in INJECTION_PATTERNS:
            if entry.id in INJECTION_WEIGHTS:
                self._injection[entry.id] = entry.pattern
        self._pii = [entry for entry in PII_PATTERNS if entry.id in PII_RULES]
        missing = INJECTION_WEIGHTS.keys() - self._injection.keys()
        missing |= PII_RULES - {entry.id for entry in self._pii}
        if missing:
            raise Internal(f"glin-profanity does not know the rules {sorted(missing)}")
        self._secrets = SecretsScanner()

    def look(self, chunk: str, findings: Findings) -> None:
        for rule, pattern in self._injection.items():
            if rule not in findings.injection and pattern.search(chunk):
                findings.injection.add(rule)
        if not findings.secret:
            findings.secret = self._has_secret(chunk)
        if not findings.pii:
            findings.pii = self._has_pii(chunk)

    def _has_secret(self, chunk: str) -> bool:
        return any(
            counts_as_secret(match.pattern, chunk[match.start_index : match.end_index])
            for match in self._secrets.scan(chunk).matches
        )

    def _has_pii(self, chunk: str) -> bool:
        for entry in self._pii:
            for match in entry.pattern.finditer(chunk):
                found = match.group(0)
                if counts_as_pii(entry.id, found) and (
                    entry.validator is None or entry.validator(found)
                ):
                    return True
        return False


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
