"""A rule that is not tried for the look of a text would not have matched it."""

from hypothesis import given
from hypothesis import strategies as st

from turnwire.actors.safety_classifiers import SHAPES, Rules, shaped

PIECES = (
    *("key", "Token", "secret:", "password ", "=", "'", '"', " ", "\n", "-", "x", "+/"),
    *("a" * 31, "f0", "ab9F" * 8, "DEADbeef" * 5, "0", "12", "333", "45", "6789", "078-05-1120"),
    *("DE89", "AB", "DE89370400440532013000", "\u017f", "\u212a", "é", "日本", "\ud800"),
)
RULES = Rules()
PATTERNS = {rule.id: rule.pattern for rule in (*RULES._secrets, *RULES._pii) if rule.id in SHAPES}


def test_every_shape_is_of_a_rule() -> None:
    assert PATTERNS.keys() == SHAPES.keys()
    assert shaped("token='" + "ab9F" * 10 + "' 078-05-1120 DE89") == SHAPES.keys()
    assert shaped("def step(self, key): return table[key] if key in table else None") == set()


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_what_matches_has_the_shape(text: str) -> None:
    matching = {id for id, pattern in PATTERNS.items() if pattern.search(text)}
    assert matching <= shaped(text)
