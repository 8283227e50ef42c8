"""What a whole server adds to a turn, and whether it carries the pace. Prints one JSON line.

Frames as Codex sends them (37 KB first, then 22 KB: 19 KB of tools, 2 KB that are new) to
`sim-max`, chained with `store: false`: from the send to the terminal event, behind 1,000 and behind
100,000 tokens of history, back to back and with gaps of 20 ms, with safety off and with the default
policy, and what all processes of the server spend on a turn. `overhead` is what is left of it
without the engine's own time.

Beside three floors: the engine by itself (`direct_engine.py`), a bare WebSocket echo of the same
frames, and the same way through three processes that only pass bytes on (`floors.py`). Each trial
is a fresh server with the machine to itself, since an idle one takes a seventh of a core; policies
take turns. Then, with the last one, one stream at 4,000 tokens a second, and 25 at 1,000 on 25
connections: achieved over wanted. Six servers take five minutes.

`--instructions` has 17 KB of instructions in every frame, as other agents send them. `--url`
measures a running server instead, as it is. `--seconds 0.5 --trials 1` is the smoke run.
"""

import argparse
import asyncio
import gc
import json
import platform
import statistics
from contextlib import AsyncExitStack

import orjson
import turn_times
import uvloop
from agent_client import INSTRUCTIONS, OUTPUT, Connection, codex_frame, connected
from floors import floors
from served import ONLY_SIMULATED, served, websocket_url
from turn_times import GAPS_S, HISTORIES, TOKEN_CHARACTERS, Chain, Found, repeated, spread

PARENT = "resp_" + "0" * 32


def echoed(instructions: str | None) -> bytes:
    """What the floors are sent: a frame as long as a continuation's."""
    new = {"type": "function_call_output", "id": "fco_" + "0" * 32, "call_id": "call_" + "0" * 24}
    return codex_frame([new | {"output": OUTPUT}], PARENT, instructions=instructions)


async def turns(args: argparse.Namespace, url: str, bare: dict[str, str]) -> Found:
    """Of a running server, whose processes may be anywhere."""
    found: dict[str, list[list[float]]] = {}
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(connected(url, args.key))
        floors = await turn_times.begun_floors(stack, bare, echoed(args.said))
        chain = Chain(connection, HISTORIES[0], args.said)
        await repeated(chain.next_turn, args.seconds / 5, 0.0)  # the warm-up
        for _ in range(args.trials):
            for name, gap_s in GAPS_S.items():
                for kind, once in floors.items():
                    bare_ms = await repeated(once, args.seconds / 4, gap_s)
                    found.setdefault(f"floor_{kind}_{name}", []).append(bare_ms)
                times = await repeated(chain.next_turn, args.seconds, gap_s)
                found.setdefault(name, []).append(times)
    return {name: spread(times) for name, times in found.items()}


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


def measure(args: argparse.Namespace, bare: dict[str, str]) -> Found:
    if args.url:
        url = websocket_url(args.url)
        found = uvloop.run(turns(args, url, bare))
        found |= uvloop.run(paces(url, args.key, args.seconds, args.trials))
        return {"as_it_is": found}
    measured = turn_times.Measured()
    for trial in range(args.trials):
        for policy in args.policies:
            last = (trial, policy) == (args.trials - 1, args.policies[-1])
            with served(f'{ONLY_SIMULATED}[safety]\npolicy = "{policy}"\n') as server:
                gc.collect()
                gc.freeze()
                name, frame = f"safety_{policy}", echoed(args.said)
                uvloop.run(measured.add(name, server, bare, frame, args.said, args.seconds))
                if last:
                    url = websocket_url(server.url)
                    pace = uvloop.run(paces(url, None, args.seconds, args.trials))
    return turn_times.judged(measured) | pace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case in a trial")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--policies", nargs="+", default=["off", "score"], help="of safety")
    parser.add_argument(
        "--instructions", dest="said", action="store_const", const=INSTRUCTIONS, help="in each"
    )
    parser.add_argument("--url", help="base URL of a running server, with /v1")
    parser.add_argument("--key", help="its API key")
    args = parser.parse_args()
    with floors() as bare:
        found = measure(args, bare)
    about = {"trials": args.trials, "python": platform.python_version()}
    print(json.dumps({"bench": "end_to_end", "unit": "ms a turn", **found, **about}))


if __name__ == "__main__":
    main()
