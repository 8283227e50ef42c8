"""The sending half of one stream: a generator, advanced only with credit and a peer that reads."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from turnwire.actors.channel_frames import encode, item_fits
from turnwire.actors.channel_link import Link
from turnwire.pipelines.messages import Message
from turnwire.pipelines.protocol.errors import Internal

Produced = AsyncGenerator[Message | list[Message], None]


class Producer:
    """Runs in the task of its stream; credit comes in from the connection."""

    def __init__(self, link: Link, stream_id: int, max_frame_bytes: int) -> None:
        self._link = link
        self._stream_id = stream_id
        self._max_frame_bytes = max_frame_bytes
        self._credit = 0
        self._first = True
        self.stopped = False
        self._wake: asyncio.Future[None] | None = None

    def grant(self, count: int) -> None:
        """The consumer takes `count` messages more."""
        self._credit += count
        self.look_again()

    def stop(self) -> None:
        """Nobody reads any more: nothing is sent from here on, even by a deaf generator."""
        self.stopped = True

    def look_again(self) -> None:
        """Credit or the link has changed."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def run(self, source: Produced) -> None:
        """Send all that `source` yields. It is closed when this returns, raises or is cancelled."""
        async with aclosing(source) as produced:
            await self._clearance()
            async for item in produced:
                for message in item if isinstance(item, list) else (item,):
                    if not self._credit or self._link.blocked:
                        await self._clearance()
                    if self.stopped:
                        return
                    self._send(message)
                if not self._credit or self._link.blocked:
                    await self._clearance()

    def _send(self, message: Message) -> None:
        payload = encode(message)
        if not item_fits(payload, self._max_frame_bytes):
            raise Internal("a stream message is larger than a frame may be")
        self._credit -= 1
        # Without credit nothing follows: waiting would only hold up what gives new credit.
        now = self._first or not self._credit
        self._link.send_item(self._stream_id, payload, now=now)
        self._first = False

    async def _clearance(self) -> None:
        while not self._credit or self._link.blocked:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
