"""A scripted model for the llama.cpp engine's decode loop, and a loop that ends by itself."""

import zlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from turnwire.actors.engines.llama_grammar import GuideFailed
from turnwire.actors.engines.llama_scheduler import ContextFailed, Delivery, Scheduler
from turnwire.actors.engines.llama_slots import PromptCache, SlotTable
from turnwire.actors.engines.llama_stream import Feed, Sampled, Stream
from turnwire.pipelines.messages import GenerationFinished, TextProduced
from turnwire.pipelines.protocol.errors import ApiError

BATCH = 16
TERMINAL = 3


def next_token(tokens: "array[int]") -> int:
    """One in eight answers of this model ends at any place."""
    return TERMINAL + zlib.crc32(tokens.tobytes()) % 8


def oracle(prompt: "array[int]", limit: int) -> list[int]:
    """What the scripted model answers, without any cache."""
    tokens, out = array("I", prompt), []
    while len(out) < limit:
        out.append(next_token(tokens))
        tokens.append(out[-1])
        if out[-1] == TERMINAL:
            break
    return out


@dataclass
class ScriptedContext:
    """A KV cache of plain lists that checks what the scheduler believes of it."""

    sequences: int = 2
    can_truncate: bool = True
    fail_at: frozenset[int] = frozenset()
    during_step: Callable[[int], None] = lambda number: None
    steps: list[list[Feed]] = field(default_factory=list)
    chains: int = 0
    forces: dict[Stream, int] = field(default_factory=dict)
    """How many tokens each choice brings along, up to the end."""
    unguidable: set[Stream] = field(default_factory=set)
    """Streams whose grammar fails at their first token."""

    def __post_init__(self) -> None:
        self.kv = [array("I") for _ in range(self.sequences)]

    def decode(self, feeds: list[Feed]) -> None:
        self.steps.append(feeds)
        assert 0 < sum(len(feed.tokens) for feed in feeds) <= BATCH
        assert len({feed.slot.index for feed in feeds}) == len(feeds)
        if len(self.steps) in self.fail_at:
            raise ContextFailed("as scripted")
        for feed in feeds:
            assert self.kv[feed.slot.index] == feed.slot.tokens
            self.kv[feed.slot.index].extend(feed.tokens)
        self.during_step(len(self.steps))

    def sampler(self, stream: Stream) -> "ScriptedSampler":
        self.chains += 1
        return ScriptedSampler(self)

    def sample(self, sampler: "ScriptedSampler", feed_index: int) -> Sampled:
        feed = self.steps[-1][feed_index]
        assert feed.wants_output
        if feed.stream in self.unguidable:
            raise GuideFailed("as scripted")
        tokens = array("I", self.kv[feed.slot.index])
        chosen = next_token(tokens)
        forced: list[int] = []
        while len(forced) < self.forces.get(feed.stream, 0):
            tokens.append(chosen if not forced else forced[-1])
            forced.append(next_token(tokens))
            if TERMINAL in (chosen, forced[-1]):
                # A grammar can force the marker that ends an answer, but nothing behind it.
                return Sampled(chosen, b"", forced if chosen != TERMINAL else ())
        return Sampled(chosen, b"", forced)

    def is_terminal(self, token: int) -> bool:
        return token == TERMINAL

    def piece(self, token: int) -> bytes:
        return b"%d." % token

    def truncate(self, sequence: int, keep: int) -> bool:
        possible = self.can_truncate or keep in (0, len(self.kv[sequence]))
        del self.kv[sequence][keep if possible else 0 :]
        return possible

    def snapshot_bytes(self, sequence: int) -> int:
        return 4 * len(self.kv[sequence])

    def snapshot(self, sequence: int) -> bytearray:
        return bytearray(self.kv[sequence].tobytes())

    def restore(self, sequence: int, state: bytearray) -> bool:
        self.kv[sequence] = array("I", bytes(state))
        return True


@dataclass
class ScriptedSampler:
    """One of those the context counts."""

    context: ScriptedContext

    def close(self) -> None:
        self.context.chains -= 1


@dataclass
class World:
    """A scheduler that stops by itself when every stream it was given has ended."""

    context: ScriptedContext = field(default_factory=ScriptedContext)
    cache_bytes: int = 10_000
    surviving_warm_ups: int = 1
    ended: list[Stream] = field(default_factory=list)
    ids: dict[Stream, list[int]] = field(default_factory=dict)
    errors: dict[Stream, ApiError] = field(default_factory=dict)
    given: int = 0

    def __post_init__(self) -> None:
        table = SlotTable(self.context.sequences, PromptCache(self.cache_bytes))
        self.scheduler = Scheduler(
            self.context, table, BATCH, self.surviving_warm_ups, self.deliver
        )

    def submit(
        self, prompt: list[int], limit: int = 5, tenant: str = "a", *, warm_up: bool = False
    ) -> Stream:
        stream = Stream(tenant, array("I", prompt), limit, warm_up=warm_up)
        self.ids[stream] = []
        self.given += 1
        self.scheduler.submit(stream)
        return stream

    def deliver(self, news: list[Delivery]) -> None:
        for item in news:
            for event in item.events:
                if isinstance(event, TextProduced | GenerationFinished):
                    self.ids[item.stream] += array("I", event.ids)
            if item.error is not None:
                self.errors[item.stream] = item.error
            if item.ended:
                self.ended.append(item.stream)
        if len(self.ended) == self.given:
            self.scheduler.stop()

    def steps_of(self, stream: Stream) -> list[int]:
        """The numbers of the steps that evaluated something for it, from 1."""
        return [
            number
            for number, feeds in enumerate(self.context.steps, start=1)
            if any(feed.stream is stream for feed in feeds)
        ]
