"""The simulated engine: models without weights that keep an exact pace, so that everything around
them can be run and measured without a GPU.

| model | tokens a second | to the first token | prefill |
|---|---|---|---|
| `sim-65`, `sim-250`, `sim-1000`, `sim-4000` | as named | 20 ms | 20 us a token not cached |
| `sim-max` | never waits | | |
| `sim-agent` | 1000 | 20 ms | 20 us |

What they answer is in `simulated_script`, how a request steers them in `simulated_steering`.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Final, assert_never

from turnwire.actors.engines.simulated_clock import Pace
from turnwire.actors.engines.simulated_playback import Playback
from turnwire.actors.engines.simulated_prompts import HeldPrompts, Placed
from turnwire.actors.engines.simulated_script import Question, Script, script
from turnwire.actors.engines.simulated_slots import Slots
from turnwire.actors.engines.simulated_steering import Failure, Profile, Steering, read_steering
from turnwire.actors.engines.simulated_ticker import Clock, Ticker
from turnwire.pipelines.config import ModelSettings
from turnwire.pipelines.messages import (
    CountPrompt,
    Counts,
    EngineEvent,
    Form,
    Generate,
    ItemPrompt,
    Model,
    PrefixMissing,
)
from turnwire.pipelines.protocol.errors import (
    ContextLengthExceeded,
    Internal,
    InvalidRequest,
    Overloaded,
    RateLimitExceeded,
)

AGENT: Final = "sim-agent"
ALL_MODELS: Final = "simulated"
"""A row of the model table with this name stands for all of `PROFILES`."""
USUAL: Final = "sim-1000"
"""The one that such a row's own name and aliases mean."""

PROFILES: Final = {
    **{f"sim-{rate}": Profile(0.02, float(rate), 20e-6) for rate in (65, 250, 1000, 4000)},
    "sim-max": Profile(0.0, math.inf, 0.0),
    AGENT: Profile(0.02, 1000.0, 20e-6),
}

_WINDOW_TOKENS: Final = 1_000_000
_STALL_S: Final = 60.0


class SimulatedEngine:
    """An `Engine` for prompts of items."""

    form: Form = "items"

    def __init__(self, settings: ModelSettings, clock: Clock | None = None) -> None:
        """`clock`: None means the event loop's. Raises `Internal` for a name unknown here."""
        self._settings = settings
        self._served = _models(settings)
        self._by_name = {n: model for model in self._served for n in (model.name, *model.aliases)}
        self._slots = Slots(settings.simulated.max_ongoing, settings.simulated.max_queued)
        self._prompts = HeldPrompts(settings.simulated.max_prefix_bytes)
        self._clock = clock
        self._ticker: Ticker | None = None
        self._closed = False

    @property
    def models(self) -> tuple[Model, ...]:
        return self._served

    async def start(self) -> None:
        self._ticker = Ticker(self._clock or asyncio.get_running_loop())

    async def close(self) -> None:
        self._closed = True
        self._slots.close()
        if self._ticker is not None:
            self._ticker.wake_all()
        self._prompts.clear()

    def load(self) -> tuple[int, int]:
        return self._slots.ongoing, self._slots.queued

    def check(self) -> None:
        """There is no thread that could die."""

    def count(self, command: CountPrompt) -> int:
        placed = self._prompts.place(command.prompt, command.tenant)
        if placed is None:
            raise InvalidRequest("only whole prompts are counted")
        return placed.held.tokens

    async def generate(self, command: Generate) -> AsyncGenerator[list[EngineEvent], None]:
        prompt, facts = command.prompt, command.facts
        if not isinstance(prompt, ItemPrompt):
            raise InvalidRequest("the simulated models take prompts of items")
        if (model := self._by_name.get(facts.model)) is None:
            raise InvalidRequest(f"this worker does not serve {facts.model!r}", "model")
        steering = read_steering(facts.metadata, PROFILES[model.name])
        came_s = self._time()
        async with self._slots.place():
            waited_us = round((self._time() - came_s) * 1e6)
            placed = self._prompts.place(prompt, facts.tenant, cold=command.cold)
            if placed is None:
                yield [PrefixMissing()]
                return
            agent_turns = self._settings.simulated.agent_tool_turns if model.name == AGENT else 0
            playback = _playback(command, placed, steering, model, agent_turns, waited_us)
            with self._evaluation(command, placed, steering) as pace:
                while not playback.finished:
                    if playback.failing:
                        await self._strike(steering.failure)
                        return
                    if batch := playback.advance(pace.due(self._time())):
                        yield batch
                    if not playback.finished:
                        await self._wait(pace, playback.sent_tokens)

    @contextmanager
    def _evaluation(self, command: Generate, placed: Placed, steering: Steering) -> Iterator[Pace]:
        """Hold the prompt; forget it when everybody who waits for its evaluation leaves.

        A warm-up is evaluated to its end, since its client comes back with the same prompt.
        """
        held, tenant, key = placed.held, command.facts.tenant, command.prompt.key
        start_s = max(self._time(), placed.after_s)
        pace = Pace.of(steering.profile, start_s, held.tokens - placed.cached_tokens)
        held.ready_s = held.ready_s or pace.first_s
        self._prompts.keep(tenant, key, held)
        held.waiting += 1
        try:
            yield pace
        finally:
            held.waiting -= 1
            if not (held.waiting or command.warm_up) and self._time() < held.ready_s:
                self._prompts.drop(tenant, key)

    def _time(self) -> float:
        if self._ticker is None:
            raise Internal("the engine was not started")
        return self._ticker.time()

    async def _wait(self, pace: Pace, sent_tokens: int) -> None:
        await self._wait_until(
            pace.when(sent_tokens, self._time(), self._settings.simulated.tick_s)
        )

    async def _wait_until(self, when_s: float) -> None:
        assert self._ticker is not None, "somebody waits, so the engine was started"
        if not self._closed:
            await self._ticker.wait(when_s)
        if self._closed:
            raise Overloaded("the engine closes")

    async def _strike(self, failure: Failure | None) -> None:
        """Fail as asked; returning is the failure without an ending."""
        assert failure is not None, "it strikes, so it was asked for"
        match failure.name:
            case "overloaded":
                raise Overloaded("sim.fail")
            case "rate_limit_exceeded":
                raise RateLimitExceeded("sim.fail: try again in 1s")
            case "internal":
                raise Internal("sim.fail")
            case "bug":
                raise RuntimeError("sim.fail")
            case "disconnect":
                return
            case "stall":
                while True:
                    await self._wait_until(self._time() + _STALL_S)
            case _:
                assert_never(failure.name)


def _playback(
    command: Generate,
    placed: Placed,
    steering: Steering,
    model: Model,
    agent_turns: int,
    waited_us: int,
) -> Playback:
    facts, held = command.facts, placed.held
    room = model.context_window - held.tokens
    if room < 0:
        message = f"{held.tokens} tokens; the window has {model.context_window}"
        raise ContextLengthExceeded(message, "input")
    if command.warm_up:
        written = Script((), "stop", steering.failure)
    else:
        key = command.prompt.key
        written = script(Question(key, placed.head, held.items, facts, steering, agent_turns))
    counts = Counts(held.tokens, placed.cached_tokens)
    return Playback(written, counts, min(facts.max_output_tokens, room), waited_us)


def _models(settings: ModelSettings) -> tuple[Model, ...]:
    if settings.name == ALL_MODELS:
        aliases = {name: () for name in PROFILES} | {USUAL: (ALL_MODELS, *settings.aliases)}
    elif settings.name in PROFILES:
        aliases = {settings.name: settings.aliases}
    else:
        known = ", ".join(PROFILES)
        raise Internal(f"no simulated model {settings.name!r}; there are {known}")
    return tuple(
        Model(
            name=name,
            form="items",
            context_window=settings.context_window or _WINDOW_TOKENS,
            default_output_tokens=settings.default_output_tokens,
            aliases=others,
            constrains=True,
        )
        for name, others in aliases.items()
    )
