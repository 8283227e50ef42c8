"""The conversations a node knows by their content, whichever actor they came through. Pure."""

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from turnwire.pipelines.content_index import Content, ContentIndex
from turnwire.pipelines.messages import ContentUnknown, KnownTurn

_MAX_TENANTS = 4096


class NodeIndex:
    """One index a tenant, bounded in bytes together: the largest gives up its longest unused."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tenants: dict[str, ContentIndex[KnownTurn]] = {}
        self.size_bytes = 0

    def put(self, tenant: str, turns: tuple[KnownTurn, ...]) -> None:
        index = self._of(tenant)
        with self._counted(index):
            for turn in turns:
                # What came before is compared by what was said only.
                content, before = Content(turn.said, turn.thought), Content(turn.before)
                index.put(
                    content,
                    before,
                    turn.response_id,
                    turn,
                    turn.size_bytes,
                    findable=turn.findable,
                )
            for turn in turns:
                if not turn.findable:
                    index.forget(turn.response_id)
        while self.size_bytes > self._max_bytes:
            largest = max(self._tenants.values(), key=lambda held: held.size_bytes)
            with self._counted(largest):
                largest.drop_oldest()

    def find(self, tenant: str, wanted: ContentUnknown) -> tuple[KnownTurn, ...]:
        """The longest known conversation, oldest turn first; without what the asker knows."""
        index = self._of(tenant)
        conversation = list(map(Content, wanted.said, wanted.thought))
        found = index.longest(conversation)
        if found is None:
            return ()
        turns = index.turns(conversation[found[0] - 1], wanted.behind)
        return tuple(
            turn if findable else replace(turn, findable=False) for turn, findable in turns
        )

    def allowed(self, tenant: str, turns: tuple[KnownTurn, ...]) -> tuple[KnownTurn, ...]:
        """What others know, as far as it may be found here: some of it was deleted meanwhile."""
        index = self._of(tenant)
        known = [
            replace(turn, findable=turn.findable and not index.is_forgotten(turn.response_id))
            for turn in turns
        ]
        while known and not known[-1].findable:
            known.pop()
        return tuple(known)

    def forget(self, tenant: str, response_id: str) -> None:
        index = self._of(tenant)
        with self._counted(index):
            index.forget(response_id)

    @contextmanager
    def _counted(self, index: ContentIndex[KnownTurn]) -> Iterator[None]:
        """Inside the block it may change: what all hold is added up once, not for each turn."""
        before = index.size_bytes
        yield
        self.size_bytes += index.size_bytes - before

    def _of(self, tenant: str) -> ContentIndex[KnownTurn]:
        index = self._tenants.get(tenant)
        if index is None:
            if len(self._tenants) >= _MAX_TENANTS:
                self.size_bytes -= self._tenants.pop(next(iter(self._tenants))).size_bytes
            index = self._tenants[tenant] = ContentIndex(self._max_bytes)
        return index
