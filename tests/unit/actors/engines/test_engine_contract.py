"""What every engine promises, whatever the form of its prompts (`engine.py`)."""

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from turnwire.pipelines.messages import (
    Counts,
    EngineEvent,
    Facts,
    Generate,
    GenerationFinished,
    ItemPrompt,
    PrefixMissing,
    PromptEvaluated,
    TextProduced,
    TokenPrompt,
)
from turnwire.pipelines.protocol.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
)

if TYPE_CHECKING:
    from .conftest import Bench


def counts_of(event: EngineEvent) -> Counts:
    assert not isinstance(event, PrefixMissing)
    return event.counts


async def test_a_stream_is_an_evaluated_prompt_then_pieces_then_one_ending(bench: "Bench") -> None:
    await bench.start()
    answer = await bench.say("Say hello.")
    endings = [isinstance(event, GenerationFinished) for event in answer.events]
    assert endings.count(True) == 1
    assert endings[-1]
    assert isinstance(answer.events[0], PromptEvaluated)
    assert answer.text


async def test_counts_never_shrink_and_the_ending_has_the_whole(bench: "Bench") -> None:
    await bench.start()
    answer = await bench.say("Count to ten.")
    all_counts = [counts_of(event) for event in answer.events]
    outputs = [counts.output_tokens for counts in all_counts]
    assert outputs == sorted(outputs)
    assert outputs[-1] > 0
    assert {counts.input_tokens for counts in all_counts} == {answer.counts.input_tokens}
    assert answer.counts.input_tokens > 0


async def test_every_sampled_id_is_reported_by_an_engine_of_ids(bench: "Bench") -> None:
    await bench.start()
    answer = await bench.say("Say hello.")
    expected = answer.counts.output_tokens if bench.engine.form == "tokens" else 0
    assert len(answer.ids) == expected


async def test_an_unknown_prefix_is_answered_with_that_alone(bench: "Bench") -> None:
    await bench.start()
    lost = await bench.say("Say hello.")
    prompt = bench.case.prompt("Again.", lost)
    await bench.start()
    assert (await bench.read(bench.command(prompt))).events == [PrefixMissing()]


async def test_a_continuation_does_not_evaluate_its_prefix_again(bench: "Bench") -> None:
    await bench.start()
    first = await bench.say("My name is Ada. Remember it.")
    second = await bench.say("What is my name?", first)
    third = await bench.say("Thank you.", second)
    assert first.counts.cached_tokens == 0
    assert second.counts.cached_tokens >= first.counts.input_tokens - 1
    assert third.counts.cached_tokens >= second.counts.input_tokens - 1
    assert third.counts.cached_tokens < third.counts.input_tokens


async def test_a_warm_up_produces_nothing_and_its_prompt_is_cached_afterwards(
    bench: "Bench",
) -> None:
    await bench.start()
    prompt = bench.case.prompt("A long instruction to be known beforehand. " * 8)
    warm_up = await bench.read(bench.command(prompt, warm_up=True))
    assert [type(event) for event in warm_up.events] == [PromptEvaluated, GenerationFinished]
    assert warm_up.ending.finish == "stop"
    assert warm_up.counts.output_tokens == 0
    answer = await bench.read(bench.command(prompt))
    assert answer.counts.cached_tokens >= warm_up.counts.input_tokens - 1


async def test_a_turn_sent_while_its_warm_up_runs_waits_for_it_and_reuses_it(
    bench: "Bench",
) -> None:
    await bench.start()
    prompt = bench.case.prompt("A long instruction to be known beforehand. " * 30)
    warm_up, answer = await asyncio.gather(
        bench.read(bench.command(prompt, warm_up=True)), bench.read(bench.command(prompt))
    )
    assert warm_up.counts.cached_tokens == 0
    assert answer.counts.cached_tokens >= warm_up.counts.input_tokens - 1


async def test_several_streams_run_at_once_and_each_gets_its_own_answer(bench: "Bench") -> None:
    await bench.start(running=2, queued=8)
    alone = [await bench.say(f"Repeat the number {n}.") for n in range(4)]
    await bench.start(running=2, queued=8)
    together = await asyncio.gather(*(bench.say(f"Repeat the number {n}.") for n in range(4)))
    assert [answer.text for answer in together] == [answer.text for answer in alone]


async def test_two_continuations_of_one_answer_fork_it(bench: "Bench") -> None:
    await bench.start()
    first = await bench.say("The word is river. " * 20)
    left, right = await asyncio.gather(bench.say("Left?", first), bench.say("Right?", first))
    for fork in (left, right):
        assert fork.counts.cached_tokens >= first.counts.input_tokens - 1


async def test_leaving_early_frees_the_place_for_the_next(bench: "Bench") -> None:
    await bench.start(running=1)
    long = Generate(bench.case.long_answer(), bench.case.prompt("Never stop."))
    async with aclosing(bench.engine.generate(long)) as produced:
        await anext(produced)
    answer = await bench.say("Say hello.")
    assert isinstance(answer.events[-1], GenerationFinished)
    await bench.until_load(0, 0)


async def test_leaving_the_queue_early_leaves_no_trace(bench: "Bench") -> None:
    await bench.start(running=1, queued=1)
    long = Generate(bench.case.long_answer(), bench.case.prompt("Never stop."))
    async with aclosing(bench.engine.generate(long)) as produced:
        await anext(produced)
        waiting = asyncio.ensure_future(bench.say("Wait."))
        await bench.until_load(1, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await bench.until_load(1, 0)


async def test_the_output_limit_ends_an_answer_as_length(bench: "Bench") -> None:
    await bench.start()
    facts = bench.case.long_answer()
    limited = Facts(
        facts.response_id, facts.tenant, facts.model, 3, facts.sampling, metadata=facts.metadata
    )
    answer = await bench.read(Generate(limited, bench.case.prompt("Never stop.")))
    assert answer.ending.finish == "length"
    assert answer.counts.output_tokens == 3


async def test_a_full_queue_refuses_the_next(bench: "Bench") -> None:
    await bench.start(running=1, queued=1)
    long = Generate(bench.case.long_answer(), bench.case.prompt("Never stop."))
    async with aclosing(bench.engine.generate(long)) as produced:
        await anext(produced)
        waiting = asyncio.ensure_future(bench.say("Wait."))
        await bench.until_load(1, 1)
        with pytest.raises(Overloaded):
            await bench.say("One too many.")
    assert (await waiting).text


async def test_a_prompt_beyond_the_window_is_refused_with_both_numbers(bench: "Bench") -> None:
    await bench.start(window=256)
    with pytest.raises(ContextLengthExceeded, match=r"256") as refusal:
        await bench.say(bench.case.long_text(300))
    assert refusal.value.code == "context_length_exceeded"


async def test_no_tenant_learns_what_another_sent(bench: "Bench") -> None:
    await bench.start()
    text = "A secret that only one tenant sent. " * 8
    first = await bench.say(text)
    again = await bench.read(bench.command(bench.case.prompt(text, tenant="other"), tenant="other"))
    assert again.counts.cached_tokens == 0
    stolen = bench.command(bench.case.prompt("More.", first), tenant="other")
    assert (await bench.read(stolen)).events == [PrefixMissing()]


async def test_closing_ends_what_runs_and_what_waits_with_overloaded(bench: "Bench") -> None:
    engine = await bench.start(running=1, queued=1)
    long = Generate(bench.case.long_answer(), bench.case.prompt("Never stop."))
    async with aclosing(engine.generate(long)) as produced:
        await anext(produced)
        waiting = asyncio.ensure_future(bench.say("Wait."))
        await bench.until_load(1, 1)
        await engine.close()
        with pytest.raises(Overloaded):
            async for _ in produced:
                pass
        with pytest.raises(Overloaded):
            await waiting
    with pytest.raises(Overloaded):
        await bench.say("After the end.")
    await engine.close()


async def test_the_other_form_and_unknown_models_are_refused(bench: "Bench") -> None:
    engine = await bench.start()
    other = {
        "tokens": ItemPrompt(b"key", b"", b"[]"),
        "items": TokenPrompt(b"key", b"", b"\1\0\0\0"),
    }[engine.form]
    with pytest.raises(InvalidRequest):
        await bench.read(bench.command(other))
    facts = Facts("resp", "tenant", "no-such-model", 8)
    with pytest.raises(InvalidRequest):
        await bench.read(Generate(facts, bench.case.prompt("Hello.")))


async def test_models_and_load_tell_what_the_engine_is(bench: "Bench") -> None:
    engine = await bench.start()
    assert bench.case.model in [model.name for model in engine.models]
    assert {model.form for model in engine.models} == {engine.form}
    assert engine.load() == (0, 0)
    engine.check()


async def test_text_arrives_in_pieces_with_the_counts_so_far(bench: "Bench") -> None:
    await bench.start()
    answer = await bench.say("Say hello.")
    pieces = [event for event in answer.events if isinstance(event, TextProduced)]
    assert all(0 < piece.counts.output_tokens <= answer.counts.output_tokens for piece in pieces)
