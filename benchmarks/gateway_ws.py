"""What the gateway adds to a turn: a real socket, ports in its own process, no model time.

Turns are Codex-sized and chained, one client, back to back; beside them, in the same run, a bare
`websockets` server echoes the same frame. `flood_tokens_per_s` is one stream of single-token
batches flat out. Prints one JSON line; `--turns 5 --trials 1` is the smoke run.
"""

import argparse
import asyncio
import json
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import orjson
import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fakes"))
sys.path.insert(0, str(Path(__file__).parent))

from scripted_ports import (
    MODEL,
    Batch,
    FakeLeases,
    FakeLedger,
    FakeRouter,
    FakeSafety,
    FakeStore,
    ScriptedEngine,
    World,
)
from session_core import FRAME

from turnwire.gateway.gateway import Gateway
from turnwire.gateway.turns import Ports
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import GatewaySettings, SafetySettings

FLOOD_TOKENS = 20_000
COMPLETED = b'{"type":"response.completed"'
BODY = {**orjson.loads(FRAME), "model": MODEL.name, "input": "go on"}
del BODY["previous_response_id"]


class QuickWorld(World):
    """Steps take no time and leave no trace."""

    async def step(self, name: str) -> None:
        self.generated.clear()
        self.commits.clear()
        self.records.clear()


def said(number: int) -> m.EngineEvent:
    return m.TextProduced(f"word{number} ", m.Counts(1000, 900, number))


END: Batch = [m.GenerationFinished("stop", m.Counts(1000, 900, 60))]
ANSWER = [[said(number) for number in range(60)], END]
FLOOD = [*([said(number)] for number in range(FLOOD_TOKENS)), END]


def script(command: m.Generate) -> list[Batch]:
    return FLOOD if command.facts.metadata.get("flood") == "1" else ANSWER


async def run_gateway(pipe: Connection) -> None:
    world = QuickWorld(script=script)
    ports = Ports(
        FakeRouter(world),
        ScriptedEngine(world),
        FakeSafety(world),
        FakeStore(world),
        FakeLedger(world),
        FakeLeases(world),
        lambda: (MODEL,),
        lambda: True,
    )
    settings = GatewaySettings(port=0, max_send_bytes=2**30)
    async with Gateway(settings, SafetySettings(policy="off"), ports) as gateway:
        pipe.send(gateway.address)
        await asyncio.get_running_loop().run_in_executor(None, pipe.poll, None)


async def run_echo(pipe: Connection) -> None:
    async def echo(socket: ServerConnection) -> None:
        async for message in socket:
            await socket.send(message)

    async with serve(echo, "127.0.0.1", 0, compression=None, max_size=None) as server:
        pipe.send(next(iter(server.sockets)).getsockname()[:2])
        await asyncio.get_running_loop().run_in_executor(None, pipe.poll, None)


def child(run: Callable[[Connection], Awaitable[None]], pipe: Connection) -> None:
    async def main() -> None:
        await run(pipe)

    uvloop.run(main())


def started(
    run: Callable[[Connection], Awaitable[None]],
) -> tuple[BaseProcess, Connection, tuple[str, int]]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=child, args=(run, there), daemon=True)
    process.start()
    return process, here, here.recv()


async def one_turn(socket: ClientConnection, parent: str | None, **fields: object) -> str:
    """The id of the finished response."""
    body = {**BODY, **fields} | ({} if parent is None else {"previous_response_id": parent})
    await socket.send(orjson.dumps(body).decode())
    while not (event := await socket.recv(decode=False)).startswith(COMPLETED):
        pass
    return str(orjson.loads(event)["response"]["id"])


async def timed(turns: int, url: str) -> list[float]:
    """Milliseconds of each turn, the first tenth thrown away."""
    async with connect(url, max_size=None, compression=None) as socket:
        parent, times = None, []
        for _ in range(turns + turns // 10):
            start = time.perf_counter()
            parent = await one_turn(socket, parent)
            times.append((time.perf_counter() - start) * 1e3)
    return times[turns // 10 :]


async def echoed(turns: int, url: str) -> list[float]:
    async with connect(url, max_size=None, compression=None) as socket:
        times, frame = [], orjson.dumps(BODY).decode()
        for _ in range(turns + turns // 10):
            start = time.perf_counter()
            await socket.send(frame)
            await socket.recv()
            times.append((time.perf_counter() - start) * 1e3)
    return times[turns // 10 :]


async def flood(url: str) -> float:
    async with connect(url, max_size=None, compression=None, max_queue=None) as socket:
        start = time.perf_counter()
        await one_turn(socket, None, metadata={"flood": "1"})
        return FLOOD_TOKENS / (time.perf_counter() - start)


async def measure(turns: int, trials: int, gateway: str, echo: str) -> dict[str, object]:
    runs, floors, floods = [], [], []
    for _ in range(trials):
        runs.append(await timed(turns, gateway))
        floors.append(await echoed(turns, echo))
        floods.append(await flood(gateway))

    def spread(trials: list[list[float]], quantile: int) -> list[float]:
        """Median, least and most of that quantile over the trials, in ms."""
        found = [statistics.quantiles(times, n=100)[quantile - 1] for times in trials]
        return [round(value, 3) for value in (statistics.median(found), min(found), max(found))]

    return {
        "bench": "gateway_ws",
        "unit": "ms [median, min, max of trials]",
        "turn_p50": spread(runs, 50),
        "turn_p99": spread(runs, 99),
        "echo_floor_p50": spread(floors, 50),
        "echo_floor_p99": spread(floors, 99),
        "flood_tokens_per_s": [round(value) for value in sorted(floods)],
        "frame_bytes": len(orjson.dumps(BODY)),
        "turns": turns,
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--trials", type=int, default=3)
    args = parser.parse_args()
    children = [started(run_gateway), started(run_echo)]
    gateway, echo = (f"ws://{host}:{port}" for _, _, (host, port) in children)
    try:
        url = f"{gateway}/v1/responses"
        print(json.dumps(uvloop.run(measure(args.turns, args.trials, url, echo))))
    finally:
        for process, pipe, _ in children:
            with suppress(OSError):
                pipe.send("stop")
            process.join(10)


if __name__ == "__main__":
    main()
