"""What a whole server adds to a turn, and whether it carries the pace. Prints one JSON line.

One connection sends Codex-sized frames (36 KB of instructions and tools, 2 KB that are new) to
`sim-max`, chained with `store: false`: from the send to the terminal event, back to back and with
gaps of 20 ms, with safety off and with the default policy, beside a bare WebSocket echo of the same
frames (uvicorn, in a process of its own). Then one stream at 4,000 tokens a second, and 25 at 1,000
on 25 connections: achieved over wanted.

Two servers are started one after the other; `--url` measures a running one instead, as it is.
`--seconds 0.5 --trials 1` is the smoke run.
"""

import argparse
import asyncio
import json
import multiprocessing
import platform
import statistics
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection as Pipe
from typing import Any

import orjson
import uvicorn
import uvloop
from agent_client import Connection, Turn, codex_frame, connected, first_input, next_input
from served import ONLY_SIMULATED, served, websocket_url

GAPS_S = {"back_to_back": 0.0, "gaps_20_ms": 0.02}
MAX_TURNS = 400
"""Of one chain: it stays far below the window."""
TOKEN_CHARACTERS = 4
"""Of the simulated models."""

Found = dict[str, Any]


async def echo_app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 -- ASGI
    """The floor: the same frames, and nothing done with them."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


def serve_echo(pipe: Pipe) -> None:
    """The floor's process, until it is killed."""

    async def main() -> None:
        config = uvicorn.Config(
            echo_app,
            port=0,
            ws="websockets-sansio",
            ws_max_size=128 << 20,
            ws_per_message_deflate=False,
            lifespan="off",
            log_level="warning",
        )
        server = uvicorn.Server(config)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110 -- uvicorn has no event for it
                await asyncio.sleep(0.01)
            pipe.send(server.servers[0].sockets[0].getsockname()[1])

    uvloop.run(main())


async def repeated(
    once: Callable[[], Awaitable[Turn]], seconds: float, gap_s: float
) -> list[float]:
    """Milliseconds of each; at least three."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    found: list[float] = []
    while loop.time() < end or len(found) < 3:
        if gap_s:
            await asyncio.sleep(gap_s)
        found.append((await once()).ended_s * 1e3)
    return found


class Chain:
    """Turns that continue each other; a new chain begins when one grows long."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._turns = 0
        self._response: dict[str, Any] = {}

    async def next_turn(self) -> Turn:
        if self._turns % MAX_TURNS == 0:
            # Not measured: it has no parent.
            first = await self._connection.turn(codex_frame(first_input(), None))
            self._response = first.response
        self._turns += 1
        frame = codex_frame(next_input(self._response), self._response["id"])
        turn = await self._connection.turn(frame)
        self._response = turn.response
        return turn


async def turns(url: str, key: str | None, echo_port: int, seconds: float, trials: int) -> Found:
    """All cases in turn, `trials` times, so that a slow moment of the machine hits each."""
    found: dict[str, list[list[float]]] = {}
    async with (
        connected(url, key) as connection,
        connected(f"ws://127.0.0.1:{echo_port}/", terminals=(b"{",)) as echo,
    ):
        chain = Chain(connection)
        frame = codex_frame([{**first_input()[0], "role": "user"}], "resp_" + "0" * 32)
        await repeated(chain.next_turn, seconds / 5, 0.0)  # the warm-up
        for _ in range(trials):
            for name, gap_s in GAPS_S.items():
                floor = await repeated(lambda: echo.echo(frame), seconds / 4, gap_s)
                found.setdefault(f"floor_{name}", []).append(floor)
                times = await repeated(chain.next_turn, seconds, gap_s)
                found.setdefault(name, []).append(times)
    return {name: spread(times) for name, times in found.items()}


def spread(trials: list[list[float]]) -> Found:
    """Medians over the trials, with the range of the p50."""
    p50 = [statistics.median(trial) for trial in trials]
    p99 = [sorted(trial)[int(len(trial) * 0.99)] for trial in trials]
    return {
        "p50_ms": round(statistics.median(p50), 3),
        "p50_min_ms": round(min(p50), 3),
        "p50_max_ms": round(max(p50), 3),
        "p99_ms": round(statistics.median(p99), 3),
        "turns": sum(map(len, trials)),
    }


async def stream_rate(connection: Connection, rate: int, seconds: float) -> float:
    """Tokens a second from the first delta to the last."""
    tokens = max(100, int(rate * seconds))
    request = {
        "type": "response.create",
        "model": f"sim-{rate}",
        "store": False,
        "input": "go on",
        "max_output_tokens": tokens,
        "metadata": {"sim.output_tokens": str(tokens)},
    }
    deltas = (await connection.turn(orjson.dumps(request))).deltas
    (first_s, first), (last_s, _) = deltas[0], deltas[-1]
    characters = sum(count for _, count in deltas)
    if characters != tokens * TOKEN_CHARACTERS:
        raise SystemExit(f"{characters} characters came for {tokens} tokens")
    return (characters - first) / TOKEN_CHARACTERS / (last_s - first_s)


async def streams(
    url: str, key: str | None, count: int, rate: int, seconds: float, trials: int
) -> Found:
    """`count` streams at once, each on its own connection: achieved over wanted."""
    shares: list[float] = []
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(connected(url, key, keep_deltas=True))
            for _ in range(count)
        ]
        for _ in range(trials):
            running = (stream_rate(c, rate, max(1.0, seconds)) for c in connections)
            shares += [found / rate for found in await asyncio.gather(*running)]
    return {
        "median": round(statistics.median(shares), 4),
        "min": round(min(shares), 4),
        "max": round(max(shares), 4),
    }


async def paces(url: str, key: str | None, seconds: float, trials: int) -> Found:
    return {
        "stream_4000_achieved": await streams(url, key, 1, 4000, seconds, trials),
        "streams_25_x_1000_achieved": await streams(url, key, 25, 1000, seconds, trials),
    }


def measure(args: argparse.Namespace, echo_port: int) -> Found:
    def of(base: str, *, with_paces: bool) -> Found:
        url = websocket_url(base)
        found = uvloop.run(turns(url, args.key, echo_port, args.seconds, args.trials))
        if with_paces:
            found |= uvloop.run(paces(url, args.key, args.seconds, args.trials))
        return found

    if args.url:
        return {"as_it_is": of(args.url, with_paces=True)}
    with served(ONLY_SIMULATED + '[safety]\npolicy = "off"\n') as server:
        safety_off = of(server.url, with_paces=False)
    with served(ONLY_SIMULATED) as server:
        default = of(server.url, with_paces=True)
    return {"safety_off": safety_off, "safety_default": default}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case in a trial")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--url", help="base URL of a running server, with /v1")
    parser.add_argument("--key", help="its API key")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    echo = context.Process(target=serve_echo, args=(there,))
    echo.start()
    try:
        if not here.poll(30):
            raise SystemExit("the echo server did not start")
        found = measure(args, here.recv())
    finally:
        echo.kill()
        echo.join()
    about = {"trials": args.trials, "python": platform.python_version()}
    print(json.dumps({"bench": "end_to_end", "unit": "ms a turn", **found, **about}))


if __name__ == "__main__":
    main()
