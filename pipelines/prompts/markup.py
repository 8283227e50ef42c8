"""Text with control markers in it, as a format writes it, to token ids."""

from turnwire.pipelines.messages import TokenIds
from turnwire.pipelines.prompts.tokenizer import Tokenizer, pack


class Marker(str):
    """A control marker the format writes itself; the vocabulary must have it as one token."""

    __slots__ = ()


class Tag(Marker):
    """A marker that is one token in some vocabularies and plain text in others."""

    __slots__ = ()


class Markup:
    """Encodes parts: markers by name, and every run of text between them as one text.

    What people typed is a plain string among the parts, so whatever it looks like it stays text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: dict[str, int | None] = {}

    def ids(self, *parts: str) -> TokenIds:
        """Raises Internal for a `Marker` that the vocabulary does not have."""
        out: list[TokenIds] = []
        run: list[str] = []
        for part in parts:
            marker = self.find(part) if isinstance(part, Marker) else None
            if marker is None:
                run.append(part)
                continue
            out += (self._text(run), pack(marker))
            run = []
        out.append(self._text(run))
        return b"".join(out)

    def find(self, marker: Marker) -> int | None:
        """Its id; None for a `Tag` that is plain text here. Raises Internal."""
        if marker not in self._ids:
            find = self._tokenizer.find if isinstance(marker, Tag) else self._tokenizer.special
            self._ids[marker] = find(marker)
        return self._ids[marker]

    def _text(self, run: list[str]) -> TokenIds:
        text = "".join(run)
        return self._tokenizer.encode(text) if text else b""
