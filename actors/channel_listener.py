"""The serving end of the data plane: sockets, doors, and the life of what is served behind them."""

import asyncio
import logging
import secrets
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

from turnwire.actors.channel_doors import (
    Door,
    PeerUid,
    SecretListenerDoor,
    UnixListenerDoor,
    listener_tls,
    make_certificate,
    peer_uid,
    private_socket_path,
)
from turnwire.actors.channel_link import Link
from turnwire.actors.channel_service import (
    Accepted,
    Caller,
    Service,
    StreamHandler,
    UnaryHandler,
)
from turnwire.pipelines.config import ChannelSettings
from turnwire.pipelines.messages import Endpoint, Message

logger = logging.getLogger(__name__)

_BACKLOG = 256
_ACCEPT_RETRY_S = 0.2


def _nobody_asked(caller: Caller) -> None:
    pass


class Listener:
    """Serves callers over a Unix socket and, where asked for, over TCP with TLS and a secret.

    A plain unary handler is answered where its frame is read and must not block; a coroutine or a
    stream runs in a task of its own. `on_lost` is called once for each caller whose connection
    ended, when its handlers are being cancelled.
    """

    def __init__(
        self,
        id: str,
        node: str,
        unary: Mapping[type[Message], UnaryHandler],
        streams: Mapping[type[Message], StreamHandler],
        settings: ChannelSettings,
        on_lost: Callable[[Caller], None] = _nobody_asked,
        *,
        unhurried: frozenset[type[Message]] = frozenset(),
        read_uid: PeerUid = peer_uid,
    ) -> None:
        """`unhurried`: commands whose answer may wait a moment for other frames."""
        self.secret = secrets.token_bytes(32)
        """What callers over TCP must hold. It travels by Ray call alone."""
        self._id = id
        self._node = node
        self._settings = settings
        self._service = Service(id, unary, streams, settings, on_lost, unhurried)
        self._read_uid = read_uid
        self._path: Path | None = None
        self._fingerprint = ""
        self._tls: ssl.SSLContext | None = None
        self._sockets: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._admitting: set[asyncio.Task[None]] = set()
        self._at_door = 0
        self._numbers = count(1)

    @property
    def callers(self) -> int:
        """Callers connected now."""
        return len(self._service.connections)

    async def start(self, *, folder: Path, tcp_host: str | None = None) -> Endpoint:
        """Open the sockets. Raises OSError or ValueError; nothing is left open then."""
        try:
            self._path = private_socket_path(folder)
            self._listen(socket.AF_UNIX, str(self._path))
            tcp = ""
            if tcp_host is not None:
                certificate = make_certificate()
                self._fingerprint, self._tls = certificate.fingerprint, listener_tls(certificate)
                family = socket.AF_INET6 if ":" in tcp_host else socket.AF_INET
                port = self._listen(family, (tcp_host, 0)).getsockname()[1]
                tcp = f"[{tcp_host}]:{port}" if ":" in tcp_host else f"{tcp_host}:{port}"
        except BaseException:
            await self.close()
            raise
        return Endpoint(self._id, self._node, str(self._path), tcp, self._fingerprint)

    async def close(self, grace_s: float = 0) -> None:
        """Accept nobody, let what runs end for `grace_s`, then end everything and wait for it.

        Meanwhile new streams are refused, and calls are served, since a turn that ends needs them.
        """
        self._service.draining = True
        # In this order each admission has begun, so that it owns its socket when it is cancelled.
        await _cancelled(self._accepting)
        await _cancelled(self._admitting)
        for bound in self._sockets:
            bound.close()
        self._sockets.clear()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if grace_s > 0 and self._service.tasks:
            await asyncio.wait(self._service.tasks, timeout=grace_s)
        closing = [connection.link.close() for connection in self._service.connections]
        await asyncio.gather(*closing)
        await asyncio.gather(*self._service.tasks, return_exceptions=True)

    # --- inside ---------------------------------------------------------------------------------

    def _listen(self, family: int, address: str | tuple[str, int]) -> socket.socket:
        bound = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(bound)
        bound.setblocking(False)
        bound.bind(address)
        bound.listen(_BACKLOG)
        self._accepting.add(asyncio.create_task(self._accept(bound)))
        return bound

    async def _accept(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(bound)
            except OSError as error:
                # Out of file descriptors, most likely: those inside go on.
                logger.error("channel.accept_failed %s: %s", self._id, error)
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            if self._at_door >= self._settings.max_at_door:
                logger.warning("channel.refused %s: too many callers at the door", self._id)
                connection.close()
            elif caller := self._caller(connection):
                self._at_door += 1
                task = asyncio.create_task(self._admit(caller, connection))
                self._admitting.add(task)
                task.add_done_callback(self._admitting.discard)

    def _caller(self, connection: socket.socket) -> Caller | None:
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return Caller(f"{self._id}#{next(self._numbers)}", _peer_name(connection))
        except OSError:
            connection.close()  # its peer has gone again
            return None

    async def _admit(self, caller: Caller, connection: socket.socket) -> None:
        """Bring one caller through the door, in time."""
        unix = connection.family == socket.AF_UNIX
        accepted = Accepted(self._service, caller)
        accepted.link = Link(repr(caller), self._settings, self._door(unix=unix), accepted)
        self._service.connections.add(accepted)
        entered = False
        try:
            async with asyncio.timeout(self._settings.connect_s):
                await self._take_over(connection, accepted.link, unix=unix)
                entered = await accepted.link.entered()
        except (OSError, TimeoutError) as error:
            logger.warning("channel.refused %r: %s", caller, type(error).__name__)
        finally:
            self._at_door -= 1
            if not entered and not accepted.link.passed:
                accepted.link.lose("did not come through the door")
                self._service.connections.discard(accepted)

    def _door(self, *, unix: bool) -> Door:
        if unix:
            return UnixListenerDoor(self._read_uid)
        return SecretListenerDoor(self.secret, self._fingerprint)

    async def _take_over(self, connection: socket.socket, link: Link, *, unix: bool) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: link,
            connection,
            ssl=None if unix else self._tls,
            ssl_handshake_timeout=None if unix else self._settings.connect_s,
        )


async def _cancelled(tasks: set[asyncio.Task[None]]) -> None:
    ending = tuple(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def _peer_name(connection: socket.socket) -> str:
    if connection.family == socket.AF_UNIX:
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return f"unix:{struct.unpack('3i', found)[0]}"
    host, port = connection.getpeername()[:2]
    return f"tcp:{host}:{port}"
