"""What one continuation turn costs a whole server, whatever came before it. Prints one JSON line.

Codex-sized frames to `sim-max` on two connections in turn, one with a history of 1,000 tokens and
one of 100,000: time from the send to the terminal event, back to back and with gaps of 20 ms, and
the CPU of all processes of the server, by their role. Safety off, then the default policy.
`--seconds 0.3 --trials 1` is the smoke run.
"""

import argparse
import asyncio
import gc
import json
import platform
import statistics
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import uvloop
from agent_client import Connection, codex_frame, connected, next_input
from end_to_end import GAPS_S, TOKEN_CHARACTERS, Found, repeated, spread
from served import ONLY_SIMULATED, role, served, websocket_url

HISTORIES = (1_000, 100_000)
"""Tokens, besides instructions and tools."""
CHAIN_TURNS = 20
"""Of one chain; each adds 600 tokens, so that its history stays about as long as it was."""
CALM_S, SETTLE_S = 3.0, 60.0
BUSY_US = 300_000
"""Of all processes in a second: an idle server takes about a third of that."""


class Chain:
    """Turns behind a history of some length; a new chain begins before it has grown."""

    def __init__(self, connection: Connection, tokens: int) -> None:
        text = ("word " * tokens)[: tokens * TOKEN_CHARACTERS]
        self._first = codex_frame([{"type": "message", "role": "user", "content": text}], None)
        self._connection = connection
        self._response: dict[str, Any] = {}
        self._left = 0

    async def next_turn(self) -> Any:  # noqa: ANN401 -- as `repeated` takes it
        if not self._left:
            await self.begin()
        self._left -= 1
        frame = codex_frame(next_input(self._response), self._response["id"])
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


async def measure(url: str, server: psutil.Process, seconds: float, trials: int) -> Found:
    times: dict[str, list[list[float]]] = {}
    costs: dict[str, list[Counter[str]]] = {}
    async with AsyncExitStack() as stack:
        chains = {
            tokens: Chain(await stack.enter_async_context(connected(url)), tokens)
            for tokens in HISTORIES
        }
        for chain in chains.values():
            await repeated(chain.next_turn, seconds / 5, 0.0)
        async with asyncio.timeout(SETTLE_S):
            await settled(server)
        for _ in range(trials):
            for gap, gap_s in GAPS_S.items():
                for tokens, chain in chains.items():
                    await chain.begin()
                    begin = cpu_us(server)
                    found = await repeated(chain.next_turn, seconds, gap_s)
                    spent = spent_us(begin, cpu_us(server), len(found))
                    name = f"{gap}_{tokens}"
                    times.setdefault(name, []).append(found)
                    costs.setdefault(name, []).append(spent)
    return {
        name: spread(trial) | {"cpu_us": cost_of(costs[name])} for name, trial in times.items()
    } | {f"{gap}_ratio": ratio(times, gap) for gap in GAPS_S}


def cost_of(trials: list[Counter[str]]) -> Found:
    """Medians over the trials, of the whole and of each role that takes part in turns."""
    roles = {who for trial in trials for who in trial}
    by_role = {who: statistics.median(trial[who] for trial in trials) for who in roles}
    shown = sorted((who for who in roles if by_role[who] >= 20), key=by_role.__getitem__)
    whole = statistics.median(trial.total() for trial in trials)
    return {"all": round(whole)} | {who: round(by_role[who]) for who in reversed(shown)}


def ratio(times: dict[str, list[list[float]]], gap: str) -> Found:
    """How many times as long a turn takes behind the long history: of each trial's p50."""
    short, long = (times[f"{gap}_{tokens}"] for tokens in HISTORIES)
    found = [
        statistics.median(after) / statistics.median(before)
        for before, after in zip(short, long, strict=True)
    ]
    return {
        "median": round(statistics.median(found), 3),
        "min": round(min(found), 3),
        "max": round(max(found), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each case in a trial")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--policies", nargs="+", default=["off", "score"], help="of safety")
    args = parser.parse_args()
    results: Found = {}
    for policy in args.policies:
        with served(f'{ONLY_SIMULATED}[safety]\npolicy = "{policy}"\n') as server:
            gc.collect()
            gc.freeze()
            url = websocket_url(server.url)
            results[f"safety_{policy}"] = uvloop.run(
                measure(url, server.process, args.seconds, args.trials)
            )
    about = {"trials": args.trials, "python": platform.python_version()}
    print(json.dumps({"bench": "turn_cost", "unit": "ms and us of CPU a turn", **results, **about}))


if __name__ == "__main__":
    main()
