"""uvicorn in a loop that is already running: no signal handlers, a port that is surely ours.

Of uvicorn's server only the start is used: its own end cuts every socket and polls.
"""

import asyncio

import uvicorn
from starlette.types import ASGIApp

from turnwire.gateway.port import Port, bind
from turnwire.gateway.turns import Serving
from turnwire.gateway.wire import HttpWire, SocketWire, WireConfig

_LAST_WORDS_S = 5.0
"""After turns are over, so long for closing handshakes and unsent bytes."""
_DATE_S = 1.0
"""How often the `date` header of responses is renewed."""


class Server:
    """The listening socket and all connections made to it."""

    def __init__(self, app: ASGIApp, serving: Serving, sharers: str = "") -> None:
        """`sharers` as for `bind`."""
        self._serving = serving
        self._app = app
        self._sharers = sharers
        self._port: Port | None = None
        self._server: uvicorn.Server | None = None
        self._clock: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, int]:
        """Begin to accept; the address, with the port that was chosen for port 0."""
        settings = self._serving.settings
        port = bind(settings.host, settings.port, self._sharers)
        config = WireConfig(
            self._app,
            http=HttpWire,
            ws=SocketWire,
            # Above our own limit, so that a message somewhat too big is answered in band.
            ws_max_size=2 * settings.max_message_bytes,
            ws_ping_interval=settings.ping_s,
            ws_ping_timeout=settings.ping_s,
            ws_per_message_deflate=settings.deflate,
            lifespan="off",
            loop="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            workers=1,
        )
        config.inbound = self._serving.inbound
        config.max_send_bytes = settings.max_send_bytes
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        try:
            await server.startup(sockets=[port.listener])
        except BaseException:
            port.close()
            raise
        self._server = server
        self._port = port
        self._clock = asyncio.create_task(_keep_date(server))
        host, number = port.listener.getsockname()[:2]
        return host, number

    def stop_accepting(self) -> None:
        """New connections are refused from now on; those made stay."""
        if self._server is not None:
            for listener in self._server.servers:
                listener.close()
        if self._port is not None:
            self._port.close()

    async def close(self) -> None:
        """Close what is left and return when nothing runs any more."""
        server = self._server
        if server is None or self._clock is None:
            return
        self.stop_accepting()
        state = server.server_state
        for connection in tuple(state.connections):
            connection.shutdown()
        await _ended(state.tasks, within_s=_LAST_WORDS_S)
        for connection in tuple(state.connections):
            # A client that does not read would keep its socket open for ever.
            connection.transport.abort()
        self._clock.cancel()
        await asyncio.wait((self._clock,))


async def _keep_date(server: uvicorn.Server) -> None:
    while True:
        await server.on_tick(0)
        await asyncio.sleep(_DATE_S)


async def _ended(tasks: set[asyncio.Task[None]], within_s: float) -> None:
    """Wait for requests to end by themselves, then end them."""
    if not tasks:
        return
    _, late = await asyncio.wait(tuple(tasks), timeout=within_s)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)
