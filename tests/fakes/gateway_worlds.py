"""A gateway over a `World`, and clients of it: WebSocket frames and official SDKs."""

from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
from local_storage import LocalStorage
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from scripted_ports import (
    KEYRING,
    MODEL,
    FakeLeases,
    FakeLedger,
    FakeRouter,
    FakeSafety,
    FakeStore,
    NoBackground,
    ScriptedEngine,
    World,
    create,
)
from simulated_ports import SimulatedPorts
from turn_worlds import TERMINAL
from websockets.asyncio.client import ClientConnection, connect

from turnwire.gateway.gateway import Gateway
from turnwire.gateway.turns import Ports
from turnwire.pipelines.config import GatewaySettings, SafetySettings


@dataclass
class Town:
    """One running gateway."""

    gateway: Gateway
    world: World
    leases: FakeLeases
    host: str
    port: int

    @property
    def http(self) -> str:
        return f"http://{self.host}:{self.port}/v1"

    @property
    def ws(self) -> str:
        return f"ws://{self.host}:{self.port}/v1/responses"

    def connect(self, **options: Any) -> connect:  # noqa: ANN401 -- those of the client library
        return connect(self.ws, max_size=None, **options)

    def openai(self, key: str = "none") -> AsyncOpenAI:
        http = DefaultAsyncHttpxClient(verify=False)
        return AsyncOpenAI(base_url=self.http, api_key=key, max_retries=0, http_client=http)

    def httpx(self) -> httpx.AsyncClient:
        # Without certificates to load, for there is no TLS here, a client is made in no time.
        return httpx.AsyncClient(base_url=self.http, timeout=10, verify=False)

    @property
    def held(self) -> set[int]:
        """Engine streams, leases, places, request bytes, records: zero when nobody is there."""
        gateway = self.gateway.held().values()
        return {self.world.open_streams, self.leases.open_leases, *gateway}


@dataclass
class Opener:
    stack: AsyncExitStack
    towns: list[Town] = field(default_factory=list)

    async def open(
        self,
        world: World | None = None,
        settings: GatewaySettings | None = None,
        safety: SafetySettings | None = None,
        *,
        ready: bool = True,
        simulated: SimulatedPorts | None = None,
        storage: LocalStorage | None = None,
    ) -> Town:
        """`simulated`: these models instead of the script of `world`. `storage`: a real one."""
        world = world or World()
        if simulated is not None:
            await simulated.start()
            self.stack.push_async_callback(simulated.close)
        leases = FakeLeases(world)
        ports = Ports(
            router=simulated or FakeRouter(world),
            engine=simulated or ScriptedEngine(world),
            safety=FakeSafety(world),
            store=storage or FakeStore(world),
            background=storage or NoBackground(),
            ledger=FakeLedger(world),
            leases=leases,
            models=lambda: simulated.models if simulated else (MODEL,),
            ready=lambda: ready,
            keyring=KEYRING,
        )
        gateway = Gateway(
            settings or GatewaySettings(port=0), safety or SafetySettings(policy="off"), ports
        )
        host, port = await gateway.start()
        town = Town(gateway, world, leases, host, port)
        self.towns.append(town)
        self.stack.push_async_callback(_close, town)
        return town


async def _close(town: Town) -> None:
    await town.gateway.close()
    assert town.held == {0}


async def heard(socket: ClientConnection, terminals: int = 1) -> list[dict[str, Any]]:
    """All events up to that many ends."""
    events: list[dict[str, Any]] = []
    while terminals:
        events.append(orjson.loads(await socket.recv()))
        terminals -= events[-1]["type"] in TERMINAL or events[-1]["type"] == "error"
    return events


async def turn(socket: ClientConnection, **fields: object) -> list[dict[str, Any]]:
    """One turn, from its frame to its end."""
    await socket.send(create(**fields).decode())
    return await heard(socket)


def of_lane(events: Iterable[dict[str, Any]], lane: str | None) -> list[dict[str, Any]]:
    return [event for event in events if event.get("stream_id") == lane]
