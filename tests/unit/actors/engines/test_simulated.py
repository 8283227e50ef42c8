"""The simulated engine on a clock of its own: no test waits."""

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson
import pytest

from turnwire.actors.engines.simulated import PROFILES, SimulatedEngine
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ModelSettings, SimulatedSettings
from turnwire.pipelines.protocol.errors import (
    ApiError,
    ContextLengthExceeded,
    Internal,
    InvalidRequest,
    Overloaded,
    RateLimitExceeded,
)

TICK_S = 0.002


@dataclass
class Timer:
    callback: Callable[[], object]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class ManualClock:
    """Time passes only in `pass_to`, or, when `jumping`, to the next timer once all else waits."""

    jumping: bool = False
    now_s: float = 100.0
    timers: list[tuple[float, int, Timer]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self.timers, (when, next(self.numbers), timer))
        if self.jumping:
            asyncio.get_running_loop().call_soon(self._jump)
        return timer

    def pass_to(self, when_s: float) -> None:
        while self.timers and self.timers[0][0] <= when_s:
            due_s, _, timer = heapq.heappop(self.timers)
            self.now_s = max(self.now_s, due_s)
            if not timer.cancelled:
                timer.callback()
        self.now_s = max(self.now_s, when_s)

    def _jump(self) -> None:
        while self.timers and self.timers[0][2].cancelled:
            heapq.heappop(self.timers)
        if self.timers:
            self.pass_to(self.timers[0][0])


async def engine_on(clock: ManualClock, name: str = "simulated", **limits: Any) -> SimulatedEngine:  # noqa: ANN401
    simulated = SimulatedSettings(tick_s=TICK_S, **limits)
    engine = SimulatedEngine(
        ModelSettings(name=name, engine="simulated", simulated=simulated), clock
    )
    await engine.start()
    return engine


def generate(
    key: str,
    *texts: str,
    after: str = "",
    model: str = "sim-1000",
    tenant: str = "t",
    warm_up: bool = False,
    head: dict[str, Any] | None = None,
    max_output_tokens: int = 1_000_000,
    **metadata: str,
) -> m.Generate:
    items = orjson.dumps([{"role": "user", "content": text} for text in texts or ("hello",)])
    steering = {f"sim.{name}": value for name, value in metadata.items()}
    return m.Generate(
        m.Facts("resp_1", tenant, model, max_output_tokens, metadata=steering),
        m.ItemPrompt(key.encode(), after.encode(), items, head and orjson.dumps(head)),
        warm_up,
    )


Batches = AsyncGenerator[list[m.EngineEvent], None]


async def all_of(batches: Batches) -> list[m.EngineEvent]:
    async with aclosing(batches) as produced:
        return [event async for batch in produced for event in batch]


async def counts_of(engine: SimulatedEngine, command: m.Generate) -> m.Counts:
    ending = (await all_of(engine.generate(command)))[-1]
    assert isinstance(ending, m.GenerationFinished), ending
    return ending.counts


async def until_idle(task: asyncio.Task[Any]) -> None:
    """Let everything run that can run without time passing."""
    for _ in range(50):
        if not task.done():
            await asyncio.sleep(0)


@pytest.mark.parametrize(("rate", "streams"), [(65, 1), (1000, 25), (4000, 1), (4000, 4)])
async def test_streams_arrive_at_their_rate_and_never_before_their_time(
    rate: int, streams: int
) -> None:
    clock = ManualClock(jumping=True)
    engine = await engine_on(clock)
    seen: list[float] = []

    async def consume(index: int) -> None:
        command = generate(f"k{index}", model=f"sim-{rate}", output_tokens="4001")
        start_s = clock.now_s
        first_s = start_s + 0.02 + 20e-6 * 6
        tokens, began_s = 0, None
        async for batch in engine.generate(command):
            began_s = began_s or clock.now_s
            tokens = batch[-1].counts.output_tokens  # type: ignore[union-attr]
            assert tokens <= 1 + (clock.now_s - first_s) * rate + 1e-6
        assert began_s == pytest.approx(first_s)
        assert tokens == 4001
        seen.append(4000 / (clock.now_s - began_s))

    await asyncio.gather(*map(consume, range(streams)))
    assert len(seen) == streams
    assert min(seen) >= 0.98 * rate


async def test_late_wake_ups_do_not_add_up() -> None:
    clock = ManualClock()
    engine = await engine_on(clock)
    task = asyncio.create_task(all_of(engine.generate(generate("k", output_tokens="1001"))))
    await until_idle(task)
    for step in range(12):
        clock.pass_to(100 + 0.1 * step)
        await until_idle(task)
    ending = (await task)[-1]
    assert ending.counts.output_tokens == 1001  # type: ignore[union-attr]


async def test_sim_max_never_waits_and_lets_others_run() -> None:
    clock = ManualClock()
    engine = await engine_on(clock)
    command = generate("k", model="sim-max", output_tokens="100000")
    task = asyncio.create_task(all_of(engine.generate(command)))
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 100_000 / 4096
    assert clock.timers == []
    assert (await task)[-1].counts.output_tokens == 100_000  # type: ignore[union-attr]


async def test_a_short_answer_of_sim_max_is_one_batch() -> None:
    engine = await engine_on(ManualClock())
    batches = [batch async for batch in engine.generate(generate("k", model="sim-max"))]
    assert [[type(event) for event in batch] for batch in batches] == [
        [m.PromptEvaluated, m.TextProduced, m.GenerationFinished]
    ]


async def test_a_continuation_counts_the_whole_context_and_caches_its_prefix() -> None:
    engine = await engine_on(ManualClock(jumping=True))
    first = await counts_of(engine, generate("a", "x" * 400))
    second = await counts_of(engine, generate("b", "y" * 40, after="a"))
    again = await counts_of(engine, generate("b", "y" * 40, after="a"))
    assert (first.input_tokens, first.cached_tokens) == (104, 0)
    assert (second.input_tokens, second.cached_tokens) == (118, 104)
    assert (again.input_tokens, again.cached_tokens) == (118, 118)


async def test_another_head_leaves_nothing_to_reuse_and_no_head_means_the_parents() -> None:
    engine = await engine_on(ManualClock(jumping=True))
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    head = {"instructions": "remember:a=1", "tools": tools}
    await counts_of(engine, generate("a", head=head))
    kept = await all_of(engine.generate(generate("b", after="a")))
    assert any(isinstance(event, m.CallProduced) for event in kept)
    changed = await counts_of(
        engine, generate("c", after="b", head={"instructions": "", "tools": []})
    )
    assert changed.cached_tokens == 0


@pytest.mark.parametrize("tenant", ["t", "other"])
async def test_a_prefix_that_is_not_held_for_this_tenant_is_missing(tenant: str) -> None:
    engine = await engine_on(ManualClock(jumping=True))
    await counts_of(engine, generate("a"))
    command = generate("b", after="a" if tenant == "other" else "nowhere", tenant=tenant)
    assert await all_of(engine.generate(command)) == [m.PrefixMissing()]
    assert engine.load() == (0, 0)


async def test_held_prompts_are_bounded() -> None:
    engine = await engine_on(ManualClock(jumping=True), max_prefix_bytes=10_000)
    for index in range(100):
        await counts_of(engine, generate(f"k{index}", model="sim-max"))
    assert await all_of(engine.generate(generate("x", after="k0"))) == [m.PrefixMissing()]
    assert (await counts_of(engine, generate("y", after="k99"))).cached_tokens == 6


async def test_a_turn_costs_the_same_after_a_long_history() -> None:
    engine = await engine_on(ManualClock(jumping=True))
    await counts_of(engine, generate("a", "x" * 400_000, model="sim-max"))
    placed = engine._prompts.place(generate("b", "y", after="a").prompt, "t")  # type: ignore[arg-type]
    assert placed is not None
    assert placed.held.tokens == 100_009
    assert placed.held.items.size_bytes < 1000, "the history itself is not held"


async def test_the_prompt_must_fit_the_window() -> None:
    clock = ManualClock(jumping=True)
    settings = ModelSettings(name="sim-max", engine="simulated", context_window=100)
    engine = SimulatedEngine(settings, clock)
    await engine.start()
    with pytest.raises(ContextLengthExceeded):
        await all_of(engine.generate(generate("a", "x" * 400, model="sim-max")))
    events = await all_of(engine.generate(generate("b", "x" * 240, model="sim-max")))
    assert events[-1] == m.GenerationFinished("length", m.Counts(64, 0, 36))


async def test_prefill_is_paid_for_what_is_not_cached_alone() -> None:
    clock = ManualClock(jumping=True)
    engine = await engine_on(clock)

    async def first_token_s(command: m.Generate) -> float:
        start_s = clock.now_s
        async with aclosing(engine.generate(command)) as batches:
            async for _ in batches:
                return clock.now_s - start_s
        raise AssertionError("a generation yields")

    long, short = "x" * 396, "y" * 36
    steering = {"prefill_us_per_token": "1000", "first_token_ms": "10"}
    assert await first_token_s(generate("a", long, **steering)) == pytest.approx(0.113)
    assert await first_token_s(generate("b", short, after="a", **steering)) == pytest.approx(0.023)


async def test_a_prompt_being_evaluated_is_waited_for_and_not_evaluated_twice() -> None:
    clock = ManualClock()
    engine = await engine_on(clock)
    slow = generate("a", warm_up=True, first_token_ms="1000")
    warming = asyncio.create_task(all_of(engine.generate(slow)))
    await until_idle(warming)
    following = asyncio.create_task(all_of(engine.generate(generate("b", after="a"))))
    await until_idle(following)
    clock.pass_to(100.9)
    await until_idle(following)
    assert not warming.done()
    clock.pass_to(110)
    evaluated = (await following)[0]
    assert isinstance(evaluated, m.PromptEvaluated)
    assert evaluated.counts.cached_tokens == 6
    assert [type(event) for event in await warming] == [m.PromptEvaluated, m.GenerationFinished]


@pytest.mark.parametrize("warm_up", [False, True])
async def test_an_evaluation_that_is_left_is_forgotten_unless_it_is_a_warm_up(
    warm_up: bool,
) -> None:
    clock = ManualClock()
    engine = await engine_on(clock)
    task = asyncio.create_task(all_of(engine.generate(generate("a", warm_up=warm_up))))
    await until_idle(task)
    assert engine.load() == (1, 0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert engine.load() == (0, 0)
    clock.jumping = True
    events = await all_of(engine.generate(generate("b", after="a")))
    assert (events == [m.PrefixMissing()]) is not warm_up


async def test_closing_the_generator_frees_its_place_at_once() -> None:
    engine = await engine_on(ManualClock(jumping=True), max_ongoing=1)
    async with aclosing(engine.generate(generate("a", output_tokens="100000"))) as batches:
        await anext(batches)
        assert engine.load() == (1, 0)
    assert engine.load() == (0, 0)


async def test_closing_the_engine_ends_all_that_runs_and_waits() -> None:
    engine = await engine_on(ManualClock(), max_ongoing=2)
    tasks = [
        asyncio.create_task(all_of(engine.generate(generate(f"k{n}", fail=fail))))
        for n, fail in enumerate(("bug@5", "stall", "bug@5"))
    ]
    await until_idle(tasks[2])
    assert engine.load() == (2, 1)
    await engine.close()
    await engine.close()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in ended] == [Overloaded] * 3
    with pytest.raises(Overloaded):
        await all_of(engine.generate(generate("k")))


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("overloaded", Overloaded),
        ("rate_limit_exceeded", RateLimitExceeded),
        ("internal", Internal),
        ("bug", RuntimeError),
    ],
)
@pytest.mark.parametrize("token", [0, 3])
async def test_a_failure_is_raised_at_its_token(
    name: str, error: type[Exception], token: int
) -> None:
    engine = await engine_on(ManualClock(jumping=True))
    events: list[m.EngineEvent] = []

    async def consume() -> None:
        async for batch in engine.generate(generate("a", fail=f"{name}@{token}")):
            events.extend(batch)

    with pytest.raises(error) as raised:
        await consume()
    assert isinstance(raised.value, ApiError) == (error is not RuntimeError)
    counts = [e.counts.output_tokens for e in events if isinstance(e, m.TextProduced)]
    assert counts[-1:] == ([token] if token else [])
    assert engine.load() == (0, 0)


async def test_a_disconnect_is_a_stream_without_its_ending() -> None:
    engine = await engine_on(ManualClock(jumping=True))
    events = await all_of(engine.generate(generate("a", fail="disconnect@2")))
    assert isinstance(events[-1], m.TextProduced)
    assert await all_of(engine.generate(generate("b", fail="disconnect"))) == []


async def test_a_stall_lasts_until_its_caller_leaves() -> None:
    clock = ManualClock()
    engine = await engine_on(clock)
    task = asyncio.create_task(all_of(engine.generate(generate("a", fail="stall@1"))))
    for hour in range(1, 4):
        await until_idle(task)
        clock.pass_to(100 + 3600 * hour)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert engine.load() == (0, 0)


async def test_each_row_of_the_table_serves_what_it_names() -> None:
    engine = await engine_on(ManualClock())
    assert [model.name for model in engine.models] == list(PROFILES)
    assert {model.context_window for model in engine.models} == {1_000_000}
    alone = ModelSettings(name="sim-max", aliases=("fast",), engine="simulated")
    single = SimulatedEngine(alone, ManualClock())
    await single.start()
    assert [model.name for model in single.models] == ["sim-max"]
    assert len(await all_of(single.generate(generate("a", model="fast")))) == 3
    with pytest.raises(InvalidRequest):
        await all_of(single.generate(generate("a", model="sim-65")))
    with pytest.raises(Internal):
        SimulatedEngine(ModelSettings(name="sim-66", engine="simulated"))


async def test_the_row_of_all_models_may_be_asked_for_by_its_own_name() -> None:
    row = ModelSettings(name="simulated", aliases=("test",), engine="simulated")
    engine = SimulatedEngine(row, ManualClock(jumping=True))
    await engine.start()
    (usual,) = (model for model in engine.models if model.aliases)
    assert (usual.name, usual.aliases) == ("sim-1000", ("simulated", "test"))
    assert await counts_of(engine, generate("a", model="simulated"))
