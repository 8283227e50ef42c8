"""What the gateways of a node know of conversations by their content.

Each collects it from its own connection actors, and asks the others for what it does not know.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from turnwire.actors.actor_link import ActorLink
from turnwire.actors.ask import ask, expect
from turnwire.actors.channel import Channel
from turnwire.pipelines import messages as m
from turnwire.pipelines.node_index import NodeIndex
from turnwire.pipelines.protocol.errors import ApiError

_log = logging.getLogger(__name__)

_ANSWER_S = 1.0
"""An actor that has not said what is new by then is not waited for."""


def _nobody() -> list[Channel]:
    return []


class NodeConversations:
    """Collects lazily: every `collect_s`, before a look-up, and before an actor is ended."""

    def __init__(
        self,
        max_bytes: int,
        collect_s: float,
        links: Callable[[], Iterable[tuple[str, ActorLink]]],
        others: Callable[[], list[Channel]] = _nobody,
    ) -> None:
        """`links`: the actors that serve somebody, each behind its tenant. `others`: channels to
        the other gateways of the node.
        """
        self._others = others
        self._index = NodeIndex(max_bytes)
        self._max_bytes = max_bytes
        self._collect_s = collect_s
        self._links = links
        self.checked = 0
        """Prompts the actors have compared with the whole rendered anew."""
        self.mismatched = 0

    @property
    def size_bytes(self) -> int:
        return self._index.size_bytes

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._collect_s)
            await self._collect_all(self._links())

    async def find(self, tenant: str, wanted: m.ContentUnknown) -> tuple[m.KnownTurn, ...]:
        """What all actors of `tenant` on the node know of it: the longest that a gateway has."""
        if not self._max_bytes:
            return ()
        command = m.FindContent(tenant, wanted)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(_told(channel, command)) for channel in self._others()]
            own = await self.find_here(tenant, wanted)
        found = max((own, *(task.result() for task in asked)), key=partial(_reach, wanted))
        if found is not own:
            # What is said next comes from an actor of this gateway, and goes on from these.
            self._index.put(tenant, found)
        return found

    async def find_here(self, tenant: str, wanted: m.ContentUnknown) -> tuple[m.KnownTurn, ...]:
        """What this gateway's own actors of `tenant` know of it together."""
        if not self._max_bytes:
            return ()
        await self._collect_all((whose, link) for whose, link in self._links() if whose == tenant)
        return self._index.find(tenant, wanted)

    def forget(self, tenant: str, response_id: str) -> None:
        self._index.forget(tenant, response_id)

    async def collect(self, tenant: str, link: ActorLink) -> None:
        """Never raises: what cannot be had is lost with the actor, and costs time only."""
        channel = link.channel
        if not link.uncollected or channel is None:
            return
        link.uncollected = False
        try:
            async with asyncio.timeout(_ANSWER_S):
                reply = await channel.call(m.Collect(link.collected))
            found = expect(reply, m.Collected)
        except (ApiError, TimeoutError) as error:
            link.uncollected = True
            _log.warning("lease.not_collected %s: %s", link.actor_id, type(error).__name__)
            return
        # Two may be under way at once, and both bring what is new.
        link.collected = max(link.collected, found.number)
        before, link.checks = link.checks, max(link.checks, (found.checked, found.mismatched))
        self.checked += link.checks[0] - before[0]
        self.mismatched += link.checks[1] - before[1]
        self._index.put(tenant, found.turns)

    async def _collect_all(self, links: Iterable[tuple[str, ActorLink]]) -> None:
        await asyncio.gather(*(self.collect(tenant, link) for tenant, link in list(links)))


async def _told(channel: Channel, command: m.FindContent) -> tuple[m.KnownTurn, ...]:
    """Never raises: without an answer more is rendered than had to be."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return (await ask(channel, command, m.FoundContent)).turns
    except (ApiError, TimeoutError) as error:
        _log.warning("lease.not_told %s: %s", channel.endpoint.id, type(error).__name__)
        return ()


def _reach(wanted: m.ContentUnknown, found: tuple[m.KnownTurn, ...]) -> int:
    """How many of the items that are wanted these turns hold."""
    return wanted.said.index(found[-1].said) + 1 if found else 0
