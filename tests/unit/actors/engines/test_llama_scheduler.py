"""The decode loop over a scripted model, whose next token depends on all it was given before."""

from array import array

import pytest
from fakes.scripted_llama import BATCH, ScriptedContext, ScriptedSampler, World, oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.actors.engines.llama_scheduler import ContextFailed, Delivery, Scheduler
from turnwire.actors.engines.llama_slots import PromptCache, SlotTable
from turnwire.actors.engines.llama_stream import Stream
from turnwire.pipelines.protocol.errors import Internal, Overloaded


def test_a_prompt_longer_than_a_step_is_evaluated_in_pieces_and_answered() -> None:
    world = World()
    stream = world.submit(list(range(100)))
    world.scheduler.run()
    assert world.ids[stream] == oracle(stream.prompt, 5)
    assert len(world.steps_of(stream)) >= 100 // BATCH


def test_a_stream_that_decodes_gets_a_token_in_every_step_of_anothers_prefill() -> None:
    world = World()
    fast = world.submit([7, 8], limit=4)
    slow = world.submit(list(range(1000, 1090)), limit=1)
    world.scheduler.run()
    expected = len(oracle(fast.prompt, 4))
    assert world.steps_of(fast) == list(range(1, expected + 1))
    assert world.ids[slow] == oracle(slow.prompt, 1)


def test_prompts_get_half_of_a_step_while_something_decodes() -> None:
    world = World()
    decoding = world.submit([7, 8], limit=4)
    world.submit(list(range(1000, 1090)), limit=1)
    world.scheduler.run()
    for feeds in world.context.steps:
        if any(feed.stream is decoding and len(feed.tokens) == 1 for feed in feeds):
            prefill = sum(len(feed.tokens) for feed in feeds if feed.stream is not decoding)
            assert prefill <= BATCH // 2


def test_a_cancelled_stream_is_in_no_later_step() -> None:
    world = World()
    stream = world.submit(list(range(100)))
    world.context.during_step = lambda number: (
        world.scheduler.cancel(stream) if number == 2 else None
    )
    world.scheduler.run()
    assert world.steps_of(stream) == [1, 2]
    assert world.ended == [stream]


def test_what_a_cancelled_stream_evaluated_is_reused() -> None:
    world = World()
    first = world.submit(list(range(100)))
    world.context.during_step = lambda number: (
        world.scheduler.cancel(first) if number == 2 else None
    )
    second = world.submit(list(range(100)), limit=2)
    world.scheduler.run()
    assert second.counts.cached_tokens == 2 * BATCH
    assert world.ids[second] == oracle(second.prompt, 2)


def test_as_many_cancelled_warm_ups_as_allowed_are_evaluated_to_their_end() -> None:
    world = World(surviving_warm_ups=1)
    warm_ups = [world.submit(list(range(n, n + 60)), warm_up=True) for n in (100, 200)]

    def leave(number: int) -> None:
        for stream in warm_ups if number == 1 else []:
            world.scheduler.cancel(stream)

    world.context.during_step = leave
    world.scheduler.run()
    evaluated = [
        sum(len(f.tokens) for s in world.context.steps for f in s if f.stream is w)
        for w in warm_ups
    ]
    assert evaluated[0] == 60
    assert evaluated[1] < 60


@pytest.mark.parametrize(("start", "cached"), [(0, 2 * BATCH), (500, 0)])
def test_a_surviving_warm_up_gives_its_slot_to_a_turn_and_what_it_evaluated_is_kept(
    start: int, cached: int
) -> None:
    world = World(ScriptedContext(sequences=1), surviving_warm_ups=1)
    warm_up = world.submit(list(range(100)), warm_up=True)
    world.given += 1
    turns: list[Stream] = []

    def leave_and_come(number: int) -> None:
        if number == 1:
            world.scheduler.cancel(warm_up)
        if number == 2:
            world.given -= 1
            turns.append(world.submit(list(range(start, start + 100)), limit=2))

    world.context.during_step = leave_and_come
    world.scheduler.run()
    assert world.steps_of(warm_up) == [1, 2]
    assert turns[0].counts.cached_tokens == cached
    assert world.ids[turns[0]] == oracle(turns[0].prompt, 2)


def test_a_surviving_warm_up_goes_on_while_its_own_turn_waits_for_it() -> None:
    world = World(ScriptedContext(sequences=2), surviving_warm_ups=1)
    warm_up = world.submit(list(range(100)), warm_up=True)
    turn = world.submit(list(range(100)), limit=2)
    world.context.during_step = lambda number: (
        world.scheduler.cancel(warm_up) if number == 1 else None
    )
    world.scheduler.run()
    assert len(world.steps_of(warm_up)) == -(-100 // BATCH)
    assert turn.counts.cached_tokens == 99


def test_a_prompt_waits_for_another_that_will_soon_hold_its_beginning() -> None:
    world = World()
    shared = list(range(80))
    first = world.submit([*shared, 900, 901], limit=3)
    second = world.submit([*shared, 700], limit=3)
    world.scheduler.run()
    assert second.counts.cached_tokens >= len(shared)
    for stream in (first, second):
        assert world.ids[stream] == oracle(stream.prompt, 3)


def test_another_tenants_prefill_is_not_waited_for_nor_reused() -> None:
    world = World()
    first = world.submit(list(range(80)), tenant="a")
    second = world.submit(list(range(80)), tenant="b")
    world.scheduler.run()
    assert world.steps_of(second)[0] == world.steps_of(first)[0] == 1
    assert second.counts.cached_tokens == 0


def test_a_conversation_that_lost_its_slot_comes_back_from_host_memory() -> None:
    world = World(ScriptedContext(sequences=1))
    first = world.submit(list(range(80)), limit=1)
    world.submit(list(range(1000, 1080)), limit=1)
    again = world.submit([*range(80), *oracle(first.prompt, 1), 5, 6], limit=2)
    world.scheduler.run()
    assert again.counts.cached_tokens == 80
    assert world.ids[again] == oracle(again.prompt, 2)


def test_without_host_memory_it_is_evaluated_again() -> None:
    world = World(ScriptedContext(sequences=1), cache_bytes=0)
    world.submit(list(range(80)), limit=1)
    world.submit(list(range(1000, 1080)), limit=1)
    again = world.submit([*range(80), 5, 6], limit=2)
    world.scheduler.run()
    assert again.counts.cached_tokens == 0
    assert world.ids[again] == oracle(again.prompt, 2)


def test_a_model_that_cannot_drop_a_tail_evaluates_from_the_start() -> None:
    world = World(ScriptedContext(sequences=1, can_truncate=False))
    world.submit(list(range(80)), limit=1)
    fork = world.submit([*range(60), 5, 6], limit=2)
    world.scheduler.run()
    assert fork.counts.cached_tokens == 0
    assert world.ids[fork] == oracle(fork.prompt, 2)


def test_a_failed_step_ends_its_streams_and_not_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(ScriptedContext(sequences=1, fail_at=frozenset({2})))
    broken = world.submit(list(range(40)))
    whole = world.submit(list(range(40)))
    world.scheduler.run()
    assert isinstance(world.errors[broken], Internal)
    assert "as scripted" not in str(world.errors[broken])
    assert "llama.step_failed" in caplog.text
    assert world.ids[whole] == oracle(whole.prompt, 5)
    assert world.context.chains == 0


def test_a_snapshot_that_cannot_be_had_costs_the_reuse_and_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(ScriptedContext(sequences=2))

    def refuse(sequence: int) -> bytearray:
        raise ContextFailed("no memory")

    world.context.snapshot = refuse  # type: ignore[method-assign] -- the fault to be shown
    first = world.submit(list(range(40)), limit=1)
    fork = world.submit([*range(36), 5, 6], limit=2)
    others = [world.submit(list(range(n, n + 40)), limit=1) for n in (500, 600)]
    world.scheduler.run()
    assert "llama.snapshot_failed" in caplog.text
    assert not world.errors
    for stream in (first, fork, *others):
        assert world.ids[stream] == oracle(stream.prompt, stream.output_limit)


def test_a_fault_while_a_stream_is_placed_ends_that_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(ScriptedContext(sequences=1))
    made = world.context.sampler

    def break_once(stream: Stream) -> ScriptedSampler:
        world.context.sampler = made  # type: ignore[method-assign] -- the fault is over
        raise ValueError("a bug")

    world.context.sampler = break_once  # type: ignore[method-assign] -- the fault to be shown
    broken = world.submit(list(range(40)), limit=1)
    after = world.submit(list(range(40)), limit=1)
    world.scheduler.run()
    assert isinstance(world.errors[broken], Internal)
    assert world.ids[after] == oracle(after.prompt, 1)


def test_stopping_ends_every_stream_with_overloaded_and_refuses_new_ones() -> None:
    world = World(ScriptedContext(sequences=1))
    streams = [world.submit(list(range(n, n + 50))) for n in range(3)]
    world.context.during_step = lambda number: world.scheduler.stop()
    world.scheduler.run()
    assert world.ended == streams
    assert {type(error) for error in world.errors.values()} == {Overloaded}
    assert len(world.context.steps) == 1
    with pytest.raises(Overloaded):
        world.scheduler.submit(streams[0])


def test_a_broken_delivery_still_leaves_no_stream_without_an_ending(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    lost: list[Delivery] = []

    def deliver(news: list[Delivery]) -> None:
        if not lost:
            lost.extend(news)
            raise RuntimeError("the loop is gone")
        world.deliver(news)

    table = SlotTable(2, PromptCache(0))
    world.scheduler = Scheduler(world.context, table, BATCH, 1, deliver)
    stream = world.submit(list(range(4)), limit=50)
    with pytest.raises(RuntimeError, match="the loop is gone"):
        world.scheduler.run()
    assert world.ended == [stream]


Turn = tuple[int, int, int, int]

TURNS = st.lists(
    st.tuples(
        st.integers(0, 5),  # which earlier prompt it extends
        st.integers(0, 70),  # how much it adds
        st.integers(0, 2),  # what happens to it: nothing, cancelled, warm-up
        st.integers(0, 1),  # tenant
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(TURNS, st.integers(1, 3), st.sampled_from([0, 300, 100_000]), st.booleans())
def test_no_mix_of_turns_forks_and_cancels_changes_any_answer(
    turns: list[Turn], slots: int, cache_bytes: int, can_truncate: bool
) -> None:
    world = World(ScriptedContext(slots, can_truncate), cache_bytes)
    prompts: list[list[int]] = [[1]]
    cancelled = []
    for number, (parent, added, fate, tenant) in enumerate(turns):
        base = prompts[parent % len(prompts)]
        prompt = [*base, *oracle(array("I", base), 6), *(number * 3 + n % 7 for n in range(added))]
        prompts.append(prompt)
        stream = world.submit(prompt, 6, "ab"[tenant], warm_up=fate == 2)
        if fate == 1:
            cancelled.append(stream)
    world.context.during_step = lambda number: (
        world.scheduler.cancel(cancelled.pop()) if cancelled else None
    )
    doomed = set(cancelled)
    world.scheduler.run()
    assert not world.errors
    assert world.context.chains == 0
    for stream, ids in world.ids.items():
        expected = [] if stream.warm_up else oracle(stream.prompt, 6)
        assert ids == expected or (stream in doomed and ids == expected[: len(ids)])


def test_a_stream_whose_grammar_fails_ends_alone() -> None:
    world = World()
    lost, other = world.submit([1, 2, 3]), world.submit([4, 5, 6])
    world.context.unguidable.add(lost)
    world.scheduler.run()
    assert isinstance(world.errors[lost], Internal)
    assert world.ids[other] == oracle(other.prompt, 5)
    assert world.context.chains == 0


def test_forced_tokens_are_evaluated_together_and_change_no_answer() -> None:
    for limit in (1, 2, 3, 9):
        world = World()
        plain = world.submit([1, 2, 4], limit=limit)
        helped = world.submit([1, 2, 4], limit=limit, tenant="b")
        world.context.forces[helped] = 3
        world.scheduler.run()
        assert world.ids[helped] == world.ids[plain] == oracle(plain.prompt, limit)
        assert helped.counts.output_tokens == plain.counts.output_tokens
        assert len(world.steps_of(helped)) <= len(world.steps_of(plain))
