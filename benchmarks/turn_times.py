"""What one continuation turn takes and costs, whatever came before it, server by server.

Codex-sized frames to `sim-max`, on two connections a server: one with a history of 1,000 tokens and
one of 100,000. Time from the send to the terminal event, and the CPU of all processes of the
server, by their role.
"""

import asyncio
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from agent_client import Connection, Turn, codex_frame, connected, first_input, next_input
from direct_engine import DirectEngine
from served import Server, role, websocket_url

GAPS_S = {"back_to_back": 0.0, "gaps_20_ms": 0.02}
TOKEN_CHARACTERS = 4
"""Of the simulated models."""
HISTORIES = (1_000, 100_000)
"""Tokens, besides instructions and tools."""
CHAIN_TURNS, UNTIMED_TURNS = 30, 10
"""Of one chain; each adds 600 tokens, so that its history stays about as long as it was. The first
ones come after a pause, and not back to back: they warm the caches of the processors."""
FIRST_OVER_S = 0.1
MEANT_S = 0.5
"""Shorter cases only show that the benchmark runs: those do not wait until the server is calm."""
CALM_S, SETTLE_S = 3.0, 60.0
BUSY_US = 300_000
"""Of all processes in a second: an idle server takes about a third of that."""

ENGINE = "engine"
Found = dict[str, Any]
Floors = dict[str, Callable[[], Awaitable[Turn]]]


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
    """Turns behind a history of some length; a new chain begins before it has grown."""

    def __init__(self, connection: Connection, tokens: int, instructions: str | None) -> None:
        text = ("word " * tokens)[: tokens * TOKEN_CHARACTERS]
        self._instructions = instructions
        first = first_input(text) if instructions is None else first_input(text, None)
        self._first = codex_frame(first, None, instructions=instructions)
        self._connection = connection
        self._response: dict[str, Any] = {}
        self._left = 0

    async def next_turn(self) -> Turn:
        if not self._left:
            await self.begin()
        self._left -= 1
        new, parent = next_input(self._response), self._response["id"]
        frame = codex_frame(new, parent, instructions=self._instructions)
        turn = await self._connection.turn(frame)
        self._response = turn.response
        return turn

    async def begin(self) -> None:
        """Not measured by itself: it has no parent."""
        self._response = (await self._connection.turn(self._first)).response
        self._left = CHAIN_TURNS


def cpu_us(server: psutil.Process) -> dict[psutil.Process, int]:
    """Microseconds on a processor since each of the server's processes began."""
    found: dict[psutil.Process, int] = {}
    for process in server.children(recursive=True):
        with suppress(OSError, psutil.Error):  # one that has just ended
            tasks = Path(f"/proc/{process.pid}/task").iterdir()
            found[process] = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    return {process: ns // 1000 for process, ns in found.items()}


def spent_us(
    begin: dict[psutil.Process, int], end: dict[psutil.Process, int], turns: int
) -> Counter[str]:
    """A turn, by role; a process that was not there at the beginning was not made for a turn."""
    found: Counter[str] = Counter()
    for process, us in end.items():
        if process in begin:
            found[role(process)] += (us - begin[process]) / turns  # type: ignore[assignment]
    return found


async def settled(server: psutil.Process) -> None:
    """Until the warm actors that replace those taken have started, which costs 0.4 s each."""
    calm_s, before = 0.0, cpu_us(server)
    while calm_s < CALM_S:
        await asyncio.sleep(1.0)
        now = cpu_us(server)
        busy = now.keys() != before.keys() or sum(now.values()) - sum(before.values()) > BUSY_US
        calm_s, before = (0.0 if busy else calm_s + 1.0), now


@dataclass
class Measured:
    """What was found in rounds: by server or floor, and by case, a list a round."""

    times: dict[tuple[str, str], list[list[float]]] = field(default_factory=dict)
    costs: dict[tuple[str, str], list[Counter[str]]] = field(default_factory=dict)
    engine_ms: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """The engine's own time in the same round."""

    async def add(
        self,
        name: str,
        server: Server,
        bare: dict[str, str],
        frame: bytes,
        instructions: str | None,
        seconds: float,
    ) -> None:
        """A round: all cases of one server, which has the machine to itself, and the floors.

        `bare`: the floors that are servers, by name; they are sent `frame`.
        """
        async with AsyncExitStack() as stack:
            floors = await begun_floors(stack, bare, frame)
            chains = await warmed(stack, server, instructions, seconds)
            for gap, gap_s in GAPS_S.items():
                for floor, once in floors.items():
                    found = await repeated(once, seconds / 4, gap_s)
                    self.times.setdefault((f"floor_{floor}", gap), []).append(found)
                    if floor == ENGINE:
                        own_ms = statistics.median(found)
                        self.engine_ms.setdefault((name, gap), []).append(own_ms)
                for tokens, chain in chains.items():
                    found, spent = await bursts(chain, server.process, seconds, gap_s)
                    self.times.setdefault((name, f"{gap}_{tokens}"), []).append(found)
                    self.costs.setdefault((name, f"{gap}_{tokens}"), []).append(spent)


async def begun_floors(stack: AsyncExitStack, bare: dict[str, str], frame: bytes) -> Floors:
    """What a turn cannot do without, by name: the engine's own work, and ways of bytes."""
    floors: Floors = {ENGINE: DirectEngine().next_turn}
    for name, url in bare.items():
        connection = await stack.enter_async_context(connected(url, terminals=(b"{",)))
        floors[name] = partial(connection.echo, frame)
    return floors


async def bursts(
    chain: "Chain", process: psutil.Process, seconds: float, gap_s: float
) -> tuple[list[float], Counter[str]]:
    """Milliseconds of each turn but the first ones, and what one took: of continuations alone.

    The first turn of a chain is screened while the next ones run, 64 KB of it: that is over first.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    times: list[float] = []
    spent: Counter[str] = Counter()
    chains = 0
    while loop.time() < end or not times:
        await chain.begin()
        await asyncio.sleep(FIRST_OVER_S)
        begin = cpu_us(process)
        for number in range(CHAIN_TURNS):
            if gap_s:
                await asyncio.sleep(gap_s)
            ms = (await chain.next_turn()).ended_s * 1e3
            if number >= UNTIMED_TURNS:
                times.append(ms)
        spent += spent_us(begin, cpu_us(process), CHAIN_TURNS)
        chains += 1
    return times, Counter({who: us / chains for who, us in spent.items()})  # type: ignore[misc]


async def warmed(
    stack: AsyncExitStack, server: Server, instructions: str | None, seconds: float
) -> "dict[int, Chain]":
    """By history; returns when the server is as calm as it becomes."""
    chains: dict[int, Chain] = {}
    for tokens in HISTORIES:
        connection = await stack.enter_async_context(connected(websocket_url(server.url)))
        chains[tokens] = Chain(connection, tokens, instructions)
    for chain in chains.values():
        await repeated(chain.next_turn, seconds / 5, 0.0)
    if seconds >= MEANT_S:
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await settled(server.process)
    return chains


def judged(measured: Measured) -> Found:
    times, costs = measured.times, measured.costs
    found: Found = {}
    for (name, case), trials in times.items():
        cost = {"cpu_us": cost_of(costs[name, case])} if (name, case) in costs else {}
        found.setdefault(name, {})[case] = spread(trials) | cost
        if cost:
            gap = case.removesuffix(f"_{case.split('_')[-1]}")
            beyond = overhead(trials, measured.engine_ms[name, gap])
            found[name][case] |= {"overhead": beyond}
    for name in {name for name, _ in costs}:
        for gap in GAPS_S:
            short, long = (times[name, f"{gap}_{tokens}"] for tokens in HISTORIES)
            found[name][f"{gap}_ratio"] = ratio(short, long)
    return found


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


def overhead(trials: list[list[float]], engine_ms: list[float]) -> Found:
    """`spread` of what each turn takes beyond the engine's own time in the same trial."""
    beyond = [[ms - less for ms in trial] for trial, less in zip(trials, engine_ms, strict=True)]
    return {name: value for name, value in spread(beyond).items() if name != "turns"}


def cost_of(trials: list[Counter[str]]) -> Found:
    """Medians over the trials, of the whole and of each role that takes part in turns."""
    roles = {who for trial in trials for who in trial}
    by_role = {who: statistics.median(trial[who] for trial in trials) for who in roles}
    shown = sorted((who for who in roles if by_role[who] >= 20), key=by_role.__getitem__)
    whole = statistics.median(trial.total() for trial in trials)
    return {"all": round(whole)} | {who: round(by_role[who]) for who in reversed(shown)}


def ratio(short: list[list[float]], long: list[list[float]]) -> Found:
    """How many times as long a turn takes behind the long history: of each trial's p50."""
    found = [
        statistics.median(after) / statistics.median(before)
        for before, after in zip(short, long, strict=True)
    ]
    return {
        "median": round(statistics.median(found), 3),
        "min": round(min(found), 3),
        "max": round(max(found), 3),
    }
