"""What the llama.cpp engine does with the default model. Prints one JSON line.

Decoding with one and with four streams, and the time to the first token of a turn that appends 100
tokens to 7,000, with its prefix in the cache and without: `first_token_ratio` is how many times as
long the second takes in the same trial. `--seconds 0.05 --trials 1` is the smoke run: its
context is shorter in proportion.
"""

import argparse
import asyncio
import json
import platform
import re
import statistics
import tempfile
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

from turnwire.actors.engines.llama import LlamaEngine
from turnwire.pipelines.config import LlamaSettings
from turnwire.pipelines.messages import EngineEvent, Facts, Generate, Model, Sampling, TokenPrompt

CONTEXT_TOKENS = 7000
APPENDED_TOKENS = 100
STREAMS = 4

Batches = AsyncIterator[list[EngineEvent]]


def command(ids: "array[int]", tenant: str, *, warm_up: bool = False) -> Generate:
    """A turn that no end token stops: at this temperature every token is as likely."""
    sampling = Sampling(temperature=1000.0, top_p=1.0, seed=1)
    facts = Facts("resp", tenant, "bench", 1_000_000, sampling)
    return Generate(facts, TokenPrompt(tenant.encode(), b"", ids.tobytes()), warm_up)


def prompt(tokens: int, first: int = 1000) -> "array[int]":
    return array("I", (first + 7 * number % 40_000 for number in range(tokens)))


@asynccontextmanager
async def started(settings: LlamaSettings) -> AsyncIterator[LlamaEngine]:
    with tempfile.TemporaryDirectory() as folder:
        engine = LlamaEngine(Model("bench", "tokens"), settings, Path(folder))
        await engine.start()
        try:
            yield engine
        finally:
            await engine.close()


async def tokens_per_s(engine: LlamaEngine, streams: int, seconds: float, trial: int) -> float:
    """Over all streams, from the moment when each has its first token."""
    async with AsyncExitStack() as stack:
        open_streams: list[Batches] = []
        for number in range(streams):
            tenant = f"decode {streams} {trial} {number}"
            produced = engine.generate(command(prompt(16, 1000 + number), tenant))
            open_streams.append(await stack.enter_async_context(aclosing(produced)))
        await asyncio.gather(*(anext(produced) for produced in open_streams))
        start_s = time.perf_counter()
        counts = await asyncio.gather(
            *(count_until(produced, start_s + seconds) for produced in open_streams)
        )
        return sum(counts) / (time.perf_counter() - start_s)


async def count_until(produced: Batches, end_s: float) -> int:
    count = 0
    async for batch in produced:
        count += sum(len(getattr(event, "ids", b"")) // 4 for event in batch)
        if time.perf_counter() > end_s:
            break
    return count


async def first_token_ms(engine: LlamaEngine, ids: "array[int]", tenant: str) -> float:
    start_s = time.perf_counter()
    async with aclosing(engine.generate(command(ids, tenant))) as produced:
        await anext(produced)
        return (time.perf_counter() - start_s) * 1e3


async def trial(engine: LlamaEngine, number: int, seconds: float, context: int) -> dict[str, float]:
    base = prompt(context)
    longer = base + prompt(APPENDED_TOKENS, 30_000)
    tenant = f"kept {number}"
    async for _ in engine.generate(command(base, tenant, warm_up=True)):
        pass
    figures = {
        "decode_1_stream_tokens_per_s": await tokens_per_s(engine, 1, seconds, number),
        f"decode_{STREAMS}_streams_tokens_per_s": await tokens_per_s(
            engine, STREAMS, seconds, number
        ),
        "first_token_with_prefix_ms": await first_token_ms(engine, longer, tenant),
        "first_token_without_prefix_ms": await first_token_ms(engine, longer, f"new {number}"),
    }
    with_prefix = figures["first_token_with_prefix_ms"]
    return figures | {"first_token_ratio": figures["first_token_without_prefix_ms"] / with_prefix}


def memory_mb() -> dict[str, int]:
    """Of this process, as the kernel counts it."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    kilobytes = dict(re.findall(r"^(Rss|Pss):\s+(\d+)", rollup, re.MULTILINE))
    return {f"{name.lower()}_mb": int(value) // 1024 for name, value in kilobytes.items()}


async def measure(args: argparse.Namespace) -> dict[str, object]:
    context = min(CONTEXT_TOKENS, max(APPENDED_TOKENS, int(CONTEXT_TOKENS * args.seconds)))
    settings = LlamaSettings(threads=args.threads)
    async with started(settings) as engine:
        await first_token_ms(engine, prompt(APPENDED_TOKENS), "memory")
        memory = memory_mb()
    async with started(settings.model_copy(update={"slots": STREAMS})) as engine:
        trials = [
            await trial(engine, number, args.seconds, context) for number in range(args.trials)
        ]
    figures: dict[str, object] = {}
    for name in trials[0]:
        values = [one[name] for one in trials]
        figures[name] = {
            "median": round(statistics.median(values), 1),
            "min": round(min(values), 1),
            "max": round(max(values), 1),
        }
    return {
        "bench": "llama_engine",
        "context_tokens": context,
        "appended_tokens": APPENDED_TOKENS,
        "threads": args.threads,
        **figures,
        "default_slots": memory,
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of decoding, per measurement")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
