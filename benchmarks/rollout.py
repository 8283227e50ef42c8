"""An agent's rollout end to end: transport by caches, two by two. Prints one JSON line.

From a history of 20,000 tokens an agent takes tool turns, each of which adds 500 tokens: 100 that
the model writes and 400 that the tool answers. Over one WebSocket with `previous_response_id`, or
over HTTP with the full history each time; with all savings, or with none of them (`[ablation]`).
`sooner` is how much less time a rollout takes than over HTTP without savings; zeros and losses are
given like gains.

At 1,000 tokens a second the four are run one after the other, several times; for the other paces
they run side by side, once, and 5, 10, 20 and 40 turns are the beginnings of one rollout. The whole
takes some six minutes; `--quick` is 20 turns at 1,000.
"""

import argparse
import asyncio
import json
import platform
import statistics
from contextlib import AsyncExitStack
from typing import Any

import uvloop
from agent_client import OUTPUT, Connection, codex_frame, connected, first_input, next_input
from http_client import HttpConnection, http_connected
from served import ONLY_SIMULATED, served, websocket_url
from turn_times import TOKEN_CHARACTERS

from turnwire.pipelines.ablation import SAVINGS

HISTORY_TOKENS, OUTPUT_TOKENS, RESULT_TOKENS = 20_000, 100, 400
MIDDLE_TURNS, MIDDLE_RATE, TRIALS = 20, 1000, 3
TURNS, RATES = (5, 10, 20, 40), (65, 250, 1000, 4000)
SETTINGS = f"{ONLY_SIMULATED}[ablation]\nby_header = true\n"
CELLS = ("websocket_on", "websocket_off", "http_on", "http_off")
"""Transport and savings."""
WORST = "http_off"

Found = dict[str, Any]
Items = list[dict[str, Any]]


def body(items: Items, parent: str | None, rate: int) -> bytes:
    steering = {"sim.output_tokens": str(OUTPUT_TOKENS)}
    return codex_frame(items, parent, f"sim-{rate}", **steering)


def first_items() -> Items:
    return first_input(("word " * HISTORY_TOKENS)[: HISTORY_TOKENS * TOKEN_CHARACTERS])


def result(response: dict[str, Any]) -> Items:
    """What the tool answers, cut to size."""
    text = (OUTPUT * 4)[: RESULT_TOKENS * TOKEN_CHARACTERS]
    return [{**item, "output": text} for item in next_input(response)]


async def rollout(
    connection: Connection | HttpConnection, turns: int, rate: int, *, chained: bool
) -> list[float]:
    """Seconds from the first tool result until each turn had ended."""
    items = first_items()
    response = (await connection.turn(body(items, None, rate))).response
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    ends: list[float] = []
    for _ in range(turns):
        new = result(response)
        if chained:
            frame = body(new, response["id"], rate)
        else:
            items += [*response["output"], *new]
            frame = body(items, None, rate)
        response = (await connection.turn(frame)).response
        ends.append(loop.time() - begin_s)
    return ends


async def run(url: str, cell: str, turns: int, rate: int) -> list[float]:
    transport, savings = cell.split("_")
    headers = {"X-Turnwire-Ablation": ",".join(SAVINGS)} if savings == "off" else {}
    async with AsyncExitStack() as stack:
        if transport == "websocket":
            opened = connected(websocket_url(url), headers=headers)
            socket = await stack.enter_async_context(opened)
            return await rollout(socket, turns, rate, chained=True)
        http = await stack.enter_async_context(http_connected(url, headers))
        return await rollout(http, turns, rate, chained=False)


async def middle(url: str) -> Found:
    """The four one after the other, so that nothing else takes time from any."""
    times: dict[str, list[float]] = {cell: [] for cell in CELLS}
    for _ in range(TRIALS):
        for cell in CELLS:
            times[cell].append((await run(url, cell, MIDDLE_TURNS, MIDDLE_RATE))[-1])
    return judged({cell: statistics.median(found) for cell, found in times.items()}) | {
        "range_s": {
            cell: [round(min(found), 3), round(max(found), 3)] for cell, found in times.items()
        }
    }


async def grid(url: str) -> Found:
    found: Found = {}
    for rate in RATES:
        ends = await asyncio.gather(*(run(url, cell, max(TURNS), rate) for cell in CELLS))
        for turns in TURNS:
            seconds = {cell: end[turns - 1] for cell, end in zip(CELLS, ends, strict=True)}
            found[f"{turns}_turns_at_{rate}"] = judged(seconds)
    return found


def judged(seconds: dict[str, float]) -> Found:
    """What transport and savings contribute: each alone, and the other on top of it."""

    def sooner(cell: str, than: str) -> float:
        return round(1 - seconds[cell] / seconds[than], 3)

    return {
        "seconds": {cell: round(found, 3) for cell, found in seconds.items()},
        "sooner": {cell: sooner(cell, WORST) for cell in CELLS if cell != WORST},
        "transport_alone": sooner("websocket_off", WORST),
        "transport_with_savings": sooner("websocket_on", "http_on"),
        "savings_alone": sooner("http_on", WORST),
        "savings_with_transport": sooner("websocket_on", "websocket_off"),
    }


async def measure(url: str, *, quick: bool) -> Found:
    await run(url, "websocket_on", 2, MIDDLE_RATE)
    await run(url, "http_on", 2, MIDDLE_RATE)
    found: Found = {f"{MIDDLE_TURNS}_turns_at_{MIDDLE_RATE}_one_by_one": await middle(url)}
    return found if quick else found | await grid(url)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the middle cell alone")
    args = parser.parse_args()
    with served(SETTINGS) as server:
        found = uvloop.run(measure(server.url, quick=args.quick))
    about = {"trials": TRIALS, "python": platform.python_version()}
    print(json.dumps({"bench": "rollout", "unit": "s, and shares of it", **about, **found}))


if __name__ == "__main__":
    main()
