"""The channel to one leased connection actor, shared by the connections it serves.

A channel that breaks is dialled again: as long as the actor lives, so does the state in it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from turnwire.actors.backoff import Backoff
from turnwire.actors.channel import Channel
from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import ApiError, Overloaded

REDIALS = 4
"""Tries before an actor is taken for dead; a dead one refuses each at once."""

Dial = Callable[[m.Endpoint, Callable[[Channel], None]], Awaitable[Channel]]


class ActorLink:
    """`on_broken` is told once each time the channel breaks; `redial` may then be awaited.

    `on_stuck` is told when the actor does not take a command, which it must not miss.
    """

    def __init__(
        self,
        actor_id: str,
        dial: Dial,
        on_broken: Callable[["ActorLink"], None],
        on_stuck: Callable[["ActorLink"], None],
    ) -> None:
        self.actor_id = actor_id
        self._dial = dial
        self._on_broken = on_broken
        self._on_stuck = on_stuck
        self._channel: Channel | None = None
        self._unacknowledged: dict[m.Close | m.Forget, None] = {}
        self.collecting = asyncio.Lock()
        """Held by who asks it what is new."""
        self.uncollected = False
        """Have turns ended since it was asked what is new?"""
        self.collected = 0
        """The number of its last answer."""
        self.checks = 0, 0
        """Prompts it has checked, and those that did not match, by its last answer."""

    @property
    def channel(self) -> Channel | None:
        """None while it is broken."""
        return None if self._channel is None or self._channel.lost else self._channel

    async def connect(self, endpoint: m.Endpoint) -> None:
        """Raises Overloaded."""
        self._endpoint = endpoint
        self._channel = await self._dial(endpoint, lambda _: self._on_broken(self))

    async def redial(self, pause: Callable[[float], Awaitable[None]]) -> bool:
        """False: the actor is gone, and its state with it."""
        backoff = Backoff(first_s=0.02)
        for number in range(REDIALS):
            if number:
                await pause(backoff.next_s())
            try:
                await self.connect(self._endpoint)
            except ApiError:
                continue
            else:
                for command in tuple(self._unacknowledged):
                    self._send(command)
                return True
        return False

    def close_connection(self, connection_id: str) -> None:
        """Have the actor drop the connection's state."""
        self._deliver(m.Close(connection_id))

    def forget(self, response_id: str, conversation_id: str | None = None) -> None:
        """Have the actor let nobody continue from the response, or drop the conversation."""
        self._deliver(m.Forget(response_id, conversation_id))

    @property
    def owed(self) -> int:
        """Commands the actor has not acknowledged."""
        return len(self._unacknowledged)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    def _deliver(self, command: m.Close | m.Forget) -> None:
        """Said again after a broken channel."""
        self._unacknowledged[command] = None
        self._send(command)

    def _send(self, command: m.Close | m.Forget) -> None:
        if (channel := self.channel) is not None:
            reply = channel.call(command)
            reply.add_done_callback(partial(self._answered, command, channel))

    def _answered(
        self,
        command: m.Close | m.Forget,
        channel: Channel,
        reply: asyncio.Future[m.Message],
    ) -> None:
        if reply.cancelled():
            return
        error = reply.exception()
        if isinstance(error, Overloaded):
            if not channel.lost:
                self._on_stuck(self)
            return
        self._unacknowledged.pop(command, None)
