"""The data plane, as its users see it: calls and streams of messages between two processes.

`Listener` serves, `Channel` calls. Both belong to whoever made them and end with `close`.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

from turnwire.actors.channel_doors import SecretCallerDoor, UnixCallerDoor, caller_tls
from turnwire.actors.channel_frames import (
    MAX_STREAM_ID,
    Kind,
    Undecodable,
    decode,
    decode_error,
    decode_items,
    encode,
    encode_credit,
)
from turnwire.actors.channel_link import Link
from turnwire.actors.channel_listener import Listener
from turnwire.actors.channel_pending import Reply, Stream
from turnwire.actors.channel_service import Caller, StreamHandler, UnaryHandler, log_bug
from turnwire.pipelines.config import ChannelSettings
from turnwire.pipelines.messages import Endpoint, Message
from turnwire.pipelines.protocol.errors import ApiError, Internal, InvalidRequest, Overloaded

__all__ = ["Caller", "Channel", "Listener", "Stream", "StreamHandler", "UnaryHandler"]

logger = logging.getLogger(__name__)


class Channel:
    """One connection to one listener, for any number of calls and streams at once.

    Commands reach the other side in the order they were made. Every failure is an ApiError; when
    the peer is lost, all that is open fails at once with `Overloaded`. It is never reopened.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        settings: ChannelSettings,
        on_lost: Callable[["Channel"], None] | None = None,
    ) -> None:
        """Not for users: `connect` makes channels."""
        self.endpoint = endpoint
        self._settings = settings
        self._on_lost = on_lost
        self._link: Link
        self._pending: dict[int, Reply | Stream] = {}
        self._last_id = 0
        self._closing = False

    @classmethod
    async def connect(
        cls,
        endpoint: Endpoint,
        settings: ChannelSettings,
        *,
        node: str,
        secret: bytes = b"",
        on_lost: Callable[["Channel"], None] | None = None,
    ) -> "Channel":
        """Over the Unix socket on the same node, else over TCP. Raises Overloaded.

        `on_lost` is called once when the peer is lost, after everything open has failed; never for
        a channel closed on this side.
        """
        channel = cls(endpoint, settings, on_lost)
        try:
            async with asyncio.timeout(settings.connect_s):
                if endpoint.unix and endpoint.node == node:
                    await channel._connect_unix()
                elif endpoint.tcp:
                    await channel._connect_tcp(secret)
                else:
                    raise Overloaded(f"{endpoint.id} cannot be reached from node {node}")
                entered = await channel._link.entered()
        except (OSError, TimeoutError) as error:
            channel._give_up()
            raise Overloaded(f"{endpoint.id} cannot be reached") from error
        except BaseException:
            channel._give_up()
            raise
        if not entered:
            raise Overloaded(f"{endpoint.id} cannot be reached: {channel._link.reason}")
        return channel

    @property
    def lost(self) -> bool:
        """Nothing can be sent any more, for whatever reason."""
        return self._link.reason is not None

    def call(self, message: Message) -> asyncio.Future[Message]:
        """Send a command at once; the future is its answer. Never waits, never raises."""
        payload = encode(message)
        stream_id = self._free_id()
        reply = Reply(stream_id, self._abandon)
        if refusal := self._refusal(payload):
            reply.fail(refusal)
        else:
            self._pending[stream_id] = reply
            self._link.send(Kind.CALL, stream_id, payload)
        return reply

    def stream(self, message: Message) -> Stream:
        """Send a stream command at once. A refusal is raised by the first step of the iteration."""
        payload = encode(message)
        stream_id = self._free_id()
        stream = Stream(stream_id, self._settings.window, self._abandon, self._grant)
        if refusal := self._refusal(payload):
            stream.fail(refusal)
        else:
            self._pending[stream_id] = stream
            self._link.send(Kind.OPEN, stream_id, payload)
            self._grant(stream_id, self._settings.window)
        return stream

    def flush(self) -> None:
        """Send what was commanded right now, and not at the end of this turn of the loop."""
        self._link.flush()

    async def close(self) -> None:
        """Send what was commanded, then end: what still waits for an answer fails."""
        self._closing = True
        await self._link.close()

    # --- LinkOwner ------------------------------------------------------------------------------

    def frame_received(self, kind: int, stream_id: int, payload: memoryview) -> None:
        pending = self._pending.get(stream_id)
        if pending is None:
            return  # an answer that crossed our cancel
        try:
            if kind == Kind.REPLY and isinstance(pending, Reply):
                del self._pending[stream_id]
                pending.arrived(decode(payload))
            elif kind == Kind.ITEMS and isinstance(pending, Stream):
                if not pending.arrived(decode_items(payload)):
                    self._link.lose("the listener sent more than it was granted")
            elif kind == Kind.FAILURE:
                del self._pending[stream_id]
                pending.fail(decode_error(payload))
            elif kind == Kind.END and isinstance(pending, Stream):
                del self._pending[stream_id]
                pending.finish()
            else:
                self._link.lose(f"the listener sent a frame of kind {kind}")
        except Undecodable:
            self._undecodable(stream_id, pending)

    def writable(self) -> None:
        """Nothing waits: calls are refused instead, from `max_write_bytes` on."""

    def ended(self, reason: str) -> None:
        pending, self._pending = self._pending, {}
        gone = "was closed" if self._closing else "went away"
        for waiting in pending.values():
            waiting.fail(Overloaded(f"{self.endpoint.id} {gone}"))
        if self._on_lost is not None and not self._closing:
            try:
                self._on_lost(self)
            except Exception as error:
                log_bug("on_lost", error)

    # --- inside ---------------------------------------------------------------------------------

    async def _connect_unix(self) -> None:
        self._link = Link(self.endpoint.id, self._settings, UnixCallerDoor(), self)
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._link, self.endpoint.unix)

    async def _connect_tcp(self, secret: bytes) -> None:
        door = SecretCallerDoor(secret, self.endpoint.fingerprint)
        self._link = Link(self.endpoint.id, self._settings, door, self)
        host, _, port = self.endpoint.tcp.rpartition(":")
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: self._link,
            host.strip("[]"),
            int(port),
            ssl=caller_tls(),
            server_hostname="",
            ssl_handshake_timeout=self._settings.connect_s,
        )
        connection = transport.get_extra_info("socket")
        if connection is not None:  # None: the door has closed it again
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _give_up(self) -> None:
        link = getattr(self, "_link", None)
        if link is not None and link.reason is None:
            link.lose("gave up connecting")

    def _free_id(self) -> int:
        while True:
            self._last_id = self._last_id % MAX_STREAM_ID + 1
            if self._last_id not in self._pending:
                return self._last_id

    def _refusal(self, payload: bytes) -> ApiError | None:
        name = self.endpoint.id
        if self._link.reason is not None:
            return Overloaded(f"{name} went away")
        if len(self._pending) >= self._settings.max_pending:
            return Overloaded(f"{name} has {len(self._pending)} calls in flight")
        if len(payload) > self._settings.max_frame_bytes:
            return InvalidRequest(f"a message of {len(payload)} bytes is too large to send")
        if self._link.unsent_bytes >= self._settings.max_write_bytes:
            return Overloaded(f"{name} does not take what is sent to it")
        return None

    def _abandon(self, stream_id: int) -> None:
        if self._pending.pop(stream_id, None) is not None:
            self._link.send(Kind.CANCEL, stream_id)

    def _grant(self, stream_id: int, count: int) -> None:
        self._link.send(Kind.CREDIT, stream_id, encode_credit(count))

    def _undecodable(self, stream_id: int, pending: Reply | Stream) -> None:
        logger.error("channel.undecodable %s: an answer of another version?", self.endpoint.id)
        self._abandon(stream_id)
        pending.fail(Internal("the answer could not be read"))
