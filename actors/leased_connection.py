"""One leased connection: the port a turn uses, whichever actor serves it at the moment.

Commits and aborts are numbered, sent in order, kept until they are acknowledged, and sent again
after a broken channel to the same actor. When the actor died they are void, as its state is: the
next Prepare goes to a fresh actor, which does not know the parent.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from turnwire.actors.actor_link import ActorLink
from turnwire.actors.ask import expect
from turnwire.actors.channel import Channel
from turnwire.pipelines import messages as m
from turnwire.pipelines.ports import Connection
from turnwire.pipelines.protocol.errors import Internal, Overloaded

_log = logging.getLogger(__name__)

FindContent = Callable[[str, m.ContentUnknown], Awaitable[tuple[m.KnownTurn, ...]]]

MAX_UNACKNOWLEDGED = 2048
"""An actor that leaves so many commands of one connection unanswered is taken for stuck. More than
can come at once: all turns of a connection end together (`max_prepared`), or a gateway hears of all
deletes that storage keeps. An actor that is silent is found by its channel."""
MAX_ACTORS = 3
"""Actors one Prepare may outlive before its turn is refused."""


class LeasedConnection(Connection):
    """Bound to its id: commands are stamped with it, whatever id their maker wrote."""

    def __init__(
        self,
        connection_id: str,
        tenant: str,
        lease_s: float,
        on_stuck: Callable[[ActorLink], None],
        find_content: FindContent | None = None,
    ) -> None:
        """`find_content`: where to look for a conversation that its actor does not know."""
        self.id = connection_id
        self.tenant = tenant
        self._lease_s = lease_s
        self._on_stuck = on_stuck
        self._find_content = find_content
        self._link: ActorLink | None = None
        self._channel: Channel | None = None
        self._up = asyncio.Event()
        self._told = asyncio.Event()
        self._unacknowledged: dict[int, m.Message] = {}
        self._sequence = 0

    # --- ports.Connection -----------------------------------------------------------------------

    async def prepare(self, command: m.Prepare) -> m.Prepared | m.ParentUnknown | m.ConversationAt:
        """Raises what the actor refuses with; Overloaded when no actor can be had in time."""
        find = self._find_content
        asked = msgspec.structs.replace(
            command, connection_id=self.id, may_ask=find is not None and command.chain is None
        )
        reply = await self._ask(asked)
        if isinstance(reply, m.ContentUnknown) and find is not None:
            known = await find(self.tenant, reply)
            reply = await self._ask(msgspec.structs.replace(asked, may_ask=False, known=known))
        if isinstance(reply, m.Prepared | m.ParentUnknown | m.ConversationAt):
            return reply
        raise Internal(f"Prepared was expected, {type(reply).__name__} came")

    async def count(
        self, command: m.CountTokens
    ) -> m.TokenCount | m.ParentUnknown | m.ConversationAt:
        """As `prepare`."""
        reply = await self._ask(msgspec.structs.replace(command, connection_id=self.id))
        if isinstance(reply, m.ParentUnknown | m.ConversationAt):
            return reply
        return expect(reply, m.TokenCount)

    async def recall(self, command: m.Recall) -> m.Prompt:
        stamped = msgspec.structs.replace(command, connection_id=self.id)
        channel = await self._placed()
        reply = await channel.call(stamped)
        if isinstance(reply, m.TokenPrompt):
            return reply
        return expect(reply, m.ItemPrompt)

    async def summarize(self, command: m.Summarize) -> m.Summarizing:
        stamped = msgspec.structs.replace(command, connection_id=self.id)
        channel = await self._placed()
        return expect(await channel.call(stamped), m.Summarizing)

    async def compact(self, command: m.Compact) -> m.Compacted:
        stamped = msgspec.structs.replace(command, connection_id=self.id)
        channel = await self._placed()
        return expect(await channel.call(stamped), m.Compacted)

    def commit(self, command: m.Commit) -> None:
        self._deliver(command)

    def abort(self, command: m.Abort) -> None:
        self._deliver(command)

    async def told(self) -> None:
        while self._unacknowledged:
            self._told.clear()
            await self._told.wait()

    @property
    def owed(self) -> int:
        """Commands its actor has not acknowledged: never more than `MAX_UNACKNOWLEDGED`."""
        return len(self._unacknowledged)

    # --- for the pool ---------------------------------------------------------------------------

    async def placed(self) -> None:
        """Waits until an actor serves the connection. Raises Overloaded after `lease_s`."""
        await self._placed()

    def serve(self, link: ActorLink) -> None:
        """An actor was granted: another one than before starts from nothing."""
        if link is not self._link:
            self._link = link
            self._unacknowledged = {0: m.Open(self.id, self.tenant)}
        self._channel = link.channel
        if self._channel is None:
            return
        for sequence, command in tuple(self._unacknowledged.items()):
            self._send(self._channel, sequence, command)
        self._up.set()

    def interrupt(self) -> None:
        """The channel broke; `serve` follows, with the same actor or another one."""
        self._channel = None
        self._up.clear()

    def close(self) -> None:
        """The lease ends: the actor drops the connection's state."""
        if self._link is not None:
            self._link.close_connection(self.id)

    # --- inside ---------------------------------------------------------------------------------

    async def _ask(self, command: m.Message) -> m.Message:
        for _ in range(MAX_ACTORS):
            channel = await self._placed()
            try:
                reply = channel.call(command)
                channel.flush()
                return await reply
            except Overloaded:
                # An actor that was given up meanwhile speaks for nobody.
                if not channel.lost and channel is self._channel:
                    raise
        raise Overloaded("the connection's actors keep dying")

    async def _placed(self) -> Channel:
        if self._channel is not None:
            return self._channel
        try:
            async with asyncio.timeout(self._lease_s):
                while self._channel is None:
                    await self._up.wait()
        except TimeoutError as error:
            raise Overloaded("no connection actor is free; try again") from error
        return self._channel

    def _deliver(self, command: m.Commit | m.Abort) -> None:
        self._sequence += 1
        stamped = msgspec.structs.replace(command, connection_id=self.id, sequence=self._sequence)
        self._unacknowledged[self._sequence] = stamped
        if self._link is not None and isinstance(command, m.Commit):
            self._link.uncollected = True
        if len(self._unacknowledged) > MAX_UNACKNOWLEDGED:
            self._unacknowledged.clear()  # void with the actor, which is given up
            if self._link is not None:
                self._on_stuck(self._link)
        elif self._channel is not None:
            self._send(self._channel, self._sequence, stamped)

    def _send(self, channel: Channel, sequence: int, command: m.Message) -> None:
        # At once: a client that comes back soon finds its end taken up.
        reply = channel.call(command)
        reply.add_done_callback(partial(self._answered, channel, sequence))

    def _answered(self, channel: Channel, sequence: int, reply: asyncio.Future[m.Message]) -> None:
        if reply.cancelled():
            return
        error = reply.exception()
        if isinstance(error, Overloaded) and channel.lost:
            return  # sent again by `serve`, or void with its actor
        if channel is not self._channel:
            return  # an answer of an actor that was left meanwhile
        if isinstance(error, Overloaded) and self._link is not None:
            self._on_stuck(self._link)
            return
        if error is not None:
            _log.error("connection.command_refused %s: %s", self.id, type(error).__name__)
        self._unacknowledged.pop(sequence, None)
        if not self._unacknowledged:
            self._told.set()
