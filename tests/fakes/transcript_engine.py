"""An engine that does what a transcript says, when it says it."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from scripted_ports import Batch

from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import (
    ContextLengthExceeded,
    Internal,
    Overloaded,
    RateLimitExceeded,
)

INPUT_TOKENS = 20

_FAILURES: dict[str, Callable[[], BaseException]] = {
    "overloaded": lambda: Overloaded("the worker is gone"),
    "internal": lambda: Internal("The worker had an internal error."),
    "rate_limit_exceeded": lambda: RateLimitExceeded("Please try again in 1s."),
    "context_length_exceeded": lambda: ContextLengthExceeded("The prompt is too long.", "input"),
    "bug": lambda: ValueError("secret"),
}


class _Answer:
    """What one response is to say, as far as the transcript has got."""

    def __init__(self) -> None:
        self.pending: asyncio.Queue[Batch | BaseException] = asyncio.Queue()
        self.output_tokens = 0
        self.calls = 0

    def counts(self, added: int = 0, reasoning: int = 0) -> m.Counts:
        self.output_tokens += added
        return m.Counts(INPUT_TOKENS, 0, self.output_tokens, reasoning)


class DirectedEngine:
    """`told` hears of streams that were left before their end."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told
        self._answers: defaultdict[str, _Answer] = defaultdict(_Answer)
        self._calls = 0
        self.open_streams = 0
        self.prompts: dict[str, m.Generate] = {}

    def direct(self, response_id: str, verb: str, words: str) -> None:
        """One directive; the batches it makes are streamed as soon as the response is there."""
        answer = self._answers[response_id]
        for made in self._made(answer, verb, words):
            answer.pending.put_nowait(made)

    def _made(self, answer: _Answer, verb: str, words: str) -> list[Batch | BaseException]:
        match verb:
            case "says":
                return [*self._made(answer, "text", words), *self._made(answer, "stop", "")]
            case "text":
                return [[m.TextProduced(orjson.loads(words), answer.counts(1))]]
            case "reasoning":
                return [[m.ReasoningProduced(orjson.loads(words), answer.counts(1, 1))]]
            case "call":
                return [self._call(answer, *words.split(" ", 1))]
            case "evaluated":
                return [[m.PromptEvaluated(answer.counts())], *self._made(answer, "stop", "")]
            case "missing":
                return [[m.PrefixMissing()]]
            case "stop" | "length" | "content_filter" | "cancelled":
                finish: Any = "tool_calls" if verb == "stop" and answer.calls else verb
                ending = m.GenerationFinished(finish, answer.counts())
                # What follows, if anything, is another generation of the same turn.
                answer.output_tokens = 0
                return [[ending]]
            case "fail":
                return [_FAILURES[words]()]
        raise AssertionError(f"there is no directive {verb!r}")

    def _call(self, answer: _Answer, name: str, arguments: str) -> Batch:
        """In two pieces, so that deltas are seen to add up."""
        self._calls += 1
        call = answer.calls, f"call_{self._calls}", name
        answer.calls += 1
        half = len(arguments) // 2
        return [
            m.CallProduced(*call, arguments[:half], answer.counts(1)),
            m.CallProduced(*call, arguments[half:], answer.counts(1), finished=True),
        ]

    async def count(self, worker: m.Endpoint, command: m.CountPrompt) -> m.TokenCount:
        """A token a byte."""
        return m.TokenCount(len(command.prompt.items))

    @asynccontextmanager
    async def generate(
        self, worker: m.Endpoint, command: m.Generate
    ) -> AsyncIterator[AsyncIterator[Batch]]:
        response_id = command.facts.response_id
        self.prompts[response_id] = command
        self.open_streams += 1
        ended = False

        async def batches() -> AsyncIterator[Batch]:
            nonlocal ended
            while not ended:
                batch = await self._answers[response_id].pending.get()
                if isinstance(batch, BaseException):
                    ended = True
                    raise batch
                ended = type(batch[-1]) in (m.GenerationFinished, m.PrefixMissing)
                yield batch

        try:
            yield batches()
        finally:
            self.open_streams -= 1
            if not ended:
                self._told(f"{response_id} stopped")
