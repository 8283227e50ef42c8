"""One framed connection, the same on both sides: the door, one write a turn, heartbeats, its end.

It knows nothing of calls and streams; its owner gives frames their meaning.
"""

import asyncio
import logging
from typing import Protocol, cast

from turnwire.actors.channel_doors import MAX_HELLO_BYTES, Door, DoorClosed
from turnwire.actors.channel_frames import FrameParser, Kind, MalformedFrame, Outbox
from turnwire.pipelines.config import MIB, ChannelSettings

logger = logging.getLogger(__name__)

CLOSE_S = 1.0
"""An orderly end may take so long to send what is left; then the connection is cut."""
_HIGH_WATER_BYTES = MIB
_JOIN_BYTES = MIB // 4


class LinkOwner(Protocol):
    """What a link tells: frames in order, then its end, once."""

    def frame_received(self, kind: int, stream_id: int, payload: memoryview) -> None:
        """A frame that is not the link's own. May call `Link.lose`; raises only for a bug."""

    def writable(self) -> None:
        """The peer reads again: `Link.blocked` is false."""

    def ended(self, reason: str) -> None:
        """Nothing comes and nothing goes any more. Not called for a peer the door refused."""


class Link(asyncio.Protocol):
    """Owned by whoever made it. Nothing reaches the owner before the door has let the peer in."""

    def __init__(self, name: str, settings: ChannelSettings, door: Door, owner: LinkOwner) -> None:
        self.name = name
        self.outbox = Outbox(settings.max_frame_bytes)
        self.blocked = False
        """The peer reads too slowly: who can wait with sending should."""
        self.reason: str | None = None
        """Why it ended; None while it lives."""
        self._settings = settings
        self._door = door
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._entered: asyncio.Future[bool] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._parser = FrameParser(MAX_HELLO_BYTES)
        self._transport: asyncio.Transport | None = None
        self._reading = False
        self._flush_due = False
        self._items_timer: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._heartbeat_s = min(settings.heartbeat_s, settings.silence_s / 2)
        self._silent_s = 0.0
        self._heard = self._spoke = False

    # --- for the owner --------------------------------------------------------------------------

    async def entered(self) -> bool:
        """Waits for the door's judgement; false when the connection ended before it."""
        return await asyncio.shield(self._entered)

    @property
    def passed(self) -> bool:
        """Has the door let the peer in?"""
        return self._door.passed

    @property
    def unsent_bytes(self) -> int:
        """Bytes accepted for sending that the kernel has not taken."""
        if self._transport is None:
            return self.outbox.size_bytes
        return self.outbox.size_bytes + self._transport.get_write_buffer_size()

    def send(self, kind: int, stream_id: int, payload: bytes = b"", *, now: bool = True) -> None:
        """Leaves with everything else of this turn of the loop; unless `now`, it may wait
        `flush_s` for others."""
        if self.reason is None:
            self.outbox.add(kind, stream_id, payload)
            self._leave(now)

    def send_item(self, stream_id: int, payload: bytes, *, now: bool) -> None:
        """One stream message; unless `now`, it may wait `flush_s` for others."""
        if self.reason is not None:
            return
        self.outbox.add_item(stream_id, payload)
        if self.outbox.size_bytes > _HIGH_WATER_BYTES:
            self._flush()
        else:
            self._leave(now)

    def flush(self) -> None:
        """Send what waits."""
        self._flush()

    def lose(self, reason: str) -> None:
        """Cut the connection, whatever is unsent."""
        if self.reason is None:
            logger.warning("channel.lost %s: %s", self.name, reason)
            self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Send what is left, end in order, wait for it. Safe to call again, and when ended."""
        if self._transport is None:
            self._end("closed before it was open")
            return
        if self.reason is None:
            self._flush()
            self._end("closed on this side")
        self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(self._closed)
        except TimeoutError:
            self._transport.abort()
            await asyncio.shield(self._closed)

    # --- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        if self.reason is not None:
            self._transport.abort()
            return
        try:
            hello = self._door.greet(transport)
        except DoorClosed as refusal:
            self.lose(str(refusal))
            return
        self._said(hello)

    def data_received(self, data: bytes) -> None:
        self._heard = self._reading = True
        try:
            for kind, stream_id, payload in self._parser.feed(data):
                self._receive(kind, stream_id, payload)
                if self.reason is not None:
                    return
        except (MalformedFrame, DoorClosed) as error:
            self.lose(str(error))
        finally:
            self._reading = False
            if self._flush_due:
                self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.reason is None:
            self._end("the connection broke" if exc else "the peer closed the connection")
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        if self.reason is None:
            self._owner.writable()

    # --- inside ---------------------------------------------------------------------------------

    def _receive(self, kind: int, stream_id: int, payload: memoryview) -> None:
        if not self._door.passed:
            if kind != Kind.HELLO:
                raise DoorClosed("a frame before the door was passed")
            self._said(self._door.answer(bytes(payload)))
        elif Kind.HELLO < kind < Kind.PING:
            self._owner.frame_received(kind, stream_id, payload)
        elif kind == Kind.PING:
            self.send(Kind.PONG, 0)
        elif kind == Kind.HELLO:
            raise DoorClosed("hello, and the door is open")

    def _said(self, hello: bytes | None) -> None:
        if hello is not None:
            self.send(Kind.HELLO, 0, hello)
        if self._door.passed and not self._entered.done():
            self._parser.max_payload_bytes = self._settings.max_frame_bytes
            self._entered.set_result(True)
            self._heartbeat = self._loop.call_later(self._heartbeat_s, self._beat)

    def _leave(self, now: bool) -> None:
        if now:
            self._flush_this_turn()
        elif self._items_timer is None and not self._flush_due:
            self._items_timer = self._loop.call_later(self._settings.flush_s, self._items_due)

    def _flush_this_turn(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            if not self._reading:
                self._loop.call_soon(self._flush)

    def _items_due(self) -> None:
        self._items_timer = None
        self._flush()

    def _flush(self) -> None:
        self._flush_due = False
        if self.reason is not None or self._transport is None or not self.outbox.size_bytes:
            return
        joined = self.outbox.size_bytes < _JOIN_BYTES
        buffers = self.outbox.take()
        self._spoke = True
        if joined:
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)
        # Calls, replies and items stop at max_write_bytes; only answers to a peer that goes on
        # asking and never reads can come so far.
        ceiling = self._settings.max_write_bytes + 2 * self._settings.max_frame_bytes
        if self._transport.get_write_buffer_size() > ceiling:
            self.lose("the peer does not read")

    def _beat(self) -> None:
        """Silence is counted in beats, so that our own busy loop is not taken for a dead peer."""
        self._silent_s = 0.0 if self._heard else self._silent_s + self._heartbeat_s
        if self._silent_s >= self._settings.silence_s:
            self.lose(f"silent for {self._silent_s:g} s")
            return
        if not (self._heard and self._spoke):
            self.send(Kind.PING, 0)
        self._heard = self._spoke = False
        self._heartbeat = self._loop.call_later(self._heartbeat_s, self._beat)

    def _end(self, reason: str) -> None:
        self.reason = reason
        self.outbox.take()
        for timer in (self._items_timer, self._heartbeat):
            if timer is not None:
                timer.cancel()
        if not self._entered.done():
            self._entered.set_result(False)
        elif self._entered.result():
            self._owner.ended(reason)
