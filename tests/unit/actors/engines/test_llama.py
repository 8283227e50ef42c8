"""The llama.cpp engine with a real model: exact ids, consistent caches, clear refusals."""

import asyncio
import threading
from array import array
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from turnwire.actors.engines import gguf_file
from turnwire.actors.engines.llama import LlamaEngine, parsable
from turnwire.actors.engines.llama_context import LlamaContext
from turnwire.pipelines.config import LlamaSettings
from turnwire.pipelines.messages import Model, Sampling, TokenPrompt
from turnwire.pipelines.protocol.errors import Internal, InvalidRequest

if TYPE_CHECKING:
    from .conftest import Answer, Bench

pytestmark = pytest.mark.slow

HEADER_TOKENS = 3
"""`<|im_start|>user` and a newline, which all prompts begin with."""
EMOJI = "Repeat after me: 😀🎉👩‍🚀 こんにちは世界"


def whole(bench: "Bench", answer: "Answer", before: "array[int]") -> "array[int]":
    """The ids of the prompt that `answer` answered, given those of the one before it."""
    assert isinstance(answer.prompt, TokenPrompt)
    return before + array("I", answer.prompt.ids)


async def test_the_text_of_an_answer_is_that_of_its_ids_whatever_the_script(
    llama: "Bench",
) -> None:
    await llama.start()
    answer = await llama.say(EMOJI, max_output_tokens=40)
    assert any(ord(character) > 0xFFFF for character in answer.text)
    assert len(answer.ids) == answer.counts.output_tokens
    assert llama.case.decode(answer.ids) == answer.text


async def test_the_next_turn_evaluates_new_tokens_and_the_last_sampled_one_only(
    llama: "Bench",
) -> None:
    await llama.start()
    answer = await llama.say(EMOJI, max_output_tokens=30)
    for text in ("Again.", "日本語で。", "And once more."):
        before = answer.counts
        answer = await llama.say(text, answer, max_output_tokens=10)
        expected = before.input_tokens + before.output_tokens - 1
        assert answer.counts.cached_tokens == expected


async def test_greedy_answers_are_the_same_with_and_without_the_cache(llama: "Bench") -> None:
    await llama.start()
    first = await llama.say("Tell me about rivers in one sentence.", max_output_tokens=20)
    second = await llama.say("And about lakes?", first, max_output_tokens=20)
    third = await llama.say(EMOJI, second, max_output_tokens=20)
    ids = array("I")
    for answer in (first, second, third):
        ids = whole(llama, answer, ids)
        prompt = TokenPrompt(b"key", b"", ids.tobytes())
        tenant = f"alone {len(ids)}"
        fresh = await llama.read(llama.command(prompt, max_output_tokens=20, tenant=tenant))
        assert fresh.counts.cached_tokens == 0
        assert fresh.ids == answer.ids


async def test_forks_of_one_conversation_do_not_disturb_each_other(llama: "Bench") -> None:
    await llama.start()
    opening = "Here is a list: apple, pear, plum. " * 4
    texts = ("Name the first.", "Name the last.", "How many?")
    alone = []
    for text in texts:
        first = await llama.say(opening, tenant=text)
        alone.append((await llama.say(text, first, tenant=text)).ids)
    first = await llama.say(opening)
    forks = await asyncio.gather(*(llama.say(text, first) for text in texts))
    assert [fork.ids for fork in forks] == alone
    least = first.counts.input_tokens + first.counts.output_tokens - 1
    assert all(fork.counts.cached_tokens >= least for fork in forks)


@pytest.mark.parametrize(("cache_bytes", "kept"), [(64 * 1024 * 1024, True), (0, False)])
async def test_an_evicted_conversation_comes_back_from_host_memory_if_there_is_any(
    llama: "Bench", cache_bytes: int, kept: bool
) -> None:
    await llama.start(running=1, prompt_cache_bytes=cache_bytes)
    first = await llama.say("My favourite colour is teal. " * 8)
    await llama.say("Something else entirely, about mountains and snow. " * 8)
    back = await llama.say("What is it?", first)
    expected = first.counts.input_tokens + first.counts.output_tokens - 1
    assert back.counts.cached_tokens == (expected if kept else HEADER_TOKENS)


async def test_a_seed_makes_an_answer_repeatable(llama: "Bench") -> None:
    await llama.start()
    prompt = llama.case.prompt("Invent a name.")
    ids = []
    for seed in (7, 7, 8):
        sampling = Sampling(temperature=1.5, top_p=0.99, seed=seed)
        ids.append((await llama.read(llama.command(prompt, sampling=sampling))).ids)
    assert ids[0] == ids[1] != ids[2]


async def test_a_frequency_penalty_stops_repetition(llama: "Bench") -> None:
    await llama.start()
    prompt = llama.case.prompt("Say emoji: 😀🎉 こんにちは")
    kinds = []
    for penalty in (0.0, 2.0):
        sampling = Sampling(temperature=0.0, frequency_penalty=penalty)
        command = llama.command(prompt, max_output_tokens=24, sampling=sampling)
        kinds.append(len(set((await llama.read(command)).ids)))
    assert kinds[1] > kinds[0]


async def test_a_full_window_ends_the_answer_as_length(llama: "Bench") -> None:
    engine = await llama.start(window=256)
    prompt = llama.case.prompt("word " * 200)
    sampling = Sampling(temperature=1000.0, seed=1)
    answer = await llama.read(llama.command(prompt, max_output_tokens=10_000, sampling=sampling))
    assert answer.ending.finish == "length"
    total = answer.counts.input_tokens + answer.counts.output_tokens
    assert total == engine.models[0].context_window == 256


async def test_a_warm_up_survives_its_caller(llama: "Bench") -> None:
    await llama.start()
    prompt = llama.case.prompt("Known beforehand. " * 60)
    warm_up = asyncio.ensure_future(llama.read(llama.command(prompt, warm_up=True)))
    await llama.until_load(1, 0)
    warm_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await warm_up
    answer = await llama.read(llama.command(prompt))
    assert answer.counts.cached_tokens == answer.counts.input_tokens - 1


async def test_a_warm_up_does_not_survive_where_none_may(llama: "Bench") -> None:
    await llama.start(running=1, surviving_warm_ups=0, batch_tokens=8)
    prompt = llama.case.prompt("Known beforehand. " * 60)
    warm_up = asyncio.ensure_future(llama.read(llama.command(prompt, warm_up=True)))
    await llama.until_load(1, 0)
    warm_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await warm_up
    answer = await llama.read(llama.command(prompt))
    assert answer.counts.cached_tokens < answer.counts.input_tokens - 1


async def test_an_alias_names_the_model(llama: "Bench") -> None:
    await llama.start()
    prompt = llama.case.prompt("Say hello.")
    llama.case.model = "small"
    assert (await llama.read(llama.command(prompt))).text


async def test_ids_outside_the_vocabulary_are_refused_before_they_reach_the_model(
    llama: "Bench", caplog: pytest.LogCaptureFixture
) -> None:
    await llama.start()
    prompt = TokenPrompt(b"key", b"", array("I", [1, 49_152]).tobytes())
    with pytest.raises(Internal):
        await llama.read(llama.command(prompt))
    assert "llama.unknown_id" in caplog.text


async def test_an_empty_prompt_is_refused(llama: "Bench") -> None:
    await llama.start()
    with pytest.raises(InvalidRequest, match="empty"):
        await llama.read(llama.command(TokenPrompt(b"key", b"", b"")))


async def test_start_fills_in_what_the_file_says(llama: "Bench") -> None:
    engine = await llama.start(window=512)
    (model,) = engine.models
    assert model.prompt_format == "chatml"
    assert model.context_window == 512
    assert model.tokenizer.endswith(".tokenizer.json")


async def test_closing_ends_the_decode_thread(llama: "Bench") -> None:
    engine = await llama.start()
    await engine.close()
    assert "llama-decode" not in [thread.name for thread in threading.enumerate()]


async def test_a_dead_decode_thread_is_told(
    llama: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await llama.start()
    assert isinstance(engine, LlamaEngine)
    engine.check()
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)

    def fail(*arguments: object) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(engine, "_hand_over", fail)
    thread = next(t for t in threading.enumerate() if t.name == "llama-decode")
    async with aclosing(engine.generate(llama.command(llama.case.prompt("Hi.")))) as produced:
        reading = asyncio.ensure_future(anext(produced))
        await asyncio.to_thread(thread.join)
        with pytest.raises(Internal, match="died"):
            engine.check()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model" * 100])
async def test_a_file_that_is_no_model_is_refused_at_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    engine = LlamaEngine(Model("m", "tokens"), LlamaSettings(path=str(path)), tmp_path)
    with pytest.raises(Internal, match=r"broken\.gguf"):
        await engine.start()


def test_the_library_refuses_a_damaged_model_through_our_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(gguf_file.default_path().read_bytes()[:5_000_000])
    with pytest.raises(Internal, match=r"cut\.gguf"):
        LlamaContext(path, LlamaSettings())
    assert "llama.library" in caplog.text


def test_a_step_must_have_room_for_every_slot() -> None:
    with pytest.raises(Internal, match="batch_tokens"):
        LlamaContext(gguf_file.default_path(), LlamaSettings(slots=8, batch_tokens=8))


@pytest.mark.parametrize(("shown", "piece"), [(False, b""), (True, b"<|im_start|>")])
def test_control_tokens_are_text_only_where_asked_for(shown: bool, piece: bytes) -> None:
    settings = LlamaSettings(slots=1, context_tokens=256, render_control=shown)
    context = LlamaContext(gguf_file.default_path(), settings)
    try:
        assert context.piece(1) == piece
    finally:
        context.close()


@pytest.mark.parametrize(
    ("form", "shown"), [("chatml", False), ("gemma", False), ("harmony", True)]
)
def test_formats_whose_markers_are_control_tokens_get_to_see_them(form: str, shown: bool) -> None:
    assert parsable(LlamaSettings(), Model("m", "tokens", form)).render_control is shown
