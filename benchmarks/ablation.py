"""What each saving of a turn buys in time to the first output. Prints one JSON line.

One server that lets its clients leave savings out (`[ablation] by_header`). For each history and
each pace of a model, connections that leave out nothing, one saving, and all of them, take turns:
continuations of 600 tokens in Codex-sized frames, back to back. Under the policy `block`, since
only there a client waits for the verdict. A share is how much sooner the first output comes than
without that saving; with `prefill_us` at 0 the engine's own work is left out of account.

The whole takes some four minutes; `--quick` is one history and one pace.
"""

import argparse
import asyncio
import json
import platform
import statistics
from contextlib import AsyncExitStack
from typing import Any

import orjson
import uvloop
from agent_client import Connection, codex_frame, connected, first_input, next_input
from served import ONLY_SIMULATED, served, websocket_url
from turn_times import TOKEN_CHARACTERS

from turnwire.pipelines.ablation import SAVINGS

NOTHING, ALL = "nothing", "all"
VARIANTS = (NOTHING, *SAVINGS, ALL)
HISTORIES = (1_000, 20_000, 100_000)
PACES = {"no_time": (0, 0), "fast": (5, 2), "usual": (20, 20)}
"""Milliseconds to the first token, and microseconds of prefill a token not cached."""
SAFETY = '[safety]\npolicy = "block"\nmax_bytes = 4194304\ndeadline_s = 60\n'
SETTINGS = f"{ONLY_SIMULATED}{SAFETY}[ablation]\nby_header = true\n"
ROUNDS, QUICK_ROUNDS = 9, 5
OUTPUT_TOKENS = "20"

Found = dict[str, Any]


class Chain:
    """One conversation that grows a little with each turn, on a connection of its own."""

    def __init__(self, connection: Connection, tokens: int, pace: tuple[int, int]) -> None:
        self._connection = connection
        self._metadata = {
            "sim.first_token_ms": str(pace[0]),
            "sim.prefill_us_per_token": str(pace[1]),
            "sim.output_tokens": OUTPUT_TOKENS,
        }
        self._text = ("word " * tokens)[: tokens * TOKEN_CHARACTERS]
        self._response: dict[str, Any] = {}
        self.first_ms: list[float] = []
        self.stages: list[dict[str, int]] = []

    async def begin(self) -> None:
        frame = codex_frame(first_input(self._text), None, **self._metadata)
        self._response = (await self._connection.turn(frame)).response

    async def turn(self) -> None:
        new, parent = next_input(self._response), self._response["id"]
        turn = await self._connection.turn(codex_frame(new, parent, **self._metadata))
        self._response = turn.response
        self.first_ms.append(turn.first_s * 1e3)
        self.stages.append(orjson.loads(turn.response["metadata"]["turnwire.timings"]))


async def cell(url: str, tokens: int, pace: tuple[int, int], rounds: int) -> Found:
    """All variants in turn, `rounds` times, two turns each of which the second is measured."""
    async with AsyncExitStack() as stack:
        chains: dict[str, Chain] = {}
        for variant in VARIANTS:
            left_out = ",".join(SAVINGS) if variant == ALL else variant
            headers = {"X-Turnwire-Ablation": left_out, "X-Turnwire-Timings": "1"}
            connection = await stack.enter_async_context(connected(url, headers=headers))
            chains[variant] = Chain(connection, tokens, pace)
            await chains[variant].begin()
        for number in range(rounds + 1):
            for chain in chains.values():
                # The first begins after a pause, and would not wait for the one before.
                for _ in range(2):
                    await chain.turn()
                del chain.first_ms[-2], chain.stages[-2]
                if not number:
                    chain.first_ms.clear()
                    chain.stages.clear()
    usual = statistics.median(chains[NOTHING].first_ms)
    return {
        variant: spread(chain.first_ms)
        | {"sooner": round(1 - usual / statistics.median(chain.first_ms), 3)}
        | {"stages_us": medians(chain.stages)}
        for variant, chain in chains.items()
    }


def spread(values: list[float]) -> Found:
    """The median, and where it lies with 95 % certainty (of nine values: the second to eighth)."""
    ordered = sorted(values)
    cut = 1 if len(ordered) >= 9 else 0
    low, high = ordered[cut], ordered[-1 - cut]
    return {"ms": round(statistics.median(values), 2), "from": round(low, 2), "to": round(high, 2)}


def medians(stages: list[dict[str, int]]) -> dict[str, int]:
    return {
        name: round(statistics.median(found.get(name, 0) for found in stages)) for name in stages[0]
    }


async def measure(url: str, *, quick: bool) -> Found:
    found: Found = {}
    for name, pace in ({"no_time": PACES["no_time"]} if quick else PACES).items():
        for tokens in HISTORIES[1:2] if quick else HISTORIES:
            rounds = QUICK_ROUNDS if quick else ROUNDS
            found[f"{name}_{tokens}"] = await cell(url, tokens, pace, rounds)
            await asyncio.sleep(0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one history, one pace, five rounds")
    args = parser.parse_args()
    with served(SETTINGS) as server:
        found = uvloop.run(measure(websocket_url(server.url), quick=args.quick))
    unit = "ms to the first output"
    about = {"unit": unit, "python": platform.python_version()}
    print(json.dumps({"bench": "ablation", **about, "cells": found}))


if __name__ == "__main__":
    main()
