"""What a text must contain for a regular expression to match it. Pure.

Looking for a few words is a hundred times cheaper than searching for what may stand around them,
so an expression without any of its needles in the text need not be tried. The needles are lower
case, for a lower-cased text. Only the plain part of the syntax is understood; whatever else there
is in an expression merely yields no needle.
"""

import re

_TOKEN = re.compile(
    r"(?P<group>\((?:\?:)?(?!\?))|(?P<other>\(\?)|(?P<end>\))|(?P<or>\|)"
    r"|(?P<class>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<times>[?*+]\??|\{[^}]*\}\??)"
    r"|\\(?P<escaped>[^\w\s])|(?P<special>\\.|[.^$])|(?P<plain>.)",
    re.DOTALL,
)
_BEYOND = re.compile(r"\\[xuUN0-9]")
"""Characters by their number, and repetitions of a group: not understood here."""
_FOLDS = {"\u0130": "i", "\u0131": "i", "\u017f": "s", "\u212a": "k"}
"""What an expression that ignores case takes for these letters, and `lower` does not."""

Needles = frozenset[str]
"""One of these is there, or the expression does not match; none: nothing is known."""

_NONE: Needles = frozenset()


def needles(expression: re.Pattern[str]) -> Needles:
    """The best that can be said of an expression: the longest words it cannot do without."""
    pattern = expression.pattern
    if expression.flags & re.VERBOSE or _BEYOND.search(pattern):
        return _NONE
    return _alternatives(list(_TOKEN.finditer(pattern)))[0]


def lowered(text: str) -> str:
    """`text` as needles are looked for in it."""
    if not text.isascii():
        for odd, letter in _FOLDS.items():
            text = text.replace(odd, letter)
    return text.lower()


def may_match(wanted: Needles, lowered_text: str) -> bool:
    """Can an expression with these needles match the text that was `lowered`?"""
    return not wanted or any(needle in lowered_text for needle in wanted)


def _alternatives(tokens: list[re.Match[str]]) -> tuple[Needles, list[re.Match[str]]]:
    """Up to the end of the group; and what follows it."""
    every: list[Needles] = []
    while True:
        found, tokens = _sequence(tokens)
        every.append(found)
        if not tokens or tokens[0].lastgroup != "or":
            break
        tokens = tokens[1:]
    return (frozenset().union(*every) if all(every) else _NONE), tokens


def _sequence(tokens: list[re.Match[str]]) -> tuple[Needles, list[re.Match[str]]]:
    best, word = _NONE, ""
    while tokens and tokens[0].lastgroup not in ("or", "end"):
        token, tokens = tokens[0], tokens[1:]
        found = _NONE
        if token.lastgroup in ("group", "other"):
            found, tokens = _alternatives(tokens)
            tokens = tokens[1:]
            if token.lastgroup == "other":
                found = _NONE  # what is looked at around, or a flag
        times = tokens[0].group() if tokens and tokens[0].lastgroup == "times" else ""
        letter = token.group("plain") or token.group("escaped") or ""
        if letter.isascii() and letter and not times:
            word += letter.lower()
            continue
        if times:
            tokens = tokens[1:]
        if times and times[0] != "+":
            found, letter = _NONE, ""
        letter = letter if letter.isascii() else ""
        best = _better(_better(best, word + letter.lower()), *found)
        word = ""
    return _better(best, word), tokens


def _better(best: Needles, *found: str) -> Needles:
    """Of two sets, the one whose shortest needle is longer."""
    return max(best, frozenset(filter(None, found)), key=_shortest)


def _shortest(found: Needles) -> int:
    return min(map(len, found), default=0)
