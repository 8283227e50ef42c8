"""What the contract tests need: one case per engine, hiding the form of its prompts."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import orjson
import pytest
import splintr
import tokenizers

from turnwire.actors.engines.engine import Engine
from turnwire.actors.engines.llama import LlamaEngine
from turnwire.actors.engines.simulated import SimulatedEngine
from turnwire.pipelines.config import LlamaSettings, ModelSettings, SimulatedSettings
from turnwire.pipelines.messages import (
    Counts,
    EngineEvent,
    Facts,
    Generate,
    GenerationFinished,
    ItemPrompt,
    Model,
    Prompt,
    Sampling,
    TextProduced,
    TokenPrompt,
    next_key,
    root_key,
)

IM_START, IM_END, NEWLINE = 1, 2, 198
"""Ids of SmolLM2's ChatML."""


@dataclass
class Answer:
    """One generation as it was read."""

    prompt: Prompt
    events: list[EngineEvent] = field(default_factory=list)

    @property
    def ending(self) -> GenerationFinished:
        assert isinstance(self.events[-1], GenerationFinished)
        return self.events[-1]

    @property
    def counts(self) -> Counts:
        return self.ending.counts

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextProduced))

    @property
    def ids(self) -> "array[int]":
        parts = [e.ids for e in self.events if isinstance(e, TextProduced | GenerationFinished)]
        return array("I", b"".join(parts))


class EngineCase(Protocol):
    """How to make an engine and prompts for it."""

    model: str

    def engine(self, *, running: int, queued: int, window: int, **more: object) -> Engine:
        """`running` at once, `queued` more, prompts of up to `window` tokens; `more`: its own."""

    def prompt(self, text: str, after: Answer | None = None, tenant: str = "tenant") -> Prompt:
        """A user's message, after an earlier answer or as the first."""

    def long_answer(self) -> Facts:
        """Facts of a turn that goes on for as long as `max_output_tokens` lets it."""

    def long_text(self, tokens: int) -> str:
        """A message of more than so many tokens."""


@dataclass
class LlamaCase:
    """SmolLM2 on the CPU."""

    folder: Path
    model: str = "smollm2"
    made: LlamaEngine | None = None

    def engine(
        self, *, running: int = 2, queued: int = 8, window: int = 1024, **more: object
    ) -> LlamaEngine:
        settings = {"slots": running, "max_queued": queued, "context_tokens": window} | more
        model = Model(self.model, "tokens", aliases=("small",))
        self.made = LlamaEngine(model, LlamaSettings.model_validate(settings), self.folder)
        return self.made

    def encode(self, text: str) -> "array[int]":
        """As text of a user: control markers in it are text."""
        return array("I", splintr.from_json(self._path()).encode_ordinary(text))

    def decode(self, ids: "array[int]") -> str:
        """The text of ids, control tokens left out."""
        return tokenizers.Tokenizer.from_file(self._path()).decode(list(ids))

    def _path(self) -> str:
        assert self.made is not None, "the engine is made before its prompts"
        return self.made.models[0].tokenizer

    def prompt(self, text: str, after: Answer | None = None, tenant: str = "tenant") -> TokenPrompt:
        ids = array("I")
        prefix_key = b""
        if after is not None:
            prefix_key = after.prompt.key
            ids += after.ids
            ids += array("I", [NEWLINE] if ids[-1:] == array("I", [IM_END]) else [IM_END, NEWLINE])
        ids += array("I", [IM_START]) + self.encode(f"user\n{text}")
        ids += array("I", [IM_END, NEWLINE, IM_START]) + self.encode("assistant\n")
        key = next_key(prefix_key or root_key(tenant, self.model), ids.tobytes())
        return TokenPrompt(key, prefix_key, ids.tobytes())

    def long_answer(self) -> Facts:
        # At this temperature the end of the answer is as likely as any other of 49,152 tokens.
        return Facts("resp", "tenant", self.model, 10_000, Sampling(temperature=1000.0, seed=1))

    def long_text(self, tokens: int) -> str:
        return "word " * tokens


@dataclass
class SimulatedCase:
    """A simulated model at its own pace."""

    model: str = "sim-1000"

    def engine(
        self, *, running: int = 2, queued: int = 8, window: int = 1_000_000
    ) -> SimulatedEngine:
        limits = SimulatedSettings(max_ongoing=running, max_queued=queued)
        return SimulatedEngine(
            ModelSettings(
                name=self.model, engine="simulated", context_window=window, simulated=limits
            )
        )

    def prompt(self, text: str, after: Answer | None = None, tenant: str = "tenant") -> ItemPrompt:
        items: list[dict[str, object]] = []
        prefix_key = b""
        if after is not None:
            prefix_key = after.prompt.key
            items.append({"type": "message", "role": "assistant", "content": after.text})
        items.append({"type": "message", "role": "user", "content": text})
        added = orjson.dumps(items)
        key = next_key(prefix_key or root_key(tenant, self.model), added)
        return ItemPrompt(key, prefix_key, added, None if after else b'{"tools":[]}')

    def long_answer(self) -> Facts:
        metadata = {"sim.output_tokens": "100000"}
        return Facts("resp", "tenant", self.model, 1_000_000, metadata=metadata)

    def long_text(self, tokens: int) -> str:
        return "word " * tokens


@dataclass
class Bench:
    """Started engines of one test, closed after it, and short forms for using them."""

    case: EngineCase
    stack: AsyncExitStack
    engine: Engine = field(init=False)

    async def start(
        self, *, running: int = 2, queued: int = 8, window: int = 1024, **more: object
    ) -> Engine:
        self.engine = self.case.engine(running=running, queued=queued, window=window, **more)
        self.stack.push_async_callback(self.engine.close)
        await self.engine.start()
        return self.engine

    def command(
        self,
        prompt: Prompt,
        *,
        tenant: str = "tenant",
        max_output_tokens: int = 8,
        warm_up: bool = False,
        sampling: Sampling | None = None,
        grammar: str = "",
        logprobs: int | None = None,
    ) -> Generate:
        facts = Facts(
            "resp",
            tenant,
            self.case.model,
            max_output_tokens,
            sampling or Sampling(temperature=0.0),
            grammar=grammar,
            logprobs=logprobs,
        )
        return Generate(facts, prompt, warm_up)

    async def read(self, command: Generate) -> Answer:
        """The whole stream, each batch checked to hold something."""
        answer = Answer(command.prompt)
        async with aclosing(self.engine.generate(command)) as produced:
            async for batch in produced:
                assert batch, "an engine yields only what there is"
                answer.events += batch
        return answer

    async def say(
        self,
        text: str,
        after: Answer | None = None,
        max_output_tokens: int = 8,
        tenant: str = "tenant",
    ) -> Answer:
        """One turn of a conversation, greedy."""
        prompt = self.case.prompt(text, after, tenant)
        return await self.read(
            self.command(prompt, max_output_tokens=max_output_tokens, tenant=tenant)
        )

    async def until_load(self, running: int, queued: int) -> None:
        """Let everything else run until the engine has taken the work on."""
        async with asyncio.timeout(30):
            while self.engine.load() != (running, queued):  # noqa: ASYNC110 -- load has no event
                await asyncio.sleep(0)


@pytest.fixture(params=[pytest.param("llama", marks=pytest.mark.slow), "simulated"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> EngineCase:
    return LlamaCase(tmp_path) if request.param == "llama" else SimulatedCase()


@pytest.fixture
async def bench(case: EngineCase) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(case, stack)


@pytest.fixture
async def llama(tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(LlamaCase(tmp_path), stack)
