"""From what a token engine sampled to text, reasoning and calls, as its format marks them."""

from collections.abc import Callable
from typing import Protocol

from turnwire.pipelines.messages import EngineEvent, GenerationFinished, Model
from turnwire.pipelines.prompts.harmony_output import HarmonyOutput
from turnwire.pipelines.prompts.hermes_output import HermesOutput
from turnwire.pipelines.prompts.llama3_output import Llama3Output
from turnwire.pipelines.prompts.thinking_output import ThinkingOutput
from turnwire.pipelines.protocol.errors import Internal

Piece = EngineEvent
"""A parser answers in the words of engines that tell text, reasoning and calls apart themselves."""


class OutputParser(Protocol):
    """Parses one answer. The ids of all pieces together are the ids that were fed, in order."""

    def feed(self, event: EngineEvent) -> list[Piece]:
        """What is certain after this event. Text that may be part of a marker is held back."""

    def finish(self) -> list[Piece]:
        """What was held back, as text: nothing more comes."""


CallIds = Callable[[int], str]
"""The id of a call, by its number in the answer."""


class PlainOutput:
    """Everything is the text of a message, or the engine has told its parts apart already."""

    def feed(self, event: EngineEvent) -> list[Piece]:
        return [event]

    def finish(self) -> list[Piece]:
        return []


def parsed(parser: OutputParser, batch: list[EngineEvent]) -> list[Piece]:
    """What is certain after what an engine produced; at the ending, all of it."""
    if type(parser) is PlainOutput:
        return batch
    pieces: list[Piece] = []
    for event in batch:
        if type(event) is GenerationFinished:
            pieces += parser.finish()
        pieces += parser.feed(event)
    return pieces


CALL_PARSERS: dict[str, Callable[[CallIds], OutputParser]] = {
    "chatml": HermesOutput,
    "gemma": HermesOutput,
    "hermes": HermesOutput,
    "jinja": HermesOutput,
    "llama3": Llama3Output,
    "qwen3": HermesOutput,
}
"""By prompt format: those whose answers are plain text but for calls."""

THINKING = frozenset({"jinja", "qwen3"})
"""Prompt formats whose answers may begin with a thought."""

SHOWS_CONTROL = frozenset({"harmony", "hermes", "llama3", "qwen3"})
"""Prompt formats whose parsers need control tokens to be shown in the text."""


def output_parser(
    model: Model, response_id: str = "", *, calls: bool = True, thinking: bool = False
) -> OutputParser:
    """A parser for one answer of that model. Raises Internal.

    `calls`: may there be any? `thinking`: has the prompt begun a thought?
    """
    name = model.prompt_format
    suffix = response_id.partition("_")[2]

    def call_id(index: int) -> str:
        return f"call_{suffix}{index:02x}"

    if name == "harmony":
        return HarmonyOutput(call_id)
    if name and name not in CALL_PARSERS:
        raise Internal(f"no prompt format is called {name!r}")
    rest = CALL_PARSERS[name](call_id) if name and calls else PlainOutput()
    return ThinkingOutput(rest, thinking=thinking) if name in THINKING else rest
