"""The inference worker behind a real Unix socket, without Ray."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from turnwire.actors.channel import Channel
from turnwire.actors.engines.simulated import SimulatedEngine
from turnwire.actors.inference import InferenceWorker, build_engine, token_model
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, ModelSettings, SimulatedSettings
from turnwire.pipelines.protocol.errors import Internal, InvalidRequest, Overloaded

CHANNEL = ChannelSettings()
NODE = "node"


def settings(max_ongoing: int = 8, max_queued: int = 8) -> ModelSettings:
    limits = SimulatedSettings(max_ongoing=max_ongoing, max_queued=max_queued)
    return ModelSettings(name="simulated", engine="simulated", simulated=limits)


def generate(key: str, model: str = "sim-max", **metadata: str) -> m.Generate:
    steering = {f"sim.{name}": value for name, value in metadata.items()}
    facts = m.Facts("resp_1", "t", model, 1_000_000, metadata=steering)
    items = b'[{"role":"user","content":"hello"}]'
    return m.Generate(facts, m.ItemPrompt(key.encode(), b"", items))


STALLED = {"fail": "stall@1"}


class Watched(SimulatedEngine):
    """Says when a generation has begun and when its generator is closed."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        self.begun = asyncio.Event()
        self.left = asyncio.Event()
        self.died = False

    async def generate(self, command: m.Generate) -> AsyncGenerator[list[m.EngineEvent], None]:
        self.begun.set()
        try:
            async with aclosing(super().generate(command)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self.left.set()

    def check(self) -> None:
        if self.died:
            raise Internal("the engine died")


@asynccontextmanager
async def running(
    folder: Path, engine: Watched, model: ModelSettings | None = None
) -> AsyncIterator[tuple[InferenceWorker, Channel]]:
    worker = InferenceWorker("worker-1", NODE, model or settings(), CHANNEL, engine)
    described = await worker.start(folder)
    channel = await Channel.connect(described.endpoint, CHANNEL, node=NODE)
    try:
        yield worker, channel
    finally:
        await channel.close()
        await worker.close()


async def read(channel: Channel, command: m.Generate) -> list[m.Message]:
    async with channel.stream(command) as stream:
        return [event async for batch in stream for event in batch]


async def test_it_says_what_it_serves_and_streams_it(tmp_path: Path) -> None:
    worker = InferenceWorker("worker-1", NODE, settings(), CHANNEL)
    assert worker.load() == (0, 0)
    described = await worker.start(tmp_path)
    assert described.pool == "inference"
    assert described.max_ongoing == 8
    assert "sim-agent" in [model.name for model in described.models]
    channel = await Channel.connect(described.endpoint, CHANNEL, node=NODE)
    events = await read(channel, generate("a", output_tokens="9000"))
    await channel.close()
    await worker.close()
    await worker.close()
    assert isinstance(events[0], m.PromptEvaluated)
    pieces = [event for event in events if isinstance(event, m.TextProduced)]
    assert sum(len(piece.text) for piece in pieces) == 36_000
    assert pieces[-1].counts.output_tokens == 9000
    assert events[-1] == m.GenerationFinished("stop", m.Counts(6, 0, 9000))


async def test_a_lost_prefix_and_an_error_reach_the_caller_as_they_are(tmp_path: Path) -> None:
    async with running(tmp_path, Watched(settings())) as (_, channel):
        lost = m.Generate(generate("a").facts, m.ItemPrompt(b"b", b"nowhere", b"[]"))
        assert await read(channel, lost) == [m.PrefixMissing()]
        with pytest.raises(InvalidRequest) as refused:
            await read(channel, generate("a", fail="nonsense"))
        assert refused.value.param == "metadata.sim.fail"


@pytest.mark.parametrize("how", ["leaves the stream", "closes the channel"])
async def test_a_caller_that_goes_ends_its_generation(tmp_path: Path, how: str) -> None:
    engine = Watched(settings())
    async with running(tmp_path, engine) as (worker, channel):
        stream = channel.stream(generate("a", **STALLED))
        assert isinstance((await anext(stream))[0], m.PromptEvaluated)
        assert worker.load() == (1, 0)
        if how == "leaves the stream":
            await stream.aclose()
        else:
            await channel.close()
        await engine.left.wait()
        assert worker.load() == (0, 0)


async def test_beyond_its_bounds_it_refuses_and_goes_on(tmp_path: Path) -> None:
    model = settings(max_ongoing=1, max_queued=0)
    async with running(tmp_path, Watched(model), model) as (_, channel):
        async with channel.stream(generate("a", **STALLED)) as stream:
            await anext(stream)
            with pytest.raises(Overloaded):
                await read(channel, generate("b"))
        assert await read(channel, generate("c"))


async def test_draining_refuses_new_streams_and_lets_those_that_run_end(tmp_path: Path) -> None:
    engine = Watched(settings())
    async with running(tmp_path, engine) as (worker, channel):
        slow = generate("a", model="sim-1000", output_tokens="150")
        finishing = asyncio.create_task(read(channel, slow))
        await engine.begun.wait()
        draining = asyncio.create_task(worker.drain(60))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await read(channel, generate("b"))
        events = await finishing
        assert isinstance(events[-1], m.GenerationFinished)
        await draining
        assert channel.lost


async def test_a_stream_that_does_not_end_in_time_is_ended(tmp_path: Path) -> None:
    engine = Watched(settings())
    async with running(tmp_path, engine) as (worker, channel):
        stream = channel.stream(generate("a", **STALLED))
        await anext(stream)
        await worker.drain(0.01)
        assert engine.left.is_set()
        with pytest.raises(Overloaded):
            await anext(stream)


async def test_its_health_is_its_engines(tmp_path: Path) -> None:
    engine = Watched(settings())
    async with running(tmp_path, engine) as (worker, _):
        worker.check_health()
        engine.died = True
        with pytest.raises(Internal):
            worker.check_health()


async def test_an_engine_that_cannot_run_leaves_nothing_open(tmp_path: Path) -> None:
    class Broken(Watched):
        async def start(self) -> None:
            raise Internal("no such file")

    worker = InferenceWorker("worker-1", NODE, settings(), CHANNEL, Broken(settings()))
    with pytest.raises(Internal):
        await worker.start(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_row_of_the_table_names_its_engine(tmp_path: Path) -> None:
    assert isinstance(build_engine(settings(), tmp_path), SimulatedEngine)
    row = ModelSettings(name="m", engine="llama", aliases=("a",), context_window=512)
    assert token_model(row).context_window == 512
    assert token_model(row).aliases == ("a",)
    with pytest.raises(Internal):
        build_engine(ModelSettings(name="m", engine="simulated"), tmp_path)


class Uncounted(Watched):
    """An engine that only learns the length of a prompt by evaluating it."""

    count = None


async def test_prompts_of_items_are_counted_where_the_engine_can(tmp_path: Path) -> None:
    async with running(tmp_path, Watched(settings())) as (_, channel):
        asked = generate("a")
        assert isinstance(asked.prompt, m.ItemPrompt)
        counted = await channel.call(m.CountPrompt("sim-max", "t", asked.prompt))
        finished = (await read(channel, asked))[-1]
        assert isinstance(finished, m.GenerationFinished)
        assert counted == m.TokenCount(finished.counts.input_tokens)
        partial = m.ItemPrompt(b"b", b"unknown", b"[]")
        with pytest.raises(InvalidRequest):
            await channel.call(m.CountPrompt("sim-max", "t", partial))
    async with running(tmp_path, Uncounted(settings())) as (_, channel):
        with pytest.raises(InvalidRequest, match="cannot be counted"):
            await channel.call(m.CountPrompt("sim-max", "t", asked.prompt))
