"""Pool processes under kill -9: the registry heals, and every record is in the ledger once."""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import cloudpickle

from turnwire.actors.backoff import Backoff
from turnwire.actors.billing import BillingActor
from turnwire.actors.peers import Peers
from turnwire.actors.registration import Registration
from turnwire.actors.routing import RoutingActor
from turnwire.actors.routing_ref import RoutingRef
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import BillingSettings, ChannelSettings, SafetySettings
from turnwire.pipelines.protocol.errors import ModelNotFound, NotFound, Overloaded

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NODE = "here"
CHANNEL = ChannelSettings(heartbeat_s=0.2, silence_s=2)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def routing_handle() -> Any:  # noqa: ANN401 -- Ray's handle
    return ray.get_actor("routing")


class Routing(RoutingActor):
    def pid(self) -> int:
        return os.getpid()


class Billing(BillingActor):
    """A billing process that registers itself, as the cluster's applications do."""

    async def serve(self, folder: Path) -> int:
        worker = await self.start(folder)
        self._stack = AsyncExitStack()
        await self._stack.enter_async_context(
            Registration(
                worker,
                self.secret,
                RoutingRef(routing_handle),
                self.load,
                CHANNEL,
                Backoff(0.02, 0.2),
            )
        )
        return os.getpid()


async def start_routing(folder: Path) -> tuple[Any, int]:
    """Its handle, which keeps it alive, and its process."""
    made = ray.remote(Routing).options(name="routing", num_cpus=0, max_concurrency=64)
    async with asyncio.timeout(60):
        while True:
            try:
                handle = made.remote("routing", NODE, CHANNEL, ("smollm2",))
                break
            except ValueError:  # Ray has not yet noticed that the one of that name died
                await asyncio.sleep(0.05)
    await handle.start.remote(folder)
    return handle, await handle.pid.remote()


async def start_billing(id: str, folder: Path, url: str) -> tuple[Any, int]:
    made = ray.remote(Billing).options(num_cpus=0, max_concurrency=64)
    handle = made.remote(id, NODE, BillingSettings(url=url), CHANNEL)
    return handle, await handle.serve.remote(folder)


@asynccontextmanager
async def gateway() -> AsyncIterator[Peers]:
    routing = RoutingRef(routing_handle)
    async with Peers(NODE, routing, CHANNEL, SafetySettings(), BillingSettings()) as peers:
        await peers.synced()
        yield peers


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 -- what other processes do sets no event
            await asyncio.sleep(0.01)


def record(number: int) -> m.UsageRecord:
    counts = m.Counts(1, 0, number)
    return m.UsageRecord(f"resp_{number}", "red", "k", "m", "completed", 7, counts)


async def test_every_record_is_in_the_ledger_once_after_kills_under_load(
    ray_local: Path, tmp_path: Path
) -> None:
    folder, path = ray_local / "sockets", tmp_path / "ledger.db"
    url = f"sqlite:///{path}"
    routing = [await start_routing(folder)]
    kept = [await start_billing("b1", folder, url)]
    async with gateway() as peers:
        await until(lambda: peers.there("billing"))

        async def spend(start: int) -> None:
            for number in range(start, start + 1000):
                peers.ledger.settle(record(number))
                await asyncio.sleep(0.0005)

        async with asyncio.TaskGroup() as load:
            for start in (0, 1000, 2000):
                load.create_task(spend(start))
            await until(lambda: _rows(path)[0] > 50)
            os.kill(kept[0][1], signal.SIGKILL)
            _kill(*routing[0])
            kept.append(await start_billing("b2", folder, url))
            routing.append(await start_routing(folder))
        assert await peers.ledger.drain(60) == 0
    assert _rows(path) == (3000, sum(range(3000)))
    ray.kill(kept[1][0])
    ray.kill(routing[1][0])


async def test_a_restarted_routing_pool_learns_its_workers_again(
    ray_local: Path, tmp_path: Path
) -> None:
    folder = ray_local / "sockets"
    routing = [await start_routing(folder)]
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    handle, _ = await start_billing("b3", folder, url)
    ref = RoutingRef(routing_handle)
    async with gateway() as peers:
        await until(lambda: peers.there("billing"))
        _kill(*routing[0])
        await until(lambda: peers.router.routing is None)
        assert peers.there("billing")
        with pytest.raises(Overloaded):
            await ref.door()
        routing.append(await start_routing(folder))
        await until(lambda: peers.router.routing is not None)
        async with asyncio.timeout(30):
            while True:
                try:
                    assert len(await ref.secret_of("b3")) == 32
                    break
                except NotFound:
                    await asyncio.sleep(0.02)
        with pytest.raises(Overloaded):
            await peers.router.resolve(m.Resolve("smollm2"))
        with pytest.raises(ModelNotFound):
            await peers.router.resolve(m.Resolve("unheard-of"))
    ray.kill(handle)
    ray.kill(routing[1][0])


def _kill(handle: Any, pid: int) -> None:  # noqa: ANN401 -- Ray's handle
    os.kill(pid, signal.SIGKILL)
    ray.kill(handle)  # or its name stays taken as long as there is a handle


def _rows(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as other:
        query = "select count(*), coalesce(sum(output_tokens), 0) from usage_records"
        count, tokens = other.execute(query).fetchone()
    return count, tokens
