"""The decode thread of the llama.cpp engine: gives streams slots and runs step after step.

Only `submit`, `cancel` and `stop` are called from other threads; everything else happens on the
thread that is in `run`.
"""

import logging
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from turnwire.actors.engines.llama_grammar import GuideFailed
from turnwire.actors.engines.llama_slots import Placement, Slot, SlotTable, Snapshot
from turnwire.actors.engines.llama_stream import Feed, Sampled, Stream, plan_step
from turnwire.pipelines.messages import EngineEvent, GenerationFinished
from turnwire.pipelines.protocol.errors import ApiError, Internal, Overloaded

log = logging.getLogger(__name__)


class ContextFailed(Exception):
    """The model refused or failed a call: what it holds of the sequences at hand is unknown."""


class Closes(Protocol):
    """A sampler, as far as the scheduler knows it."""

    def close(self) -> None: ...


S = TypeVar("S", bound=Closes)


class Context(Protocol[S]):
    """What the scheduler needs of a model: `LlamaContext`, or a scripted one in tests."""

    def decode(self, feeds: list[Feed]) -> None: ...
    def sampler(self, stream: Stream) -> S: ...
    def sample(self, sampler: S, feed_index: int) -> Sampled: ...
    def is_terminal(self, token: int) -> bool: ...
    def piece(self, token: int) -> bytes: ...
    def truncate(self, sequence: int, keep: int) -> bool: ...
    def snapshot_bytes(self, sequence: int) -> int: ...
    def snapshot(self, sequence: int) -> bytearray: ...
    def restore(self, sequence: int, state: bytearray) -> bool: ...


@dataclass(frozen=True, slots=True)
class Delivery:
    """News of one stream. `ended`: the last; with `error` the stream failed."""

    stream: Stream
    events: list[EngineEvent]
    ended: bool = False
    error: ApiError | None = None


class Scheduler(Generic[S]):
    """Owns the streams from `submit` to their last delivery."""

    def __init__(
        self,
        context: Context[S],
        table: SlotTable,
        batch_tokens: int,
        surviving_warm_ups: int,
        deliver: Callable[[list[Delivery]], None],
    ) -> None:
        self._context = context
        self._table = table
        self._batch_tokens = batch_tokens
        self._surviving_warm_ups = surviving_warm_ups
        self._deliver = deliver
        self._changed = threading.Condition()
        self._submitted: deque[Stream] = deque()
        self._stopping = False
        self._waiting: list[Stream] = []
        self._running: list[Stream] = []
        self._samplers: dict[Stream, S] = {}
        self._news: list[Delivery] = []

    def submit(self, stream: Stream) -> None:
        """Take the stream over; its caller bounds how many there are. `Overloaded` once stopped."""
        with self._changed:
            if self._stopping:
                raise Overloaded("the engine is closing")
            stream.submitted_s = time.monotonic()
            self._submitted.append(stream)
            self._changed.notify()

    def cancel(self, stream: Stream) -> None:
        """End the stream before the next step. A warm-up may survive."""
        with self._changed:
            stream.cancelled = True
            self._changed.notify()

    def stop(self) -> None:
        """End all streams with `Overloaded`; `run` returns after the step it is in."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """The thread's body. However it ends, no stream is left without its last delivery."""
        try:
            while self._wait_for_work():
                try:
                    self._step()
                except Exception:
                    log.exception("llama.step_failed")
                    self._fail_running(Internal("the engine failed"))
                self._flush()
        finally:
            self.stop()
            for stream in [*self._running, *self._waiting, *self._submitted]:
                self._end(stream, error=Overloaded("the engine is closing"))
            self._flush()

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not (self._stopping or self._submitted or self._running or self._waiting):
                self._changed.wait()
            self._waiting.extend(self._submitted)
            self._submitted.clear()
            return not self._stopping

    def _step(self) -> None:
        self._drop_cancelled()
        self._admit()
        feeds = plan_step(self._running, self._batch_tokens)
        if not feeds:
            return
        self._context.decode(feeds)
        for feed in feeds:
            feed.slot.tokens.extend(feed.tokens)
        for index, feed in enumerate(feeds):
            self._advance(index, feed)

    def _advance(self, index: int, feed: Feed) -> None:
        stream = feed.stream
        events: list[EngineEvent] = []
        if not stream.next_ids:
            if stream.unevaluated:
                return
            events += stream.prompt_evaluated()
        if feed.wants_output:
            try:
                sampled = self._context.sample(self._samplers[stream], index)
            except GuideFailed:
                # Not what it says: that may quote the answer.
                log.warning("llama.grammar_failed tokens=%d", stream.counts.output_tokens)
                self._end(stream, events, Internal("the answer could not be kept to its grammar"))
                return
            events += self._produced(stream, sampled)
        if events and isinstance(events[-1], GenerationFinished):
            self._end(stream, events)
        elif events:
            self._news.append(Delivery(stream, events))

    def _produced(self, stream: Stream, sampled: Sampled) -> list[EngineEvent]:
        token = sampled.token
        piece, terminal = self._piece(token)
        events = stream.sampled(token, piece, terminal=terminal, logprob=sampled.logprob)
        for forced in sampled.forced:
            if events and isinstance(events[-1], GenerationFinished):
                break
            piece, terminal = self._piece(forced)
            events += stream.forced(forced, piece, terminal=terminal)
        return events

    def _piece(self, token: int) -> tuple[bytes, bool]:
        """The bytes of a token, and whether it ends an answer."""
        terminal = self._context.is_terminal(token)
        return b"" if terminal else self._context.piece(token), terminal

    def _drop_cancelled(self) -> None:
        survivors = 0
        for stream in [*self._running, *self._waiting]:
            if not stream.cancelled:
                continue
            if stream.warm_up and survivors < self._surviving_warm_ups:
                survivors += 1
                continue
            self._end(stream)

    def _admit(self) -> None:
        for stream in list(self._waiting):
            placement = self._place(stream)
            while placement is None and not stream.cancelled and self._end_survivor():
                placement = self._place(stream)
            if placement is not None:
                self._start(stream, placement)

    def _place(self, stream: Stream) -> Placement | None:
        growing = [
            other.prompt
            for other in self._running
            if other.tenant == stream.tenant and other.unevaluated
        ]
        return self._table.place(stream.tenant, stream.prompt, growing)

    def _end_survivor(self) -> bool:
        """Take a slot back from a warm-up whose caller left. What it evaluated stays there."""
        survivor = next((stream for stream in self._running if stream.cancelled), None)
        if survivor is None or not self._table.full:
            return False
        self._end(survivor)
        return True

    def _start(self, stream: Stream, placement: Placement) -> None:
        """Bring the slot into the state `placement` asks for, and run the stream there."""
        slot = placement.slot
        self._waiting.remove(stream)
        self._running.append(stream)  # first: a fault from here on ends it with the others
        stream.waited_us = round((time.monotonic() - stream.submitted_s) * 1e6)
        source = self._state_of(placement.source)
        keep = 0 if placement.source is not None and source is None else placement.keep
        if stream.cold:
            source, keep = None, 0
        if placement.save:
            self._save(slot)
        self._table.take(slot, stream.tenant)
        stream.placed(slot, self._prepare(slot, source, keep))
        if not stream.warm_up:
            self._samplers[stream] = self._context.sampler(stream)

    def _prepare(self, slot: Slot, source: Snapshot | None, keep: int) -> int:
        """Returns how many tokens the slot really keeps."""
        tokens = slot.tokens if source is None else source.tokens
        if source is not None and not self._context.restore(slot.index, source.state):
            keep = 0
        if not self._context.truncate(slot.index, keep):
            keep = 0
        slot.tokens = tokens[:keep]
        return keep

    def _state_of(self, source: Slot | Snapshot | None) -> Snapshot | None:
        """What is to be copied, taken before anything is overwritten."""
        if isinstance(source, Slot):
            return self._snapshot(source)
        if source is not None:
            self._table.cache.used(source)
        return source

    def _save(self, slot: Slot) -> None:
        cache = self._table.cache
        if cache.covers(slot) or self._context.snapshot_bytes(slot.index) > cache.max_bytes:
            return
        snapshot = self._snapshot(slot)
        if snapshot is not None:
            cache.add(snapshot)

    def _snapshot(self, slot: Slot) -> Snapshot | None:
        """None: it cannot be had now, which costs time later and nothing else."""
        try:
            state = self._context.snapshot(slot.index)
        except (ContextFailed, MemoryError) as error:
            log.warning("llama.snapshot_failed tokens=%d: %s", len(slot.tokens), error)
            return None
        return Snapshot(slot.tenant, array("I", slot.tokens), state)

    def _end(
        self,
        stream: Stream,
        events: list[EngineEvent] | None = None,
        error: ApiError | None = None,
    ) -> None:
        for streams in (self._running, self._waiting):
            if stream in streams:
                streams.remove(stream)
        if stream.slot is not None:
            self._table.release(stream.slot)
        sampler = self._samplers.pop(stream, None)
        if sampler is not None:
            sampler.close()
        self._news.append(Delivery(stream, events or [], ended=True, error=error))

    def _fail_running(self, error: ApiError) -> None:
        """What the cache holds of the running streams is unknown now: forget it."""
        for stream in list(self._running):
            if stream.slot is not None:
                stream.slot.tokens = array("I")
                self._context.truncate(stream.slot.index, 0)
            self._end(stream, error=error)

    def _flush(self) -> None:
        if self._news:
            news, self._news = self._news, []
            self._deliver(news)
