"""Real sockets, both event loops, and a check after each test that nothing is left running."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop

from turnwire.actors.channel import Caller, Channel, Listener
from turnwire.pipelines.config import ChannelSettings
from turnwire.pipelines.messages import Endpoint

NODE = "here"


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for a socket."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made) / "private"


def files_in(folder: Path) -> list[Path]:
    return list(folder.glob("*"))


@dataclass
class World:
    """Listeners and channels of one test, ended after it."""

    folder: Path
    listeners: list[Listener] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    lost_callers: "asyncio.Queue[Caller]" = field(default_factory=asyncio.Queue)
    lost_channels: "asyncio.Queue[Channel]" = field(default_factory=asyncio.Queue)

    async def listen(
        self,
        unary: Mapping[type, Callable[..., object]] | None = None,
        streams: Mapping[type, Callable[..., object]] | None = None,
        settings: ChannelSettings | None = None,
        tcp_host: str | None = None,
        **options: Callable[..., object],
    ) -> Endpoint:
        listener = Listener(
            "listener",
            NODE,
            unary or {},
            streams or {},
            settings or ChannelSettings(),
            self.lost_callers.put_nowait,
            **options,
        )
        endpoint = await listener.start(folder=self.folder, tcp_host=tcp_host)
        self.listeners.append(listener)
        return endpoint

    async def connect(
        self,
        endpoint: Endpoint,
        settings: ChannelSettings | None = None,
        *,
        node: str = NODE,
        secret: bytes = b"",
    ) -> Channel:
        channel = await Channel.connect(
            endpoint,
            settings or ChannelSettings(),
            node=node,
            secret=secret,
            on_lost=self.lost_channels.put_nowait,
        )
        self.channels.append(channel)
        return channel

    async def join(
        self,
        unary: Mapping[type, Callable[..., object]] | None = None,
        streams: Mapping[type, Callable[..., object]] | None = None,
        settings: ChannelSettings | None = None,
    ) -> Channel:
        """A listener and a channel to it."""
        return await self.connect(await self.listen(unary, streams, settings), settings)


@pytest.fixture
async def world(folder: Path) -> AsyncIterator[World]:
    world = World(folder)
    yield world
    for channel in world.channels:
        await channel.close()
    for listener in world.listeners:
        await listener.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert files_in(folder) == []


@dataclass(eq=False)
class RawPeer(asyncio.Protocol):
    """A peer that says what the test says, byte for byte, and remembers what it heard."""

    greeting: bytes = b""
    heard: bytearray = field(default_factory=bytearray)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    transport: asyncio.Transport = field(init=False)
    on_data: Callable[["RawPeer"], None] | None = None
    brief: bool = False
    """Leaves behind its greeting."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a stream transport
        if self.greeting:
            self.transport.write(self.greeting)
        if self.brief:
            self.leave()

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.news.set()
        if self.on_data is not None:
            self.on_data(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self.news.set()

    async def until_heard(self, size_bytes: int) -> bytes:
        while len(self.heard) < size_bytes and not self.gone.is_set():
            self.news.clear()
            await self.news.wait()
        return bytes(self.heard)

    def say(self, data: bytes) -> None:
        self.transport.write(data)

    def leave(self) -> None:
        self.transport.close()


@pytest.fixture
async def raw_caller() -> AsyncIterator[Callable[[Endpoint], Awaitable[RawPeer]]]:
    """Connects a RawPeer to a listener's Unix socket."""
    made: list[RawPeer] = []

    async def connect(endpoint: Endpoint) -> RawPeer:
        loop = asyncio.get_running_loop()
        _, peer = await loop.create_unix_connection(RawPeer, endpoint.unix)
        made.append(peer)
        return peer

    yield connect
    for peer in made:
        peer.transport.abort()
        await peer.gone.wait()


@pytest.fixture
async def raw_listener(folder: Path) -> AsyncIterator[Callable[..., Awaitable[Endpoint]]]:
    """Serves every connection with a RawPeer that greets and reacts as told."""
    made: list[RawPeer] = []
    servers: list[asyncio.Server] = []

    async def listen(
        greeting: bytes,
        on_data: Callable[[RawPeer], None] | None = None,
        on_made: Callable[[RawPeer], None] | None = None,
        *,
        brief: bool = False,
    ) -> Endpoint:
        def peer() -> RawPeer:
            made.append(RawPeer(greeting, on_data=on_data, brief=brief))
            if on_made is not None:
                on_made(made[-1])
            return made[-1]

        path = folder.parent / f"raw{len(servers)}.sock"
        loop = asyncio.get_running_loop()
        servers.append(await loop.create_unix_server(peer, str(path)))
        return Endpoint("raw", NODE, str(path))

    yield listen
    for server in servers:
        server.close()
    for peer in made:
        peer.transport.abort()
        await peer.gone.wait()
