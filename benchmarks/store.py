"""What it costs to keep responses, on SQLite and on PostgreSQL. Prints one JSON line.

`kept`: 10,000 responses (8 KB each) are saved through a storage worker's channel, 32 at a time,
with 1 % deletes, under a bound of half their bytes: how far the bound was ever passed, whether a
delete is off the count at once, and the time to retrieve one after each tenth of them.
`turn`: Codex-sized turns to `sim-max`, `store: false` and `store: true` in turn on a server of each
database, all in one run, beside the floor, an `fdatasync` of as many bytes on the same disk.

PostgreSQL is the tests' own, with all its safety on. `--seconds 0.5 --trials 1` is the smoke run.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import uvloop
from agent_client import Connection, Turn, codex_frame, connected, first_input, next_input
from end_to_end import Found, spread
from served import ONLY_SIMULATED, served, websocket_url

from turnwire.actors.channel import Channel
from turnwire.actors.storage import StorageActor
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, StorageSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from postgres import PostgresServer, rows_of

DATABASES = ("sqlite", "postgresql")
RESPONSE_BYTES = 8192
AT_ONCE = 32
DELETES = 0.01
SLICES = 10
FETCHES = 200
TURNS = 50
"""Of a chain; then a new one begins."""
STARTING_TRIES, STARTING_PAUSE_S = 100, 0.2


@asynccontextmanager
async def storage(url: str, max_bytes: int) -> AsyncIterator[Channel]:
    with tempfile.TemporaryDirectory() as folder:
        settings = StorageSettings(url=url, max_bytes=max_bytes, sweep_s=0.1)
        actor = StorageActor("storage", "here", settings, ChannelSettings())
        worker = await actor.start(Path(folder) / "private")
        channel = await Channel.connect(worker.endpoint, ChannelSettings(), node="here")
        yield channel
        await channel.close()
        await actor.close()


def stored_bytes(url: str) -> int:
    return int(rows_of(url, "select sum(bytes) from storage_slots")[0][0])


async def kept(url: str, responses: int) -> Found:
    bound = responses * RESPONSE_BYTES // 2
    rng = random.Random(7)
    alive: list[str] = []
    most = freed = deletes = 0
    delete_ms: list[float] = []
    fetch_ms: list[float] = []
    save_ms: list[float] = []

    async def save(channel: Channel, number: int) -> None:
        begin = time.perf_counter()
        id = f"resp_{number:06}"
        half = os.urandom(RESPONSE_BYTES // 2)
        turn = m.StoredTurn(id, half, b"")
        await channel.call(m.Save("t", id, int(time.time()), half, turn))
        save_ms.append((time.perf_counter() - begin) * 1e3)
        alive.append(id)

    async with storage(url, bound) as channel:
        for part in range(SLICES):
            numbers = range(part * responses // SLICES, (part + 1) * responses // SLICES)
            for start in range(numbers.start, numbers.stop, AT_ONCE):
                group = range(start, min(start + AT_ONCE, numbers.stop))
                await asyncio.gather(*(save(channel, number) for number in group))
                most = max(most, await asyncio.to_thread(stored_bytes, url))
            # Of those that retention has not reached yet; the count is read at once.
            young = alive[-min(len(alive), responses // 4) :]
            for id in rng.sample(young, max(1, int(len(numbers) * DELETES))):
                before = await asyncio.to_thread(stored_bytes, url)
                begin = time.perf_counter()
                await channel.call(m.Delete("t", id))
                delete_ms.append((time.perf_counter() - begin) * 1e3)
                deletes += 1
                freed += await asyncio.to_thread(stored_bytes, url) <= before - RESPONSE_BYTES
                alive.remove(id)
            times = []
            for id in rng.choices(alive[-responses // SLICES // 2 :], k=FETCHES):
                begin = time.perf_counter()
                await channel.call(m.Fetch("t", id))
                times.append((time.perf_counter() - begin) * 1e3)
            fetch_ms.append(round(statistics.median(times), 3))
        end = most
        while end > bound:
            await asyncio.sleep(0.05)
            end = await asyncio.to_thread(stored_bytes, url)
    ((rows,),) = rows_of(url, "select count(*) from responses")
    return {
        "bound_bytes": bound,
        "most_over_bound": round(most / bound - 1, 4),
        "end_over_bound": round(end / bound - 1, 4),
        "rows_left": rows,
        "deletes": deletes,
        "deletes_freed_at_once": freed,
        "delete_p50_ms": round(statistics.median(delete_ms), 3),
        "save_p50_ms": round(statistics.median(save_ms), 3),
        "save_p99_ms": round(sorted(save_ms)[int(len(save_ms) * 0.99)], 3),
        "fetch_p50_ms_by_tenth": fetch_ms,
    }


class Chain:
    """Turns that continue each other, stored or not."""

    def __init__(self, connection: Connection, store: bool) -> None:
        self._connection = connection
        self._store = store
        self._turns = 0
        self._response: dict[str, Any] = {}

    async def next_turn(self) -> Turn:
        if self._turns % TURNS == 0:
            first = await self._connection.turn(self._frame(first_input(), None))
            self._response = first.response
        self._turns += 1
        frame = self._frame(next_input(self._response), self._response["id"])
        turn = await self._connection.turn(frame)
        self._response = turn.response
        return turn

    def _frame(self, input: list[dict[str, Any]], parent: str | None) -> bytes:
        frame = orjson.loads(codex_frame(input, parent))
        return orjson.dumps(frame | {"store": self._store})


async def turns(urls: dict[str, str], seconds: float, trials: int) -> Found:
    async with AsyncExitStack() as stack:
        chains = {}
        for name, url in urls.items():
            for store in (False, True):
                connection = await stack.enter_async_context(connected(websocket_url(url)))
                chains[f"{name}_store_{str(store).lower()}"] = Chain(connection, store)
        for chain in chains.values():
            await taken(chain)
        await interleaved(chains, seconds / 10)
        trial = [await interleaved(chains, seconds) for _ in range(trials)]
    found = {name: spread([times[name] for times in trial]) for name in trial[0]}
    for name in urls:
        for part in ("p50_ms", "p99_ms"):
            with_store, without = (found[f"{name}_store_{x}"][part] for x in ("true", "false"))
            found[f"{name}_overhead_{part}"] = round(with_store - without, 3)
    return found


async def taken(chain: Chain) -> None:
    """The first turns after a start may be refused; once one was taken it is measured."""
    for _ in range(STARTING_TRIES):
        try:
            await chain.next_turn()
        except ConnectionError:
            await asyncio.sleep(STARTING_PAUSE_S)
        else:
            return
    raise SystemExit("the server takes no turns")


async def interleaved(chains: dict[str, Chain], seconds: float) -> dict[str, list[float]]:
    """A turn of each, then again; milliseconds by name."""
    times: dict[str, list[float]] = {name: [] for name in (*chains, "floor_fdatasync")}
    end_s = time.perf_counter() + seconds
    with tempfile.TemporaryFile(dir=".") as file:
        while time.perf_counter() < end_s or len(times["floor_fdatasync"]) < 3:
            for name, chain in chains.items():
                times[name].append((await chain.next_turn()).ended_s * 1e3)
            times["floor_fdatasync"].append(synced_ms(file.fileno()))
    return times


def synced_ms(file: int) -> float:
    begin = time.perf_counter()
    os.write(file, b"x" * 45_000)
    os.fdatasync(file)
    return (time.perf_counter() - begin) * 1e3


def measure(args: argparse.Namespace) -> Found:
    with (
        PostgresServer(settings=()) as postgres,
        tempfile.TemporaryDirectory(dir=".") as folder,
    ):
        stores = {"sqlite": f"sqlite:///{folder}/kept.db", "postgresql": postgres.database()}
        found: Found = {
            "kept": {name: uvloop.run(kept(url, args.responses)) for name, url in stores.items()}
        }
        url = postgres.database()
        on_postgres = f'[storage]\nurl = "{url}"\n[billing]\nurl = "{url}"\n' + ONLY_SIMULATED
        settings = {"sqlite": ONLY_SIMULATED, "postgresql": on_postgres}
        with ExitStack() as stack:
            urls = {name: stack.enter_context(served(settings[name])).url for name in args.turns_on}
            found["turn"] = uvloop.run(turns(urls, args.seconds, args.trials))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each trial")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--responses", type=int, default=10_000)
    parser.add_argument(
        "--turns-on", nargs="+", choices=DATABASES, default=DATABASES, help="databases of `turn`"
    )
    args = parser.parse_args()
    line = {"bench": "store", **measure(args), "python": platform.python_version()}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
