import re

import pytest
from glin_profanity.scanners import (  # type: ignore[import-untyped]  # ships no types
    INJECTION_PATTERNS,
    PII_PATTERNS,
    SECRET_PATTERNS,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.pipelines.needles import lowered, may_match, needles
from turnwire.pipelines.safety import INJECTION_WEIGHTS, OWN_INJECTION_RULES, PII_RULES

_ENTRIES = [
    *(entry for entry in INJECTION_PATTERNS if entry.id in INJECTION_WEIGHTS),
    *(entry for entry in PII_PATTERNS if entry.id in PII_RULES),
    *SECRET_PATTERNS,
]
RULES = {entry.id: entry.pattern for entry in _ENTRIES} | OWN_INJECTION_RULES


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=5, database=None, deadline=None)
@given(data=st.data())
def test_whatever_a_rule_matches_has_one_of_its_needles(rule: str, data: st.DataObject) -> None:
    pattern = RULES[rule]
    text = data.draw(st.from_regex(pattern))
    assert pattern.search(text)
    assert may_match(needles(pattern), lowered(text))


def test_nearly_every_rule_has_needles() -> None:
    assert sum(bool(needles(pattern)) for pattern in RULES.values()) >= 0.9 * len(RULES)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"ignore\s+all", {"ignore"}),
        (r"(?:key|token)['\s:=]+[a-f]{4}", {"key", "token"}),
        (r"(?:key|[0-9]+)=x", {"=x"}),
        (r"ab?c+d", {"a"}),
        (r"colou?r", {"colo"}),
        (r"(?=secret)s", {"s"}),
        (r"(?:word)?x", {"x"}),
        (r"([^)(]|\))(\(|long)z", {"(", "long"}),
        (r"one|two", {"one", "two"}),
        (r"one|.", set()),
        (r"\x41bcdef", set()),
        (r"[a-z]+", set()),
    ],
)
def test_a_needle_is_what_the_expression_cannot_do_without(
    pattern: str, expected: set[str]
) -> None:
    assert needles(re.compile(pattern)) == expected


def test_an_expression_with_free_spacing_has_no_needles() -> None:
    assert needles(re.compile("ig nore", re.VERBOSE)) == frozenset()


@pytest.mark.parametrize("text", ["\u0130GNORE", "\u0131gnore", "IGNORE", "tas\u212a", "di\u017fk"])
def test_letters_that_expressions_take_for_others_are_found(text: str) -> None:
    pattern = re.compile("ignore|task|disk", re.IGNORECASE)
    assert pattern.search(text)
    assert may_match(needles(pattern), lowered(text))
