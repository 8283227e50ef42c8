"""The engine that runs a GGUF model with llama.cpp in the worker's own process.

The decode loop is ours (`llama_scheduler.py`), so every sampled id is known and reported. It runs
on a thread of its own; events reach the event loop in batches.
"""

import asyncio
import logging
import threading
from array import array
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from turnwire.actors.engines import gguf_file
from turnwire.actors.engines.gguf_tokenizer import build_tokenizer
from turnwire.actors.engines.llama_context import LlamaContext
from turnwire.actors.engines.llama_grammar import Grammars, Guide
from turnwire.actors.engines.llama_sampler import Sampler
from turnwire.actors.engines.llama_scheduler import Delivery, Scheduler
from turnwire.actors.engines.llama_slots import Ids, PromptCache, SlotTable
from turnwire.actors.engines.llama_stream import Stream, merged
from turnwire.actors.engines.prefixes import PrefixTable
from turnwire.pipelines.config import LlamaSettings
from turnwire.pipelines.messages import (
    EngineEvent,
    Form,
    Generate,
    Model,
    PrefixMissing,
    TokenPrompt,
)
from turnwire.pipelines.prompts.output import SHOWS_CONTROL
from turnwire.pipelines.protocol.errors import (
    ApiError,
    ContextLengthExceeded,
    Internal,
    InvalidRequest,
    Overloaded,
)

log = logging.getLogger(__name__)


class LlamaEngine:
    """One model of the table. `folder` keeps the tokenizer file that is built from the GGUF.

    What `model` leaves empty (prompt format, tokenizer) is filled in from the file by `start`.
    """

    form: Form = "tokens"

    def __init__(self, model: Model, settings: LlamaSettings, folder: Path) -> None:
        self._model = model
        self._settings = settings
        self._folder = folder
        self._prefixes: PrefixTable[bytes] = PrefixTable(settings.max_prefix_bytes)
        self._live: dict[Stream, _Inbox] = {}
        self._outbox: list[Delivery] = []
        self._outbox_lock = threading.Lock()
        self._running: _Running | None = None

    @property
    def models(self) -> tuple[Model, ...]:
        return (self._model,)

    async def start(self) -> None:
        """Load the model and start the decode thread. Raises `Internal` when it cannot run here."""
        path = Path(self._settings.path) if self._settings.path else gguf_file.default_path()
        self._model = await asyncio.to_thread(describe, self._model, path, self._folder)
        settings = parsable(self._settings, self._model)
        context = await asyncio.to_thread(LlamaContext, path, settings)
        grammars = await asyncio.to_thread(context.grammars)
        window = min(self._model.context_window, context.context_tokens)
        self._model = _replaced(self._model, context_window=window)
        loop = asyncio.get_running_loop()
        scheduler = Scheduler(
            context,
            SlotTable(self._settings.slots, PromptCache(self._settings.prompt_cache_bytes)),
            self._settings.batch_tokens,
            self._settings.surviving_warm_ups,
            lambda news: self._hand_over(loop, news),
        )
        thread = threading.Thread(target=scheduler.run, name="llama-decode", daemon=True)
        self._running = _Running(context, scheduler, thread, grammars, asyncio.Lock())
        thread.start()
        log.info("llama.started model=%s file=%s", self._model.name, path.name)

    async def close(self) -> None:
        """End all streams with `Overloaded`, wait for the running step, free the model."""
        running, self._running = self._running, None
        if running is not None:
            running.scheduler.stop()
            await asyncio.to_thread(running.thread.join)
            running.context.close()

    def load(self) -> tuple[int, int]:
        running = sum(stream.slot is not None for stream in self._live)
        return running, len(self._live) - running

    def check(self) -> None:
        if self._running is not None and not self._running.thread.is_alive():
            raise Internal("the decode thread died")

    async def generate(self, command: Generate) -> AsyncGenerator[list[EngineEvent], None]:
        running = self._running
        if running is None:
            raise Overloaded("the engine is not running")
        prompt = self._whole_prompt(command, running.context.vocabulary_size)
        if prompt is None:
            yield [PrefixMissing()]
            return
        self._check_room()
        guide = await self._guide(running, command)
        stream = self._admit(command, prompt, guide)
        running.scheduler.submit(stream)
        inbox = self._live[stream] = _Inbox()
        try:
            while not inbox.ended:
                yield await inbox.take()
        finally:
            if stream in self._live:
                running.scheduler.cancel(stream)

    def _whole_prompt(self, command: Generate, vocabulary_size: int) -> Ids | None:
        """All ids of the prompt, remembered under its key; None: its prefix is not held."""
        prompt, facts = command.prompt, command.facts
        if not isinstance(prompt, TokenPrompt):
            raise InvalidRequest("this model takes prompts as token ids")
        if facts.model != self._model.name and facts.model not in self._model.aliases:
            raise InvalidRequest(f"this worker does not serve {facts.model}", "model")
        prefix: bytes | None = b""
        if prompt.prefix_key:
            prefix = self._prefixes.get(facts.tenant, prompt.prefix_key)
        if prefix is None:
            return None
        whole = prefix + prompt.ids
        ids = array("I", whole)
        self._check(ids, vocabulary_size)
        self._prefixes.put(facts.tenant, prompt.key, whole, len(whole))
        return ids

    def _check(self, ids: Ids, vocabulary_size: int) -> None:
        window = self._model.context_window
        if len(ids) >= window:
            raise ContextLengthExceeded(
                f"This model's context window is {window} tokens, "
                f"and the prompt alone has {len(ids)}.",
                "input",
            )
        if not ids:
            raise InvalidRequest("the prompt is empty", "input")
        if max(ids) >= vocabulary_size:
            log.error("llama.unknown_id model=%s id=%d", self._model.name, max(ids))
            raise Internal("the prompt holds an id that is not in the vocabulary")

    async def _guide(self, running: "_Running", command: Generate) -> Guide | None:
        """Reading a grammar takes a millisecond, a hundred for the largest that are accepted."""
        grammar = command.facts.grammar
        if command.warm_up or not grammar:
            return None
        async with running.reading:
            return await asyncio.to_thread(running.grammars.begin, grammar)

    def _check_room(self) -> None:
        limit = self._settings.slots + self._settings.max_queued
        if len(self._live) >= limit:
            raise Overloaded(f"{len(self._live)} generations run or wait; the limit is {limit}")

    def _admit(self, command: Generate, prompt: Ids, guide: Guide | None) -> Stream:
        self._check_room()
        facts = command.facts
        return Stream(
            tenant=facts.tenant,
            prompt=prompt,
            output_limit=min(facts.max_output_tokens, self._model.context_window - len(prompt)),
            sampling=facts.sampling,
            warm_up=command.warm_up,
            cold=command.cold,
            guide=guide,
            logprobs=facts.logprobs,
        )

    def _hand_over(self, loop: asyncio.AbstractEventLoop, news: list[Delivery]) -> None:
        """Called by the decode thread: one wake-up of the loop for all that is ready by then."""
        with self._outbox_lock:
            wake = not self._outbox
            self._outbox += news
        if not wake:
            return
        try:
            loop.call_soon_threadsafe(self._distribute)
        except RuntimeError:
            if self._running is None or not loop.is_closed():
                raise
            log.warning("llama.loop_closed before the engine: nobody is left to hear of streams")
            self._running.scheduler.stop()

    def _distribute(self) -> None:
        with self._outbox_lock:
            news, self._outbox = self._outbox, []
        for item in news:
            inbox = self._live[item.stream]
            inbox.put(item)
            if item.ended:
                del self._live[item.stream]


@dataclass(frozen=True, slots=True)
class _Running:
    """What exists between `start` and `close`."""

    context: LlamaContext
    scheduler: Scheduler[Sampler]
    thread: threading.Thread
    grammars: Grammars
    reading: asyncio.Lock


class _Inbox:
    """What the decode thread has said of one stream and its caller has not taken yet."""

    def __init__(self) -> None:
        self.ended = False
        """The end was taken; nothing follows."""
        self._events: list[EngineEvent] = []
        self._last = False
        self._error: ApiError | None = None
        self._filled = asyncio.Event()

    def put(self, item: Delivery) -> None:
        self._events = merged([*self._events, *item.events])
        self._last, self._error = item.ended, item.error
        self._filled.set()

    async def take(self) -> list[EngineEvent]:
        """All that is ready. Raises the stream's error after its last events."""
        await self._filled.wait()
        self._filled.clear()
        if not self._events and self._error is not None:
            raise self._error
        events, self._events = self._events, []
        if self._error is not None:
            self._filled.set()
        self.ended = self._last and self._error is None
        return events


def describe(model: Model, path: Path, folder: Path) -> Model:
    """`model` with what its GGUF says of it; its tokenizer file is built where it is missing."""
    facts = gguf_file.read(path)
    return _replaced(
        model,
        prompt_format=model.prompt_format or gguf_file.prompt_format(facts),
        tokenizer=model.tokenizer or str(build_tokenizer(facts, folder)),
        constrains=True,
    )


def parsable(settings: LlamaSettings, model: Model) -> LlamaSettings:
    """`settings` with control tokens shown if the parser of the model's answers needs them."""
    if model.prompt_format not in SHOWS_CONTROL:
        return settings
    return settings.model_copy(update={"render_control": True})


def _replaced(model: Model, **changes: object) -> Model:
    fields = {name: getattr(model, name) for name in model.__struct_fields__}
    return Model(**(fields | changes))
