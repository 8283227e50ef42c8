"""A pool of connection actors without Ray: each fake actor is a listener in this process."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from turnwire.actors.channel import Caller, Listener
from turnwire.actors.lease import ConnectionPool
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, ConnectionSettings
from turnwire.pipelines.protocol.errors import InvalidRequest, Overloaded

NODE = "here"
CHANNEL = ChannelSettings(heartbeat_s=0.2, silence_s=2, connect_s=5)
ECHO = b"{}"


class FakeActor:
    """Keeps what it is told, in order, and prepares any turn whose parent it has seen commit."""

    def __init__(self, id: str, folder: Path) -> None:
        self.id = id
        self.folder = folder
        self.told: list[m.Message] = []
        self.committed: dict[str, list[str]] = {}
        """Open connections, and the response ids each has committed."""
        self.tenants: set[str] = set()
        self.hold = asyncio.Event()
        self.hold.set()
        """Cleared: nothing is answered, as by a stuck loop."""
        self.entered = asyncio.Event()
        self.refuse: Exception | None = None
        kinds = (m.Open, m.Close, m.Prepare, m.Commit, m.Abort, m.Recall, m.Forget)
        self._handlers: dict[type[m.Message], Any] = {kind: self._handle for kind in kinds}
        self.listener: Listener | None = None

    async def start(self) -> m.Endpoint:
        self.listener = Listener(self.id, NODE, self._handlers, {}, CHANNEL)
        return await self.listener.start(folder=self.folder)

    def cut(self) -> None:
        """Break the channels; the actor and its state live on."""
        assert self.listener is not None
        for connection in tuple(self.listener._service.connections):
            connection.link.lose("cut by the test")

    async def kill(self) -> None:
        assert self.listener is not None
        await self.listener.close()

    def sequences(self) -> list[int]:
        return [c.sequence for c in self.told if isinstance(c, m.Commit | m.Abort)]

    async def _handle(self, command: Any, _caller: Caller) -> m.Message:  # noqa: ANN401 -- seven types
        self.told.append(command)
        self.entered.set()
        await self.hold.wait()
        if self.refuse is not None:
            raise self.refuse
        match command:
            case m.Open(connection_id, tenant):
                self.tenants.add(tenant)
                self.committed.setdefault(connection_id, [])
            case m.Close(connection_id):
                self.committed.pop(connection_id, None)
            case m.Commit(connection_id, response_id):
                known = self.committed[connection_id]
                if response_id not in known:
                    known.append(response_id)
            case m.Prepare():
                return self._prepare(command)
            case m.Recall():
                return m.TokenPrompt(b"key", b"", b"")
        return m.Done()

    def _prepare(self, command: m.Prepare) -> m.Message:
        if command.connection_id not in self.committed:
            raise InvalidRequest("the connection is not open")
        parent = command.frame.decode()
        if parent and parent not in self.committed[command.connection_id]:
            return m.ParentUnknown(parent)
        facts = m.Facts(command.response_id, "", "m", 1)
        return m.Prepared(facts, m.TokenPrompt(b"k", b"", b""), 0, self.id.encode(), ECHO)


@dataclass
class FakeFactory:
    folder: Path
    actors: dict[str, FakeActor] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: actors do not get ready."""
    failures: int = 0
    kills: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self, actor_id: str) -> m.Endpoint:
        await self.hold.wait()
        if self.failures:
            self.failures -= 1
            raise Overloaded("no memory")
        actor = self.actors[actor_id] = FakeActor(actor_id, self.folder)
        return await actor.start()

    def kill(self, actor_id: str) -> None:
        self.killed.append(actor_id)
        if (actor := self.actors.get(actor_id)) is not None:
            self.kills.add(asyncio.create_task(actor.kill()))


@dataclass
class World:
    factory: FakeFactory

    @asynccontextmanager
    async def pool(self, **settings: Any) -> AsyncIterator[ConnectionPool]:  # noqa: ANN401 -- any setting
        """A pool whose warm stock is ready."""
        chosen = ConnectionSettings(**({"refill_per_s": 100.0, "lease_s": 5.0} | settings))
        async with ConnectionPool(self.factory, NODE, chosen, CHANNEL) as pool:
            if self.factory.hold.is_set() and not self.factory.failures:
                await _until(lambda: pool.ready == chosen.warm)
            yield pool


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for a socket."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made) / "private"


@pytest.fixture
async def world(folder: Path) -> AsyncIterator[World]:
    made = World(FakeFactory(folder))
    made.factory.hold.set()
    yield made
    await asyncio.gather(*made.factory.kills)
    left = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
    assert "lease" not in left


Until = Callable[[Callable[[], bool]], Awaitable[None]]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 -- what others bring about sets no event
            await asyncio.sleep(0.005)


@pytest.fixture
def until() -> Until:
    """Waits for a condition that other tasks bring about."""
    return _until
