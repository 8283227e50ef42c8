"""Conversations as turns see them: what a connection remembers of one, and whose turn it is. Pure.

The truth is in storage. A connection keeps the newest turn it knows under the conversation's name,
so that only what came after it is loaded. A turn is made behind one version of its conversation,
and is appended to that version or not at all.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from turnwire.pipelines.history import ConversationName, Entry, History
from turnwire.pipelines.lineage import Checkpoint, Context, restored
from turnwire.pipelines.messages import ConversationAt, ConversationTail
from turnwire.pipelines.protocol.errors import ConversationLocked, Internal, InvalidRequest
from turnwire.pipelines.protocol.items import Item
from turnwire.pipelines.sealing import Sealer

MAX_ID_CHARACTERS = 256


def found(
    history: History, conversation_id: str, tail: ConversationTail | None, sealer: Sealer
) -> Entry | ConversationAt | None:
    """The end of the conversation, pinned; None where it is empty; or what to load behind."""
    entry = history.pin(ConversationName(conversation_id))
    known = entry.checkpoint.version if entry is not None else 0
    if tail is None or tail.since not in (0, known):
        if entry is not None:
            history.unpin(entry)
        return ConversationAt(conversation_id, known)
    if tail.conversation_id != conversation_id:
        raise Internal("storage answered with another conversation")
    if tail.since == 0 and entry is not None:
        history.unpin(entry)
        entry = None
    for turn in tail.turns:
        before = entry.checkpoint if entry is not None else None
        checkpoint = replace(restored(turn, before, sealer), version=tail.version)
        parent = entry
        behind = None if checkpoint.parent is None else parent
        entry = remember(history, conversation_id, checkpoint, behind)
        if parent is not None:
            history.unpin(parent)
    if entry is None:
        history.evict(ConversationName(conversation_id))
    return entry


def remember(
    history: History, conversation_id: str, turn: Checkpoint, before: Entry | None
) -> Entry:
    """`turn` is the conversation's newest, behind `before`, which must be pinned, as it is then."""
    name = ConversationName(conversation_id)
    history.evict(name)
    return history.add(turn, before, latest=False, name=name)


def check_ids(items: Sequence[Item], context: Context = Context(), at: str = "input") -> None:  # noqa: B008 -- immutable
    """Items of a conversation are found by their ids. Raises InvalidRequest."""
    seen: set[str] = set()
    for index, item in enumerate(items):
        if len(item.id) > MAX_ID_CHARACTERS or "\0" in item.id:
            raise InvalidRequest(
                f"Invalid '{at}[{index}].id': at most {MAX_ID_CHARACTERS} characters are "
                "allowed, and no NUL.",
                f"{at}[{index}].id",
            )
        if item.id in seen or item.id in context.items:
            raise InvalidRequest(
                f"The conversation has an item with the id of '{at}[{index}]' already. Send only "
                "what is new, or leave the id out.",
                f"{at}[{index}].id",
            )
        seen.add(item.id)


class ConversationTurns:
    """Who works on which conversation at this gateway: one turn or change at a time."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, str], str] = {}

    def enter(self, tenant: str, conversation_id: str, owner: str) -> None:
        """Raises ConversationLocked when another one is there. Entering again changes nothing."""
        if self._owners.setdefault((tenant, conversation_id), owner) != owner:
            raise ConversationLocked(
                "Another process is currently operating on this conversation. Please retry in a "
                "few seconds.",
                "conversation",
            )

    def leave(self, tenant: str, conversation_id: str, owner: str) -> None:
        if self._owners.get((tenant, conversation_id)) == owner:
            del self._owners[tenant, conversation_id]

    @contextmanager
    def changing(self, tenant: str, conversation_id: str, owner: str) -> Iterator[None]:
        """For the length of a block. Raises ConversationLocked."""
        self.enter(tenant, conversation_id, owner)
        try:
            yield
        finally:
            self.leave(tenant, conversation_id, owner)

    def __len__(self) -> int:
        return len(self._owners)
