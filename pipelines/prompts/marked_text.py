"""Markers in text that arrives in pieces, and the tokens of what a model thought."""

from collections.abc import Sequence

from msgspec.structs import replace

from turnwire.pipelines.messages import Counts


def undecided(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end may be the beginning of a marker."""
    longest = max(map(len, markers)) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(marker.startswith(tail) for marker in markers):
            return length
    return 0


class ReasoningCount:
    """Adds the tokens of reasoning to an engine's counts, which does not tell them apart.

    An event in which a thought begins or ends counts in full: markers are part of the thought.
    """

    def __init__(self) -> None:
        self._output_tokens = 0
        self._reasoning_tokens = 0

    def counts(self, given: Counts, *, thinking: bool) -> Counts:
        """`thinking`: was the event of these counts one of reasoning?"""
        if thinking:
            self._reasoning_tokens += given.output_tokens - self._output_tokens
        self._output_tokens = given.output_tokens
        return replace(given, reasoning_tokens=self._reasoning_tokens)
