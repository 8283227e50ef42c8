"""Which sequence of the KV cache a generation gets, and what it can reuse. Pure.

A slot is one sequence of the context with the ids that were evaluated into it; a snapshot is the
state of one that was copied to host memory. Nothing is ever shared between tenants: that would show
in `cached_tokens`.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

SMALL_TOKENS = 32
"""A gain or a loss of fewer tokens is not worth a copy, nor waiting for another's prefill."""

if TYPE_CHECKING:
    Ids = array[int]
else:
    Ids = array  # not subscriptable before Python 3.12


def no_ids() -> Ids:
    return array("I")


def common_prefix(one: Ids, other: Ids) -> int:
    """How many ids both start with."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


@dataclass(eq=False, slots=True)
class Slot:
    """One sequence: `tokens` is exactly what its part of the KV cache holds, in order."""

    index: int
    tenant: str = ""
    tokens: Ids = field(default_factory=no_ids)
    busy: bool = False
    used: int = 0
    """The larger, the more recently used."""


@dataclass(frozen=True, eq=False, slots=True)
class Snapshot:
    """The state of a sequence in host memory."""

    tenant: str
    tokens: Ids
    state: bytearray

    @property
    def size_bytes(self) -> int:
        return len(self.state) + len(self.tokens) * self.tokens.itemsize


class PromptCache:
    """Snapshots within a bound of bytes; the longest unused goes first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._snapshots: list[Snapshot] = []

    def best(self, tenant: str, prompt: Ids) -> tuple[int, Snapshot | None]:
        """The snapshot that shares most with `prompt`, and how much."""
        best: tuple[int, Snapshot | None] = (0, None)
        for snapshot in self._snapshots:
            if snapshot.tenant == tenant:
                shared = common_prefix(snapshot.tokens, prompt)
                best = (shared, snapshot) if shared > best[0] else best
        return best

    def used(self, snapshot: Snapshot) -> None:
        if snapshot in self._snapshots:
            self._snapshots.remove(snapshot)
            self._snapshots.append(snapshot)

    def covers(self, slot: Slot) -> bool:
        """Is all that `slot` holds already in a snapshot?"""
        return self.best(slot.tenant, slot.tokens)[0] == len(slot.tokens)

    def add(self, snapshot: Snapshot) -> None:
        """Keep `snapshot`; those it contains go, then the longest unused beyond the bound."""
        self._snapshots = [old for old in self._snapshots if not _contains(snapshot, old)]
        self._snapshots.append(snapshot)
        while self.size_bytes > self.max_bytes:
            self._snapshots.pop(0)

    @property
    def size_bytes(self) -> int:
        return sum(snapshot.size_bytes for snapshot in self._snapshots)

    def __len__(self) -> int:
        return len(self._snapshots)


def _contains(new: Snapshot, old: Snapshot) -> bool:
    return new.tenant == old.tenant and common_prefix(new.tokens, old.tokens) == len(old.tokens)


@dataclass(frozen=True, slots=True)
class Placement:
    """Run in `slot`, keeping its first `keep` tokens, after copying `source` into it if given."""

    slot: Slot
    keep: int
    source: Slot | Snapshot | None = None
    save: bool = False
    """The slot's present content is worth a snapshot first."""


class SlotTable:
    """Chooses slots: the longest shared prefix, else an empty one, else the longest unused."""

    def __init__(self, count: int, cache: PromptCache) -> None:
        self.slots = [Slot(index) for index in range(count)]
        self.cache = cache
        self._uses = 0

    def place(self, tenant: str, prompt: Ids, growing: Sequence[Ids] = ()) -> Placement | None:
        """Where to run `prompt`, or None: not yet.

        `growing` are the prompts of the same tenant that are being evaluated now. Not yet means
        that every slot is busy, or that one of those will soon hold more of this prompt than
        anything at rest does.
        """
        limit = len(prompt) - 1  # the last token is evaluated again: its logits are wanted
        source, shared = self._best(tenant, prompt, self.slots)
        shared = min(shared, limit)
        soon = max((min(common_prefix(ids, prompt), limit) for ids in growing), default=0)
        idle = [slot for slot in self.slots if not slot.busy]
        if not idle:
            return None
        if soon > shared and soon - self._best(tenant, prompt, idle)[1] > SMALL_TOKENS:
            return None
        if isinstance(source, Slot) and not source.busy and _tail(source, shared) <= SMALL_TOKENS:
            return Placement(source, shared)
        target = min(idle, key=lambda slot: (len(slot.tokens) > 0, slot.used))
        if source is None or shared <= SMALL_TOKENS:
            own = common_prefix(target.tokens, prompt) if target.tenant == tenant else 0
            keep = min(own, limit)
            return Placement(target, keep, save=_tail(target, keep) > SMALL_TOKENS)
        if isinstance(source, Slot) and not source.busy and target.tokens:
            return Placement(source, shared, save=True)
        return Placement(target, shared, source, save=_tail(target, 0) > SMALL_TOKENS)

    @property
    def full(self) -> bool:
        """Is every slot busy?"""
        return all(slot.busy for slot in self.slots)

    def take(self, slot: Slot, tenant: str) -> None:
        """`slot` now belongs to a running generation of `tenant`."""
        self._uses += 1
        slot.busy, slot.tenant, slot.used = True, tenant, self._uses

    def release(self, slot: Slot) -> None:
        """Its generation ended; what it holds may be reused."""
        self._uses += 1
        slot.busy, slot.used = False, self._uses

    def _best(
        self, tenant: str, prompt: Ids, slots: Sequence[Slot]
    ) -> tuple[Slot | Snapshot | None, int]:
        own = [slot for slot in slots if slot.tenant == tenant and slot.tokens]
        found = [(common_prefix(slot.tokens, prompt), slot) for slot in own]
        best = max(
            found,
            key=lambda item: (item[0], not item[1].busy, -len(item[1].tokens)),
            default=(0, None),
        )
        shared, snapshot = self.cache.best(tenant, prompt)
        if shared - best[0] > SMALL_TOKENS:
            return snapshot, shared
        return (best[1], best[0]) if best[0] else (None, 0)


def _tail(slot: Slot, keep: int) -> int:
    """How much of what the slot holds would be lost."""
    return len(slot.tokens) - keep
