"""One running generation of the llama.cpp engine: from prompt ids to events. Pure."""

import codecs
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turnwire.actors.engines.llama_grammar import Guide
from turnwire.actors.engines.llama_slots import Ids, Slot, no_ids
from turnwire.pipelines.messages import (
    Counts,
    EngineEvent,
    Finish,
    GenerationFinished,
    Json,
    PromptEvaluated,
    Sampling,
    TextProduced,
)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token, with its log probability as the API writes it, if it is wanted."""

    token: int
    logprob: Json = b""
    forced: Sequence[int] = ()
    """What has to follow it by the grammar: there is nothing to choose."""


@dataclass(eq=False)
class Stream:
    """A generation and how far it is.

    The decode thread alone changes it, but for `cancelled`, which its caller sets.
    """

    tenant: str
    prompt: Ids
    output_limit: int
    sampling: Sampling = field(default_factory=Sampling)
    warm_up: bool = False
    cold: bool = False
    guide: Guide | None = None
    """Holds the answer to its grammar."""
    logprobs: int | None = None
    cancelled: bool = False
    submitted_s: float = 0.0
    waited_us: int = 0
    """From there until it had a slot."""
    slot: Slot | None = None
    next_ids: Ids = field(default_factory=no_ids)
    """Ids of the answer that are not evaluated yet: the last sampled one, and what it forces."""
    counts: Counts = field(default_factory=Counts)
    _unreported: Ids = field(default_factory=no_ids)
    _unsaid: list[Json] = field(default_factory=list)
    """Log probabilities of tokens without text yet."""
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def placed(self, slot: Slot, cached_tokens: int) -> None:
        """It runs in `slot`, which already holds `cached_tokens` of its prompt."""
        self.slot = slot
        self.counts = Counts(input_tokens=len(self.prompt), cached_tokens=cached_tokens)

    @property
    def unevaluated(self) -> int:
        """Prompt tokens still to evaluate."""
        return 0 if self.slot is None else max(0, len(self.prompt) - len(self.slot.tokens))

    def prompt_evaluated(self) -> list[EngineEvent]:
        """The prompt is in the slot; a warm-up ends here."""
        events: list[EngineEvent] = [PromptEvaluated(self.counts, self.waited_us)]
        if self.warm_up:
            return [*events, GenerationFinished("stop", self.counts)]
        if self.output_limit < 1:
            return [*events, GenerationFinished("length", self.counts)]
        return events

    def sampled(
        self, token: int, piece: bytes, *, terminal: bool, logprob: Json = b""
    ) -> list[EngineEvent]:
        """`token` was chosen; `piece` are its bytes. Text comes out in whole characters."""
        self.next_ids = no_ids()
        if logprob and not terminal:
            self._unsaid.append(logprob)
        return self._added(token, piece, terminal=terminal)

    def forced(self, token: int, piece: bytes, *, terminal: bool = False) -> list[EngineEvent]:
        """`token` follows the one before without a choice."""
        return self._added(token, piece, terminal=terminal)

    def _added(self, token: int, piece: bytes, *, terminal: bool) -> list[EngineEvent]:
        self._unreported.append(token)
        counts = self.counts
        self.counts = Counts(counts.input_tokens, counts.cached_tokens, counts.output_tokens + 1)
        if terminal:
            return self._finished("stop")
        self.next_ids.append(token)
        events: list[EngineEvent] = []
        if text := self._decoder.decode(piece):
            events.append(self._produced(text))
        if self.counts.output_tokens >= self.output_limit:
            events += self._finished("length")
        return events

    def _finished(self, finish: Finish) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        if rest := self._decoder.decode(b"", True):
            last = self._unreported.pop() if finish == "stop" else None
            events.append(self._produced(rest))
            self._unreported = array("I", [] if last is None else [last])
        ids, self._unreported = self._unreported, no_ids()
        return [*events, GenerationFinished(finish, self.counts, ids.tobytes())]

    def _produced(self, text: str) -> TextProduced:
        ids, self._unreported = self._unreported, no_ids()
        logprobs, self._unsaid = b",".join(self._unsaid), []
        return TextProduced(text, self.counts, ids.tobytes(), logprobs)


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens of one stream in a step; `wants_output`: choose a token after the last of them."""

    stream: Stream
    slot: Slot
    tokens: Ids
    wants_output: bool


def plan_step(streams: list[Stream], batch_tokens: int) -> list[Feed]:
    """What the next step evaluates: `next_ids` of streams that decode, and pieces of prompts.

    While anything decodes, prompts get half of the step, shared evenly, so that neither a long
    prompt nor many of them hold the others up.
    """
    feeds = [
        Feed(stream, slot, array("I", stream.next_ids), True)
        for stream, slot in _running(streams, lambda stream: len(stream.next_ids) > 0)
    ]
    prefills = _running(streams, lambda stream: stream.unevaluated > 0)
    prefills.sort(key=lambda pair: pair[0].unevaluated)
    budget = batch_tokens // 2 if feeds else batch_tokens
    budget = min(budget, batch_tokens - sum(len(feed.tokens) for feed in feeds))
    for position, (stream, slot) in enumerate(prefills):
        share = min(stream.unevaluated, max(1, budget // (len(prefills) - position)))
        if share > budget:
            break
        budget -= share
        start = len(slot.tokens)
        wants = start + share == len(stream.prompt) and not stream.warm_up
        wants = wants and stream.output_limit > 0
        feeds.append(Feed(stream, slot, stream.prompt[start : start + share], wants))
    return feeds


def _running(streams: list[Stream], wanted: Callable[[Stream], bool]) -> list[tuple[Stream, Slot]]:
    return [(stream, stream.slot) for stream in streams if stream.slot and wanted(stream)]


def merged(events: list[EngineEvent]) -> list[EngineEvent]:
    """The same with each run of `TextProduced` as one: a slow reader gets fewer, larger events."""
    out: list[EngineEvent] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, TextProduced) and isinstance(last, TextProduced):
            logprobs = b",".join(filter(None, (last.logprobs, event.logprobs)))
            out[-1] = TextProduced(
                last.text + event.text, event.counts, last.ids + event.ids, logprobs
            )
        else:
            out.append(event)
    return out
