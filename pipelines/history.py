"""Which checkpoints of a connection can still be continued from.

Kept for sure: the latest of each lane with all its ancestors, and whatever a running turn pinned.
Beyond that the least recently used are dropped as soon as they exceed a number of bytes.
"""

from collections import OrderedDict
from typing import NamedTuple

from turnwire.pipelines.lineage import Checkpoint

_FORGOTTEN = 256
"""Deleted ids that are remembered, so that a turn which was under way cannot bring one back."""


class ConversationName(NamedTuple):
    """Under which the newest turn of a conversation is found: no id that a client sends is one."""

    conversation_id: str


Name = str | ConversationName
"""A response's id, or that of a conversation."""


class Entry:
    """Book-keeping of one checkpoint that is alive: findable, pinned, or parent of one that is."""

    __slots__ = (
        "checkpoint",
        "children",
        "findable",
        "guards",
        "name",
        "parent",
        "pins",
        "size_bytes",
    )

    def __init__(self, name: Name, checkpoint: Checkpoint, parent: "Entry | None") -> None:
        self.name = name
        self.checkpoint = checkpoint
        self.parent = parent
        self.size_bytes = checkpoint.size_bytes
        self.findable = True
        self.pins = 1
        self.children = 0
        self.guards = 0
        """Guarded children, and one more when it is the latest of its lane."""


class History:
    """The checkpoints of one connection. Every `add` and `pin` asks for one `unpin`."""

    def __init__(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._entries: dict[Name, Entry] = {}
        self._latest: dict[str | None, Entry] = {}
        self._spare: OrderedDict[Name, Entry] = OrderedDict()
        """Findable and not guarded, least recently used first."""
        self._alive: dict[int, Entry] = {}
        self._forgotten: OrderedDict[Name, None] = OrderedDict()
        self.held_bytes = 0
        self.spare_bytes = 0
        """The part of `held_bytes` that is no lane's latest nor before one."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._entries

    def has_latest(self, lane: str | None) -> bool:
        """Is there a response that came last on this lane?"""
        return lane in self._latest

    def pin(self, name: Name) -> Entry | None:
        """Find a checkpoint and hold it until `unpin`. It can be found all that time."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.pins += 1
            if name in self._spare:
                self._spare.move_to_end(name)
        return entry

    def adopt(self, checkpoint: Checkpoint) -> Entry:
        """Hold a checkpoint that may be another connection's, with all before it, until `unpin`.

        What is not this connection's own is counted here and found by nobody.
        """
        missing: list[Checkpoint] = []
        at: Checkpoint | None = checkpoint
        while at is not None and id(at) not in self._alive:
            missing.append(at)
            at = at.parent
        entry = None if at is None else self._alive[id(at)]
        for foreign in reversed(missing):
            if entry is not None:
                entry.children += 1
            entry = Entry(foreign.response_id, foreign, entry)
            entry.findable, entry.pins = False, 0
            self._alive[id(foreign)] = entry
            self.held_bytes += entry.size_bytes
            self.spare_bytes += entry.size_bytes
        assert entry is not None, "the checkpoint itself, if nothing else"
        entry.pins += 1
        return entry

    def unpin(self, entry: Entry) -> None:
        entry.pins -= 1
        self._bury(entry)
        self._shrink()

    def add(
        self,
        checkpoint: Checkpoint,
        parent: Entry | None,
        *,
        latest: bool,
        name: Name | None = None,
    ) -> Entry:
        """Make a turn findable; `latest`: as the newest of its lane. Returned pinned.

        `parent` must be pinned. `name`: where it is not found by its response. Adding a name again
        changes nothing; one that was forgotten lives only as long as it is pinned or others hang
        on it.
        """
        name = name or checkpoint.response_id
        known = self.pin(name)
        if known is not None:
            return known
        entry = Entry(name, checkpoint, parent)
        if parent is not None:
            parent.children += 1
        self._entries[name] = entry
        self._alive[id(checkpoint)] = entry
        self._spare[name] = entry
        self.held_bytes += entry.size_bytes
        self.spare_bytes += entry.size_bytes
        if name in self._forgotten:
            self.evict(name)
        elif latest:
            self._make_latest(entry)
        self._shrink()
        return entry

    def forget(self, name: Name) -> None:
        """Make a turn unfindable, now and should it be added later."""
        self.evict(name)
        self._forgotten[name] = None
        if len(self._forgotten) > _FORGOTTEN:
            self._forgotten.popitem(last=False)

    def evict(self, name: Name) -> None:
        """Make a turn unfindable, be it pinned or the latest. What hangs on it stays whole."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        entry.findable = False
        self._spare.pop(name, None)
        if self._latest.get(entry.checkpoint.lane) is entry:
            del self._latest[entry.checkpoint.lane]
            self._unguard(entry)
        self._bury(entry)

    def charge(self, checkpoint: Checkpoint, size_bytes: int) -> None:
        """A checkpoint has grown: ids of its items were made for another format."""
        entry = self._alive.get(id(checkpoint))
        if entry is not None:
            entry.size_bytes += size_bytes
            self.held_bytes += size_bytes
            if not entry.guards:
                self.spare_bytes += size_bytes

    def _make_latest(self, entry: Entry) -> None:
        lane = entry.checkpoint.lane
        before = self._latest.get(lane)
        self._latest[lane] = entry
        self._guard(entry)
        if before is not None:
            self._unguard(before)

    def _guard(self, entry: Entry | None) -> None:
        while entry is not None:
            entry.guards += 1
            if entry.guards > 1:
                return
            self.spare_bytes -= entry.size_bytes
            self._spare.pop(entry.name, None)
            entry = entry.parent

    def _unguard(self, entry: Entry | None) -> None:
        while entry is not None:
            entry.guards -= 1
            if entry.guards:
                return
            self.spare_bytes += entry.size_bytes
            if entry.findable:
                self._spare[entry.name] = entry
            entry = entry.parent

    def _bury(self, entry: Entry | None) -> None:
        """Forget an entry that nothing needs any more, and then perhaps its parents."""
        while entry is not None and not (entry.findable or entry.pins or entry.children):
            self.held_bytes -= entry.size_bytes
            self.spare_bytes -= entry.size_bytes
            del self._alive[id(entry.checkpoint)]
            entry = entry.parent
            if entry is not None:
                entry.children -= 1

    def _shrink(self) -> None:
        while self.spare_bytes > self._cache_bytes:
            oldest = next((key for key, entry in self._spare.items() if not entry.pins), None)
            if oldest is None:
                return
            self.evict(oldest)
