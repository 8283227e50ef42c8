"""A gateway: the port clients connect to, over ports it is handed. One per process and port."""

import asyncio
import logging
from types import TracebackType
from typing import Self

from turnwire.gateway.app import make_app
from turnwire.gateway.auth import Door, load_keys
from turnwire.gateway.background import BackgroundTurns
from turnwire.gateway.server import Server
from turnwire.gateway.turns import Ports, Serving
from turnwire.pipelines.config import AblationSettings, GatewaySettings, SafetySettings

_TICK_S = 1.0
_FAREWELL_S = 2.0
"""Turns that were ended at the end of a drain have this long to say so."""

logger = logging.getLogger("turnwire.gateway")


class Gateway:
    """`start`, then `drain` if there is time, then `close`; or a block, which closes."""

    def __init__(
        self,
        settings: GatewaySettings,
        safety: SafetySettings,
        ports: Ports,
        sharers: str = "",
        ablation: AblationSettings | None = None,
    ) -> None:
        """`sharers` names the gateways that listen on one port together; empty: this one alone.

        Raises ValueError for a keyless server that others could reach, or a bad key file.
        """
        self._settings = settings
        door = Door(settings, load_keys(settings))
        self._serving = Serving(settings, safety, ports, door, ablation or AblationSettings())
        self._background = BackgroundTurns(self._serving)
        app = make_app(self._serving, self._background)
        self._server = Server(app, self._serving, sharers)
        self._ticker: asyncio.Task[None] | None = None
        self.address = (settings.host, settings.port)
        """Where it listens, once it was started: with the port that was chosen for port 0."""

    async def start(self) -> tuple[str, int]:
        """Begin to serve; the address. Raises OSError when the port cannot be had."""
        self.address = await self._server.start()
        self._background.start()
        self._ticker = asyncio.create_task(self._tick())
        logger.info("gateway.started %s port %d", *self.address)
        return self.address

    async def drain(self) -> None:
        """Take nothing new; turns may finish within `drain_s`, then they are ended as failed."""
        clients = self._serving.clients
        self._server.stop_accepting()
        clients.drain()
        if await self._all_gone(self._settings.drain_s):
            return
        logger.warning("gateway.drain_over: ending the turns that still run")
        clients.expired()
        await self._all_gone(_FAREWELL_S)

    async def close(self) -> None:
        """End everything now, turns as failed; returns when no task is left."""
        clients = self._serving.clients
        self._server.stop_accepting()
        clients.drain()
        clients.expired()
        await self._all_gone(_FAREWELL_S)
        await self._background.close()
        await self._server.close()
        self._serving.services.settlements.deliver()
        self._serving.observation.close()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.wait((self._ticker,))
            self._ticker = None

    def held(self) -> dict[str, int]:
        """What clients hold at the moment: all zero when nobody is connected."""
        serving = self._serving
        return {
            "places": serving.places.taken,
            "inbound_bytes": serving.inbound.held_bytes,
            "background": len(self._background),
            "usage_records": serving.services.settlements.owed,
        }

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _all_gone(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._serving.clients.gone.wait()
        except TimeoutError:
            return False
        return True

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._serving.services.settlements.deliver()
            self._serving.clients.tick(self._serving.clock.now_s())
