"""Who gets which connection actor. Pure: every method returns what is to be done, in order.

Rule 1: an actor that has served a tenant serves that tenant only, until it is killed.
Rule 2: a lease gets, in this order: an idle actor of its tenant, a fresh one, a place beside
        others of its tenant, a new actor as soon as one is ready.
Rule 3: starting an actor is dear. Leases that wait have actors started at once, `max_starting`
        at a time; the warm stock is refilled one by one, as often as `refill` is called.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from turnwire.pipelines.protocol.errors import Overloaded


@dataclass(frozen=True)
class StartActor:
    """Start an actor; answer with `started` or `lost`."""

    actor_id: str


@dataclass(frozen=True)
class KillActor:
    """The actor is forgotten already; end its process."""

    actor_id: str


@dataclass(frozen=True)
class Grant:
    """The lease is served by this actor from now on."""

    lease_id: str
    actor_id: str


Effect = StartActor | KillActor | Grant


@dataclass
class Actor:
    """A ready actor. Without a tenant it is fresh."""

    tenant: str | None = None
    leases: dict[str, None] = field(default_factory=dict)


@dataclass
class Leasing:
    """The actors of one gateway, and the leases they serve or that wait for one."""

    warm: int
    max_actors: int
    leases_per_actor: int
    max_waiting: int = 1024
    max_starting: int = 2
    ready: dict[str, Actor] = field(default_factory=dict)
    starting: dict[str, None] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    """Lease to tenant, oldest first."""
    _placed: dict[str, str] = field(default_factory=dict)
    _count: int = 0

    def lease(self, lease_id: str, tenant: str) -> list[Effect]:
        """Raises Overloaded when too many wait already."""
        if len(self.waiting) >= self.max_waiting:
            raise Overloaded(f"{len(self.waiting)} connections wait for an actor")
        self.waiting[lease_id] = tenant
        return self._assign()

    def release(self, lease_id: str) -> list[Effect]:
        """The lease is over, or gave up waiting."""
        self.waiting.pop(lease_id, None)
        actor_id = self._placed.pop(lease_id, None)
        if actor_id is not None:
            del self.ready[actor_id].leases[lease_id]
        return [*self._assign(), *self._kill_spare_idle()]

    def started(self, actor_id: str) -> list[Effect]:
        """The actor is ready. One that is not expected any more is killed."""
        if actor_id not in self.starting:
            return [KillActor(actor_id)]
        del self.starting[actor_id]
        self.ready[actor_id] = Actor()
        return self._assign()

    def lost(self, actor_id: str) -> list[Effect]:
        """The actor died or could not be started. Its leases are served anew, before all others."""
        self.starting.pop(actor_id, None)
        actor = self.ready.pop(actor_id, None)
        if actor is not None:
            again = {lease_id: actor.tenant or "" for lease_id in actor.leases}
            for lease_id in again:
                del self._placed[lease_id]
            self.waiting = again | self.waiting
        return self._assign()

    def refill(self) -> list[Effect]:
        """One more for the warm stock, when it is short. To be called at a bounded rate."""
        if self._fresh_count() + len(self.starting) >= self.warm or self.starting:
            return []
        return [*self._start()]

    def _assign(self) -> list[Effect]:
        out: list[Effect] = []
        for lease_id, tenant in list(self.waiting.items()):
            actor_id = self._place(tenant)
            if actor_id is None:
                continue
            del self.waiting[lease_id]
            actor = self.ready[actor_id]
            actor.tenant = tenant
            actor.leases[lease_id] = None
            self._placed[lease_id] = actor_id
            out.append(Grant(lease_id, actor_id))
        while len(self.starting) < min(self.max_starting, self._needed()):
            effects = list(self._start())
            if not effects:
                break
            out += effects
        return out

    def _place(self, tenant: str) -> str | None:
        own = [id for id, actor in self.ready.items() if actor.tenant == tenant]
        for actor_id in own:
            if not self.ready[actor_id].leases:
                return actor_id
        for actor_id, actor in self.ready.items():
            if actor.tenant is None:
                return actor_id
        freest = min(own, key=lambda id: len(self.ready[id].leases), default=None)
        if freest is None or len(self.ready[freest].leases) >= self.leases_per_actor:
            return None
        return freest

    def _needed(self) -> int:
        """Actors that would let every waiting lease be served, sharing within its tenant."""
        counts: dict[str, int] = {}
        for tenant in self.waiting.values():
            counts[tenant] = counts.get(tenant, 0) + 1
        return sum(-(-count // self.leases_per_actor) for count in counts.values())

    def _start(self) -> Iterator[Effect]:
        """Start one, within the budget: an idle actor of some tenant makes room for it."""
        if len(self.ready) + len(self.starting) >= self.max_actors:
            idle = self._idle()
            if not idle:
                return
            del self.ready[idle[0]]
            yield KillActor(idle[0])
        self._count += 1
        actor_id = f"a{self._count}"
        self.starting[actor_id] = None
        yield StartActor(actor_id)

    def _kill_spare_idle(self) -> list[Effect]:
        """Idle actors wait for their own tenant, but no more of them than the warm stock has."""
        idle = self._idle()
        spare = idle[: max(0, len(idle) - self.warm)]
        for actor_id in spare:
            del self.ready[actor_id]
        return [KillActor(actor_id) for actor_id in spare]

    def _idle(self) -> list[str]:
        """Used actors without a lease, oldest first."""
        return [
            id for id, actor in self.ready.items() if actor.tenant is not None and not actor.leases
        ]

    def _fresh_count(self) -> int:
        return sum(actor.tenant is None for actor in self.ready.values())

    def __repr__(self) -> str:
        actors = "".join(
            f" {id}={actor.tenant or 'fresh'}:{len(actor.leases)}"
            for id, actor in self.ready.items()
        )
        return f"<Leasing{actors} | {len(self.starting)} starting | {len(self.waiting)} waiting>"
