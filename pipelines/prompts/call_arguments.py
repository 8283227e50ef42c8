"""The arguments of a call while a model writes them: valid JSON, or the call has failed. Pure.

What was written has been sent by then, so a repair only escapes what is passing or adds at the end.
"""

import json

_CLOSERS = {"{": "}", "[": "]"}


class ArgumentText:
    """One JSON value, fed in pieces of any length."""

    def __init__(self) -> None:
        self.complete = False
        self._pieces: list[str] = []
        self._open: list[str] = []
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> tuple[str, str]:
        """What of `text` belongs to the value, as it may be sent, and what stands behind it.

        Line ends and the like inside of strings, which models forget to escape, are escaped.
        """
        out: list[str] = []
        for at, character in enumerate(text):
            if self._ends_before(character, out):
                return self._keep(out), text[at:]
            out.append(self._taken(character))
            if self.complete:
                return self._keep(out), text[at + 1 :]
        return self._keep(out), ""

    @property
    def valid(self) -> bool:
        return _parses("".join(self._pieces))

    def repair(self) -> str | None:
        """What to add to a value that was broken off, so that it is one; None: nothing helps."""
        text = "".join(self._pieces)
        end = '"' if self._in_string else ""
        if self._escaped:
            end = "\\" + end
        closers = "".join(_CLOSERS[opener] for opener in reversed(self._open))
        for added in (end + closers, f"{end}null{closers}", f"{end}: null{closers}"):
            if _parses(text + added):
                return added
        return None

    def _keep(self, out: list[str]) -> str:
        piece = "".join(out)
        self._pieces.append(piece)
        return piece

    def _ends_before(self, character: str, taken: list[str]) -> bool:
        """A number or a word ends where something else begins."""
        if self._open or self._in_string or character not in ",} \n\r\t":
            return False
        self.complete = any(piece.strip() for piece in (*self._pieces, *taken))
        return self.complete

    def _taken(self, character: str) -> str:
        if self._in_string:
            return self._in_text(character)
        if character == '"':
            self._in_string = True
        elif character in _CLOSERS:
            self._open.append(character)
        elif character in "}]" and self._open:
            self._open.pop()
            self.complete = not self._open
        return character

    def _in_text(self, character: str) -> str:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            self.complete = not self._open
        elif character < " ":
            return json.dumps(character)[1:-1]
        return character


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
