"""From what a token engine sampled to text, reasoning and calls, as its format marks them."""

from typing import Protocol

from turnwire.pipelines.messages import EngineEvent, Model
from turnwire.pipelines.protocol.errors import Internal

Piece = EngineEvent
"""A parser answers in the words of engines that tell text, reasoning and calls apart themselves."""


class OutputParser(Protocol):
    """Parses one answer. The ids of all pieces together are the ids that were fed, in order."""

    def feed(self, event: EngineEvent) -> list[Piece]:
        """What is certain after this event. Text that may be part of a marker is held back."""

    def finish(self) -> list[Piece]:
        """What was held back, as text: nothing more comes."""


class PlainOutput:
    """Everything is the text of a message, or the engine has told its parts apart already."""

    def feed(self, event: EngineEvent) -> list[Piece]:
        return [event]

    def finish(self) -> list[Piece]:
        return []


PARSERS: dict[str, type[PlainOutput]] = {"": PlainOutput, "chatml": PlainOutput}
"""By prompt format; empty: models of the form `items`."""


def output_parser(model: Model) -> OutputParser:
    """A parser for one answer of that model. Raises Internal."""
    if model.prompt_format not in PARSERS:
        raise Internal(f"no prompt format is called {model.prompt_format!r}")
    return PARSERS[model.prompt_format]()
