"""What a hop over the data plane costs between two processes on a node. Prints one JSON line.

Unary round trips of a small message (200 bytes) and of a request of a coding agent (37 KB), and one
stream flat out, beside a floor of the same run: a bare echo of as many bytes over the same kind of
socket.
`--seconds 0.05 --trials 1` is the smoke run.
"""

import argparse
import asyncio
import json
import multiprocessing
import platform
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import uvloop

from turnwire.actors.channel import Caller, Channel, Listener
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings

SMALL_BYTES, LARGE_BYTES = 200, 37_000
SETTINGS = ChannelSettings()
Once = Callable[[], Awaitable[object]]


class BareEcho(asyncio.Protocol):
    """The floor's server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class BareCaller(asyncio.Protocol):
    """The floor's client: one message out, as many bytes back."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._missing = 0

    def data_received(self, data: bytes) -> None:
        self._missing -= len(data)
        if not self._missing:
            self._back.set_result(None)

    def echo(self, message: bytes) -> asyncio.Future[None]:
        self._back: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._missing = len(message)
        self._transport.write(message)
        return self._back


def stored(message: m.Stored, caller: Caller) -> m.Stored:
    """Answers with the bytes of the command."""
    return message


async def tokens(message: m.Watch, caller: Caller) -> AsyncGenerator[m.Message, None]:
    """One token a message, for as long as somebody listens."""
    count = 0
    while True:
        count += 1
        yield m.TextProduced("token ", m.Counts(1000, 900, count), b"\1\0\0\0")


def serve(folder: str, started: Connection) -> None:
    """The other process: a listener and the bare echo, until the pipe closes."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        bare = await loop.create_unix_server(BareEcho, f"{folder}/bare")
        listener = Listener("bench", "here", {m.Stored: stored}, {m.Watch: tokens}, SETTINGS)
        started.send(await listener.start(folder=Path(folder) / "private"))
        await loop.run_in_executor(None, started.poll, None)
        bare.close()
        await listener.close()

    uvloop.run(main())


async def round_trips(once: Once, seconds: float) -> list[float]:
    """Microseconds of each, one in flight."""
    found = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        await once()
        found.append((time.perf_counter() - begin) * 1e6)
    return found


async def stream_rate(channel: Channel, seconds: float) -> float:
    """Messages a second of one stream, flat out."""
    count = 0
    begin = time.perf_counter()
    async with channel.stream(m.Watch()) as batches:
        async for batch in batches:
            count += len(batch)
            if time.perf_counter() - begin > seconds:
                break
    return count / (time.perf_counter() - begin)


def spread(trials: list[list[float]]) -> dict[str, float]:
    """Medians over the trials, with the range of the p50."""
    p50 = [statistics.median(trial) for trial in trials]
    p99 = [sorted(trial)[int(len(trial) * 0.99)] for trial in trials]
    return {
        "p50": round(statistics.median(p50), 1),
        "p50_min": round(min(p50), 1),
        "p50_max": round(max(p50), 1),
        "p99": round(statistics.median(p99), 1),
    }


async def measure(
    endpoint: m.Endpoint, folder: str, seconds: float, trials: int
) -> dict[str, dict[str, float]]:
    """All questions in turn, `trials` times, so that a slow moment of the machine hits each."""
    loop = asyncio.get_running_loop()
    _, bare = await loop.create_unix_connection(BareCaller, f"{folder}/bare")
    channel = await Channel.connect(endpoint, SETTINGS, node="here")
    questions: dict[str, Once] = {}
    for name, size in (("small", SMALL_BYTES), ("large", LARGE_BYTES)):
        message = m.Stored(b"x" * (size // 2), b"x" * (size // 2))
        questions[f"floor_{name}_us"] = partial(bare.echo, b"x" * size)
        questions[f"{name}_us"] = partial(channel.call, message)
    found: dict[str, list[list[float]]] = {name: [] for name in questions}
    rates = []
    for trial in range(trials + 1):
        for name, once in questions.items():
            times = await round_trips(once, seconds if trial else seconds / 10)
            if trial:  # the first is the warm-up
                found[name].append(times)
        rates.append(await stream_rate(channel, seconds))
    await channel.close()
    rates = rates[1:]
    return {
        **{name: spread(times) for name, times in found.items()},
        "stream_messages_per_s": {
            "median": round(statistics.median(rates)),
            "min": round(min(rates)),
            "max": round(max(rates)),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each question in a trial")
    parser.add_argument("--trials", type=int, default=5)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        server = context.Process(target=serve, args=(folder, there))
        server.start()
        try:
            found = uvloop.run(measure(here.recv(), folder, args.seconds, args.trials))
        finally:
            here.send(None)
            server.join(10)
            server.kill()
    ratio = found["small_us"]["p50"] / found["floor_small_us"]["p50"]
    print(
        json.dumps(
            {
                "bench": "channel",
                "unit": "us a round trip",
                **found,
                "small_over_floor": round(ratio, 2),
                "trials": args.trials,
                "python": platform.python_version(),
            }
        )
    )


if __name__ == "__main__":
    main()
