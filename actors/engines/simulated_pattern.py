"""A text that a simple regular expression matches: for `pattern` in a tool's JSON schema. Pure.

Understood: literals, escapes, classes with ranges and negation, groups, alternatives, the usual
quantifiers, `^` and `$` around a whole alternative. Everything else is refused, so that what is
found matches by construction and no client's expression is ever executed.
"""

import re
import string
from dataclasses import dataclass

_MAX_PATTERN_CHARACTERS = 1024
_MAX_CHARACTERS = 4096
_MAX_DEPTH = 32
_PRINTABLE = string.ascii_lowercase + string.ascii_uppercase + string.digits + " _-.,:;/@#+=~!?*()"
_CLASSES = {
    "d": string.digits,
    "w": string.ascii_lowercase + string.ascii_uppercase + string.digits + "_",
    "s": " \t\n",
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_COUNTED = re.compile(r"\{(\d+)(,(\d*))?\}")


class UnsupportedPattern(ValueError):
    """The expression, or what it asks for, is beyond this module."""


def matching(pattern: str, least: int = 0, most: int | None = None) -> str:
    """A text that `pattern` is found in, of `least` to `most` characters.

    Raises `UnsupportedPattern` when none was found.
    """
    if len(pattern) > _MAX_PATTERN_CHARACTERS:
        raise UnsupportedPattern(pattern)
    for extra in (0, 1, 2, 4, least, 2 * least):
        reader = _Reader(pattern, extra)
        found = reader.read()
        if not reader.closed:
            found = found.ljust(least, "x")
        if least <= len(found) and (most is None or len(found) <= most):
            return found
    raise UnsupportedPattern(pattern)


@dataclass
class _Reader:
    """One pass over the expression. Unbounded quantifiers repeat `extra` times more."""

    pattern: str
    extra: int
    at: int = 0
    depth: int = 0
    passed: bool = False
    """The first of the outermost alternatives, the one taken, is over."""
    closed: bool = False
    """The alternative taken ends with `$`, so nothing may follow what was read."""

    def read(self) -> str:
        text = self._alternatives()
        if self.at < len(self.pattern):
            raise UnsupportedPattern(self.pattern)
        return text

    def _peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _take(self) -> str:
        taken = self._peek()
        if not taken:
            raise UnsupportedPattern(self.pattern)
        self.at += 1
        return taken

    def _alternatives(self) -> str:
        chosen = self._sequence()
        while self._peek() == "|":
            self.at += 1
            self.passed = self.passed or not self.depth
            self._sequence()
        return chosen

    def _sequence(self) -> str:
        pieces: list[str] = []
        while (char := self._peek()) and char not in "|)":
            if char in "^$":
                self._anchor(first=not pieces)
                continue
            piece = self._atom()
            repeats = self._repeats()
            if sum(map(len, pieces)) + len(piece) * repeats > _MAX_CHARACTERS:
                raise UnsupportedPattern(self.pattern)
            pieces.append(piece * repeats)
        return "".join(pieces)

    def _anchor(self, *, first: bool) -> None:
        char = self._take()
        last = self._peek() in ("", "|")
        if self.depth or not (first if char == "^" else last):
            raise UnsupportedPattern(self.pattern)
        if char == "$" and not self.passed:
            self.closed = True

    def _atom(self) -> str:
        match char := self._take():
            case "*" | "+" | "?" | "{":
                raise UnsupportedPattern(self.pattern)
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return "x"
            case "\\":
                return self._escape()[0]
            case _:
                return char

    def _group(self) -> str:
        if self.pattern.startswith("?:", self.at):
            self.at += 2
        elif name := re.compile(r"\?P?<[A-Za-z_]\w*>").match(self.pattern, self.at):
            self.at = name.end()
        elif self._peek() == "?":
            raise UnsupportedPattern(self.pattern)
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise UnsupportedPattern(self.pattern)
        inner = self._alternatives()
        self.depth -= 1
        if self._take() != ")":
            raise UnsupportedPattern(self.pattern)
        return inner

    def _escape(self) -> str:
        """All characters the escape stands for, the most readable first."""
        char = self._take()
        if char in _CLASSES:
            return _CLASSES[char]
        if char.lower() in _CLASSES:
            return "".join(c for c in _PRINTABLE if c not in _CLASSES[char.lower()])
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isalnum():
            raise UnsupportedPattern(self.pattern)
        return char

    def _class(self) -> str:
        negated = self._peek() == "^"
        self.at += negated
        members = self._member()
        while self._peek() != "]":
            members += self._member()
        self.at += 1
        if negated:
            members = "".join(c for c in _PRINTABLE if c not in members)
        if not members:
            raise UnsupportedPattern(self.pattern)
        return next((c for c in members if c.isalnum()), members[0])

    def _member(self) -> str:
        first = self._take()
        low = self._escape() if first == "\\" else first
        following = self.pattern[self.at : self.at + 2]
        if len(low) != 1 or not following.startswith("-") or following == "-]":
            return low
        self.at += 1
        last = self._take()
        high = self._escape() if last == "\\" else last
        return "".join(map(chr, range(ord(low), min(ord(high[:1]), ord(low) + 512) + 1)))

    def _repeats(self) -> int:
        least, bounded = 1, True
        if counted := _COUNTED.match(self.pattern, self.at):
            self.at = counted.end()
            least = int(counted[1])
            bounded = counted[2] is None or bool(counted[3])
        elif (char := self._peek()) and char in "*+?":
            self.at += 1
            least, bounded = int(char == "+"), char == "?"
        else:
            return 1
        if (lazy := self._peek()) and lazy in "?+":
            self.at += 1
        if least > _MAX_CHARACTERS:
            raise UnsupportedPattern(self.pattern)
        return least if bounded else least + self.extra
