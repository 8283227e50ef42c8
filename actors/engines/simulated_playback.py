"""A script, played token by token. Pure: how far to play is an argument."""

from typing import Final

from turnwire.actors.engines.simulated_script import Call, Part, Script, tokens
from turnwire.actors.engines.simulated_text import TOKEN_CHARACTERS
from turnwire.pipelines.messages import (
    CallProduced,
    Counts,
    EngineEvent,
    Finish,
    GenerationFinished,
    PromptEvaluated,
    ReasoningProduced,
    TextProduced,
)

MAX_STEP_TOKENS: Final = 4096
"""Tokens of one step at most: the distance between two points of cancel."""


class Playback:
    """One generation under way. `counts`: those of the evaluated prompt.

    `waited_us`: how long it had no place.
    """

    def __init__(
        self, script: Script, counts: Counts, max_output_tokens: int, waited_us: int = 0
    ) -> None:
        self.sent_tokens = 0
        self.finished = False
        self._script = script
        self._counts = counts
        self._waited_us = waited_us
        self._evaluated = False
        self._part = 0
        self._part_tokens = 0
        whole = sum(map(tokens, script.parts))
        self._end_tokens = min(whole, max_output_tokens)
        self._finish: Finish = script.finish if whole <= max_output_tokens else "length"

    @property
    def failing(self) -> bool:
        """Is the script's failure to strike now?"""
        failure = self._script.failure
        return failure is not None and self.sent_tokens >= failure.token and not self.finished

    def advance(self, due_tokens: int) -> list[EngineEvent]:
        """What happens until so many tokens are out, or the longest step is done.

        Nothing happens before the first token is due: then also the prompt is evaluated.
        """
        until = min(due_tokens, self.sent_tokens + MAX_STEP_TOKENS, self._end_tokens)
        if (failure := self._script.failure) is not None:
            until = min(until, failure.token)
        events: list[EngineEvent] = []
        if due_tokens and not self._evaluated:
            self._evaluated = True
            events.append(PromptEvaluated(self._counts, self._waited_us))
        while self.sent_tokens < until:
            events.append(self._produce(until - self.sent_tokens))
        if due_tokens and self.sent_tokens == self._end_tokens and not self.failing:
            self.finished = True
            events.append(GenerationFinished(self._finish, self._counts))
        return events

    def _produce(self, most: int) -> EngineEvent:
        part = self._script.parts[self._part]
        start, whole = self._part_tokens, tokens(part)
        step = min(most, whole - start)
        self._count(part, step)
        piece = part.passage.piece(start * TOKEN_CHARACTERS, (start + step) * TOKEN_CHARACTERS)
        done = self._part_tokens == whole
        if done:
            self._part, self._part_tokens = self._part + 1, 0
        if isinstance(part, Call):
            return CallProduced(part.index, part.call_id, part.name, piece, self._counts, done)
        produced = ReasoningProduced if part.reasoning else TextProduced
        return produced(piece, self._counts)

    def _count(self, part: Part, step: int) -> None:
        self.sent_tokens += step
        self._part_tokens += step
        reasoning = 0 if isinstance(part, Call) or not part.reasoning else step
        self._counts = Counts(
            self._counts.input_tokens,
            self._counts.cached_tokens,
            self.sent_tokens,
            self._counts.reasoning_tokens + reasoning,
        )
