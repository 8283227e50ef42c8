"""Pool workers on real sockets and real SQLite, without Ray."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from turnwire.actors.backoff import Backoff
from turnwire.actors.channel import Caller, Channel, Listener
from turnwire.actors.registration import Registration
from turnwire.actors.routing import RoutingActor
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings
from turnwire.pipelines.protocol.errors import Overloaded

NODE = "here"
CHANNEL = ChannelSettings(heartbeat_s=0.2, silence_s=2, connect_s=5)
MODEL = m.Model("smollm2", "tokens", aliases=("default",))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for a socket."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made) / "private"


class Startable(Protocol):
    async def start(self, folder: Path, tcp_host: str | None = None) -> m.Worker: ...
    async def close(self) -> None: ...


class Control:
    """The control plane without Ray: one routing actor that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.routing: RoutingActor | None = None
        self.registrations: list[str] = []

    async def start(self) -> None:
        self.routing = RoutingActor("routing", NODE, CHANNEL, known_models=("from-settings",))
        await self.routing.start(self.folder, tcp_host="127.0.0.1")

    async def kill(self) -> None:
        routing, self.routing = self.routing, None
        if routing is not None:
            await routing.close()

    async def register(self, worker: m.Worker, secret: bytes) -> tuple[m.Endpoint, bytes]:
        self.registrations.append(worker.endpoint.id)
        packed = msgspec.msgpack.encode(worker)
        return self._door(await self._there().register(packed, secret))

    async def door(self) -> tuple[m.Endpoint, bytes]:
        return self._door(await self._there().door())

    async def secret_of(self, worker_id: str) -> bytes:
        return await self._there().secret_of(worker_id)

    def _there(self) -> RoutingActor:
        if self.routing is None:
            raise Overloaded("routing is restarting")
        return self.routing

    def _door(self, answer: tuple[bytes, bytes]) -> tuple[m.Endpoint, bytes]:
        return msgspec.msgpack.decode(answer[0], type=m.Endpoint), answer[1]


@dataclass
class FakeWorker:
    """A registered worker whose handlers the test gives."""

    worker: m.Worker
    listener: Listener
    registration: Registration
    lost: "asyncio.Queue[Caller]"
    load: tuple[int, int] = (0, 0)

    async def kill(self) -> None:
        """As the end of its process looks from outside."""
        await self.registration.__aexit__(None, None, None)
        await self.listener.close()


@dataclass
class World:
    """One node: routing, workers and channels of one test, ended after it."""

    folder: Path
    control: Control
    stack: AsyncExitStack
    workers: dict[str, FakeWorker] = field(default_factory=dict)

    async def worker(
        self,
        id: str,
        pool: str = "inference",
        unary: Mapping[type, Callable[..., Any]] | None = None,
        streams: Mapping[type, Callable[..., Any]] | None = None,
        max_ongoing: int = 4,
        tcp_host: str | None = None,
        node: str = NODE,
    ) -> FakeWorker:
        lost: asyncio.Queue[Caller] = asyncio.Queue()
        listener = Listener(id, node, unary or {}, streams or {}, CHANNEL, lost.put_nowait)
        endpoint = await listener.start(folder=self.folder, tcp_host=tcp_host)
        self.stack.push_async_callback(listener.close)
        models = (MODEL,) if pool == "inference" else ()
        worker = m.Worker(endpoint, pool, models, max_ongoing)  # type: ignore[arg-type]
        registration = Registration(
            worker,
            listener.secret,
            self.control,
            lambda: self.workers[id].load,
            CHANNEL,
            Backoff(0.01, 0.05),
        )
        made = self.workers[id] = FakeWorker(worker, listener, registration, lost)
        await self.stack.enter_async_context(registration)
        await registration.attached()
        return made

    async def run(self, actor: Startable) -> Channel:
        """Start a pool's actor and dial it."""
        worker = await actor.start(self.folder)
        self.stack.push_async_callback(actor.close)
        return await self.dial(worker.endpoint)

    async def dial(self, endpoint: m.Endpoint) -> Channel:
        channel = await Channel.connect(endpoint, CHANNEL, node=NODE)
        self.stack.push_async_callback(channel.close)
        return channel

    async def dial_routing(self) -> Channel:
        return await self.dial((await self.control.door())[0])


@pytest.fixture
async def world(folder: Path) -> AsyncIterator[World]:
    control = Control(folder)
    await control.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(control.kill)
        yield World(folder, control, stack)
    for _ in range(3):
        await asyncio.sleep(0)
    left = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
    assert not left & {"registration", "peers", "storage", "billing", "lease"}


Until = Callable[[Callable[[], bool]], Awaitable[None]]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 -- what others bring about sets no event
            await asyncio.sleep(0.005)


@pytest.fixture
def until() -> Until:
    """Waits for a condition that other tasks bring about."""
    return _until
