"""uvicorn's protocols, made to say what they would not: unsent bytes, raw frames, and an abort."""

import asyncio
import logging
import socket
import time
from typing import Any, Protocol, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.http11 import Request
from websockets.protocol import State
from websockets.speedups import apply_mask

from turnwire.gateway import render
from turnwire.pipelines.limits import ByteBudget
from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.errors import Overloaded

WIRE = "turnwire.wire"
"""In `scope["state"]`: the protocol object below the request."""

_BEGAN, _FAILED = "turnwire.began_s", "turnwire.failed"

_LAST_WORDS_S = 2.0
"""A client that answered no ping has this long to take what was still sent."""

LINGER_S = 0.002
"""So long events that may wait do wait: behind a fast engine a turn leaves in one write."""

_MAX_UNREAD = 64
"""Messages that wait for the reader before the socket is no longer read."""

logger = logging.getLogger("turnwire.gateway")


class WireConfig(uvicorn.Config):
    """uvicorn's, with the bounds its protocols do not know."""

    inbound: ByteBudget
    max_send_bytes: int


def frame_header(length: int) -> bytes:
    """The header of an unmasked, whole text frame (RFC 6455, 5.2)."""
    if length < 126:
        return bytes((0x81, length))
    if length < 65536:
        return b"\x81\x7e" + length.to_bytes(2, "big")
    return b"\x81\x7f" + length.to_bytes(8, "big")


def whole_text(data: bytes) -> memoryview | None:
    """The payload, still masked, of data that is exactly one masked text frame; else None."""
    if len(data) < 6 or data[0] != 0x81 or not data[1] & 0x80:
        return None
    length, start = data[1] & 0x7F, 6
    if length > 125:
        start = 8 if length == 126 else 14
        length = int.from_bytes(data[2 : start - 4], "big")
    return memoryview(data)[start:] if len(data) == start + length else None


class Reader(Protocol):
    """Who takes the messages of a socket, as they come. What it raises ends the connection."""

    def text_received(self, frame: Json, began_s: float) -> None:
        """`began_s`: when its first bytes came, as `time.monotonic` tells it."""

    def binary_received(self) -> None: ...


class SocketWire(WebSocketsSansIOProtocol):
    """A WebSocket whose events are written at once, bounded by what the client has not read.

    Messages go straight to the reader, without a queue and a task between.
    """

    def __init__(
        self,
        config: WireConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._inbound = config.inbound
        self._max_send_bytes = config.max_send_bytes
        self._partial_bytes = 0
        self._began_s = 0.0
        self._reader: Reader | None = None
        self._lingering: list[Json] = []
        self._linger_timer: asyncio.TimerHandle | None = None

    async def read(self, reader: Reader) -> int:
        """Hand all messages to `reader` until the connection ends; the code it ended with."""
        while not self.queue.empty():
            if (code := self._took(await self.receive(), reader)) is not None:
                return code
        self._reader = reader
        try:
            # Only the end comes this way now.
            while (code := self._took(await self.receive(), reader)) is None:
                pass
            return code
        finally:
            self._reader = None

    def send_events(self, events: list[Json], *, now: bool = True) -> None:
        """Each event is one text frame; all leave in one write. Nothing once the socket ends.

        Unless `now`, they may wait `LINGER_S` for others, which they leave in front of.
        Only what was unsent before counts against the client: it cannot have read yet what comes
        now, and the last events of one long answer may be more than the bound.
        """
        if self.close_sent or self.disconnected or self.transport.is_closing():
            return
        if not now:
            self._lingering += events
            if self._linger_timer is None:
                self._linger_timer = self.loop.call_later(LINGER_S, self._linger_no_more)
            return
        if self._linger_timer is not None:
            events, self._lingering = self._lingering + events, []
            self._linger_timer.cancel()
            self._linger_timer = None
        if self.transport.get_write_buffer_size() > self._max_send_bytes:
            self.cut_off()
            return
        if self.conn.extensions:
            for event in events:
                self.conn.send_text(event)
            parts = self.conn.data_to_send()
        else:
            parts = [part for event in events for part in (frame_header(len(event)), event)]
        self.transport.write(b"".join(parts))

    def cut_off(self) -> None:
        """A client that does not read cannot be told so either: its connection is dropped."""
        if self.transport.is_closing():
            return
        logger.warning("connection.cut_off: the client does not read")
        self.transport.abort()

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake; whoever reads sees the end at once."""
        if self.close_sent or self.disconnected or self.transport.is_closing():
            return
        self._linger_no_more()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.stop_keepalive()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.abort)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["state"][WIRE] = self

    def data_received(self, data: bytes) -> None:
        if not self._partial_bytes:
            self._began_s = time.monotonic()
        masked = whole_text(data) if self._between_messages() else None
        if masked is not None and len(masked) <= self.config.ws_max_size:
            start = len(data) - len(masked)
            self._received("text", apply_mask(masked, data[start - 4 : start]))
            return
        super().data_received(data)
        self._charge(len(self.conn.reader.buffer) + sum(map(len, self.frames)))

    def keepalive_timeout(self) -> None:
        """As the original, which would wait for a dead client to read what is unsent."""
        super().keepalive_timeout()
        end = {"type": "websocket.disconnect", "code": 1011, "reason": "keepalive ping timeout"}
        self.queue.put_nowait(cast(Any, end))
        if self.close_timer is None:
            self.close_timer = self.loop.call_later(_LAST_WORDS_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inbound.give_back(self._partial_bytes)
        self._partial_bytes = 0
        self._lingering.clear()
        super().connection_lost(exc)

    def send_receive_event_to_app(self) -> None:
        """As the original, but text stays bytes: it is JSON, and is decoded once, as such."""
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        if self.close_sent:
            return
        self._received(self.curr_msg_data_type, data)

    def _linger_no_more(self) -> None:
        if self._lingering:
            self.send_events([])

    def _between_messages(self) -> bool:
        """Is what comes next the beginning of a frame that is to be read as it is?"""
        conn = self.conn
        return (
            self._reader is not None
            and conn.state is State.OPEN
            and not (conn.extensions or conn.reader.buffer or self.close_sent)
            and conn.current_size is None
        )

    def _received(self, kind: str, data: bytes) -> None:
        message: Any = {"type": "websocket.receive", kind: data, _BEGAN: self._began_s}
        if self._reader is not None:
            try:
                self._took(message, self._reader)
            except Exception as error:
                # Raised to whoever waits for the end.
                self.queue.put_nowait(cast(Any, {"type": _FAILED, "error": error}))
            return
        self.queue.put_nowait(message)
        if self.queue.qsize() >= _MAX_UNREAD and not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _took(self, message: Any, reader: Reader) -> int | None:  # noqa: ANN401 -- ASGI
        """The code of the connection's end, once that is what came."""
        if message["type"] == _FAILED:
            raise message["error"]
        if message["type"] != "websocket.receive":
            return int(message.get("code", 1005))
        if (text := message.get("text")) is not None:
            reader.text_received(text, message[_BEGAN])
        else:
            reader.binary_received()
        return None

    def _charge(self, partial_bytes: int) -> None:
        """Bytes of a message that is not complete yet are held as well."""
        if partial_bytes <= self._partial_bytes:
            self._inbound.give_back(self._partial_bytes - partial_bytes)
            self._partial_bytes = partial_bytes
            return
        try:
            self._inbound.take(partial_bytes - self._partial_bytes)
        except Overloaded as error:
            self.send_events([render.error_frame(error, None)])
            self.close(1013, "try again later")
        else:
            self._partial_bytes = partial_bytes


class HttpWire(HttpToolsProtocol):
    """HTTP whose connection can be dropped under a client that does not read."""

    # As in uvicorn's own protocol, the transport is known to be one that reads and writes.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][WIRE] = self

    def cut_off(self) -> None:
        if self.transport.is_closing():
            return
        logger.warning("request.cut_off: the client does not read")
        self.transport.abort()
