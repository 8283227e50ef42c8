"""The workers as one gateway sees them: the registry that is pushed to it, and its own links.

The registry says who should be there; a link says who is. After a restart of routing the new
registry fills up again only as workers come back, so a worker whose link still lives stays.
"""

import random
from collections.abc import Callable, Container

from turnwire.actors.channel import Channel
from turnwire.actors.owned_tasks import OwnedTasks
from turnwire.actors.peer_link import Dial, PeerLink
from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import Overloaded
from turnwire.pipelines.routing import RoutingTable


class PeerRegistry:
    """`on_up` is told of each channel that stands; `on_invalid` the id of each worker whose routes
    no longer hold.
    """

    def __init__(
        self,
        dial: Dial,
        tasks: OwnedTasks,
        rng: random.Random,
        on_up: Callable[[PeerLink], None],
        on_invalid: Callable[[str], None],
    ) -> None:
        self._dial = dial
        self._on_up = on_up
        self._tasks = tasks
        self._on_invalid = on_invalid
        self._table = RoutingTable(rng)
        self._links: dict[str, PeerLink] = {}
        self._orphans: set[str] = set()
        """Known from an earlier life of routing only; they stay as long as their links do."""
        self._turn = 0

    def apply(self, registry: m.Registry, *, new_life: bool) -> None:
        """Take over what routing says. `new_life`: the first word on a new channel to it."""
        named = {worker.endpoint.id for worker in registry.workers}
        missing = [id for id in self._links if id not in named]
        if new_life:
            self._orphans.update(id for id in missing if self._links[id].live)
        self._orphans -= named
        for worker_id in missing:
            if worker_id not in self._orphans:
                self._remove(worker_id)
        for worker in registry.workers:
            self._add(worker)

    def link(self, worker_id: str) -> PeerLink:
        """Raises Overloaded for a worker that is not there."""
        link = self._links.get(worker_id)
        if link is None:
            raise Overloaded(f"the worker {worker_id} went away")
        return link

    def usable(self, worker_id: str) -> bool:
        link = self._links.get(worker_id)
        return link is not None and link.usable

    def next_of(self, pool: str, tried: Container[str] = ()) -> PeerLink | None:
        """The pool's workers in turn, without those `tried`; one that can be reached at once is
        preferred to one that is being dialled."""
        links = [
            link
            for link in self._links.values()
            if link.worker.pool == pool and not link.worker.draining and link.id not in tried
        ]
        if not links:
            return None
        links = [link for link in links if link.live] or links
        self._turn += 1
        return links[self._turn % len(links)]

    def channels(self, pool: str) -> list[Channel]:
        """To all workers of a pool that can be reached at once."""
        links = self._links.values()
        return [link.channel for link in links if link.worker.pool == pool and link.usable]

    def models(self) -> tuple[m.Model, ...]:
        """What the workers that are there serve, each name once."""
        workers = (link.worker for link in self._links.values())
        found = {model.name: model for worker in workers for model in worker.models}
        return tuple(found.values())

    def resolve(self, command: m.Resolve) -> m.Route:
        """As routing would, from what is known here: for the time while routing is away."""
        for worker_id, entry in self._table.live.items():
            entry.load = self._links[worker_id].ongoing
        return self._table.resolve(command.model, command.keep)

    def _add(self, worker: m.Worker) -> None:
        link = self._links.get(worker.endpoint.id)
        if link is not None and link.worker.endpoint != worker.endpoint:
            self._remove(link.id)
            link = None
        if link is None:
            link = PeerLink(worker, self._dial, self._on_up, self._down)
            self._links[link.id] = link
            self._tasks.start(link.run())
        link.worker = worker
        self._table.attach(worker)
        if worker.draining:
            self._on_invalid(link.id)

    def _down(self, link: PeerLink) -> None:
        if self._links.get(link.id) is not link:
            return
        if link.id in self._orphans:
            self._orphans.discard(link.id)
            self._remove(link.id)
        else:
            self._on_invalid(link.id)

    def _remove(self, worker_id: str) -> None:
        self._table.lost(worker_id)
        self._links.pop(worker_id).retire()
        self._on_invalid(worker_id)
