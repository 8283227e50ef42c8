"""What the gateways of a node know of conversations by their content.

Each collects it from its own connection actors, and asks the others for what it does not know.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from msgspec.structs import replace

from turnwire.actors.actor_link import ActorLink
from turnwire.actors.ask import ask
from turnwire.actors.channel import Channel
from turnwire.pipelines import messages as m
from turnwire.pipelines.node_index import NodeIndex
from turnwire.pipelines.protocol.errors import ApiError

_log = logging.getLogger(__name__)

ANSWER_S = 1.0
"""Who has not said by then what is new, or known, is not waited for."""
ASKED_ANSWER_S = ANSWER_S / 2
"""An actor, while another gateway waits."""


class NodeConversations:
    """Collects lazily: every `collect_s`, before a look-up, and before an actor is ended."""

    def __init__(
        self,
        max_bytes: int,
        collect_s: float,
        links: Callable[[], Iterable[tuple[str, ActorLink]]],
        others: Callable[[], list[Channel]] = lambda: [],
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
        own = await self.find_here(tenant, wanted)
        if not self._max_bytes or _reach(wanted, own) >= wanted.answers:
            return own
        command = m.FindContent(tenant, replace(wanted, behind=own[-1].said) if own else wanted)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(_told(channel, command)) for channel in self._others()]
        told = [self._index.allowed(tenant, task.result()) for task in asked]
        best = max(told, key=partial(_reach, wanted), default=())
        if _reach(wanted, best) <= _reach(wanted, own):
            return own
        # What is said next comes from an actor of this gateway, and goes on from these.
        self._index.put(tenant, best)
        return own + best if own and best[0].before == own[-1].said else best

    async def find_here(
        self, tenant: str, wanted: m.ContentUnknown, within_s: float = ANSWER_S
    ) -> tuple[m.KnownTurn, ...]:
        """What this gateway's own actors of `tenant` know of it together."""
        if not self._max_bytes:
            return ()
        links = [(whose, link) for whose, link in self._links() if whose == tenant]
        await self._collect_all(links, within_s)
        return self._index.find(tenant, wanted)

    def forget(self, tenant: str, response_id: str) -> None:
        self._index.forget(tenant, response_id)

    async def collect(self, tenant: str, link: ActorLink, within_s: float = ANSWER_S) -> None:
        """Never raises: what cannot be had is lost with the actor, and costs time only."""
        async with link.collecting:
            channel = link.channel
            if not link.uncollected or channel is None:
                return
            link.uncollected = False
            try:
                async with asyncio.timeout(within_s):
                    found = await ask(channel, m.Collect(link.collected), m.Collected)
            except BaseException as error:
                link.uncollected = True
                if not isinstance(error, ApiError | TimeoutError):
                    raise
                _log.warning("lease.not_collected %s: %s", link.actor_id, type(error).__name__)
                return
            link.collected = found.number
            before, link.checks = link.checks, (found.checked, found.mismatched)
            self.checked += link.checks[0] - before[0]
            self.mismatched += link.checks[1] - before[1]
            self._index.put(tenant, found.turns)

    async def _collect_all(
        self, links: Iterable[tuple[str, ActorLink]], within_s: float = ANSWER_S
    ) -> None:
        await asyncio.gather(
            *(self.collect(tenant, link, within_s) for tenant, link in list(links))
        )


async def _told(channel: Channel, command: m.FindContent) -> tuple[m.KnownTurn, ...]:
    """Never raises: without an answer more is rendered than had to be."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return (await ask(channel, command, m.FoundContent)).turns
    except (ApiError, TimeoutError) as error:
        _log.warning("lease.not_told %s: %s", channel.endpoint.id, type(error).__name__)
        return ()


def _reach(wanted: m.ContentUnknown, found: tuple[m.KnownTurn, ...]) -> int:
    """How many of the items that are wanted these turns hold."""
    return wanted.said.index(found[-1].said) + 1 if found and found[-1].said in wanted.said else 0
