"""Conversations by what is said in them, for clients that send all of it again. Pure.

Such a client repeats items from its own parse of them: ids, statuses, annotations and log
probabilities are gone or new, reasoning comes without its text or not at all. So items are compared
by type, role, text, `call_id`, name and arguments, as hashes of 128 bits, each chained to the one
before it: one hash stands for a conversation from its first item on.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

import msgspec

from turnwire.pipelines.prompts.item_groups import reasoning_text
from turnwire.pipelines.protocol.content import NOTE
from turnwire.pipelines.protocol.items import Call, CallOutput, Item, Message, Reasoning

Turn = TypeVar("Turn")

_FORGOTTEN = 256
"""Deleted ids that are remembered, so that a turn which was under way cannot bring one back."""
_HASH_BYTES = 16
_OVERHEAD_BYTES = 512
"""What finding a turn takes, beside the turn."""


class Content(msgspec.Struct, frozen=True, gc=False):
    """Everything said in a conversation up to some item."""

    said: bytes = b""
    thought: bytes = b""
    """The reasoning alone, as far as its text is there; a client may leave out all of it."""

    def plus(self, items: Iterable[Item]) -> "Content":
        content = self
        for item in items:
            content = content.after(item)
        return content

    def after(self, item: Item) -> "Content":
        if isinstance(item, Reasoning):
            text = reasoning_text(item)
            return Content(self.said, _chained(self.thought, text)) if text else self
        return Content(_chained(self.said, *_said(item)), self.thought)


def contents(items: Iterable[Item]) -> list[Content]:
    """Of a conversation, up to each of its items."""
    found, content = [], Content()
    for item in items:
        content = content.after(item)
        found.append(content)
    return found


@dataclass(eq=False, slots=True)
class _Node(Generic[Turn]):
    content: Content
    before: "_Node[Turn] | None"
    response_id: str
    turn: Turn
    size_bytes: int
    children: int = 0
    findable: bool = True


class ContentIndex(Generic[Turn]):
    """The turns of one tenant, each found by the conversation it ends.

    Bounded in bytes. Only a turn that no other follows can go, the longest unused first, so that
    whatever is found has all of its past here.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._nodes: dict[bytes, _Node[Turn]] = {}
        self._leaves: OrderedDict[bytes, _Node[Turn]] = OrderedDict()
        """The longest unused first."""
        self._by_response: dict[str, _Node[Turn]] = {}
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def put(
        self,
        content: Content,
        before: Content,
        response_id: str,
        turn: Turn,
        size_bytes: int,
        *,
        findable: bool = True,
    ) -> bool:
        """A turn, which goes on from the conversation `before`. False: it cannot be kept.

        Of two turns with the same content behind the same past the newer one is found. One that is
        not `findable` was deleted: put what is behind it, then `forget` it.
        """
        past = self._nodes.get(before.said)
        if (past is None and before.said) or (findable and response_id in self._forgotten):
            return False
        held_bytes = size_bytes + _OVERHEAD_BYTES
        if content.said == before.said or held_bytes > self._max_bytes:
            return False
        known = self._nodes.get(content.said)
        if known is not None:
            self._touch(known)
            if known.before is past and findable:
                self._replace(known, _Node(content, past, response_id, turn, held_bytes))
            return self._shrunk(content)
        node = _Node(content, past, response_id, turn, held_bytes, findable=findable)
        self._nodes[content.said] = self._leaves[content.said] = node
        self._by_response[response_id] = node
        self.size_bytes += node.size_bytes
        if past is not None:
            past.children += 1
            self._leaves.pop(past.content.said, None)
        return self._shrunk(content)

    def longest(self, conversation: Sequence[Content]) -> tuple[int, Turn] | None:
        """How many of these items are known, and the turn that ends with the last of them."""
        for count in range(len(conversation), 0, -1):
            node = self._found(conversation[count - 1])
            if node is not None:
                self._touch(node)
                return count, node.turn
        return None

    def at(self, said: bytes) -> Turn | None:
        """The turn that ends with exactly this, deleted or not."""
        node = self._nodes.get(said)
        return None if node is None else node.turn

    def turns(self, content: Content, behind: bytes = b"") -> list[tuple[Turn, bool]]:
        """All turns of a conversation, oldest first, and whether each may be found by itself; of
        those behind what was said in `behind`."""
        found: list[tuple[Turn, bool]] = []
        node = self._nodes.get(content.said)
        while node is not None and node.content.said != behind:
            found.append((node.turn, node.findable))
            node = node.before
        found.reverse()
        return found

    def forget(self, response_id: str) -> None:
        """The response was deleted: its turn is found no more, now and should it come later."""
        self._forgotten[response_id] = None
        if len(self._forgotten) > _FORGOTTEN:
            self._forgotten.popitem(last=False)
        node = self._by_response.pop(response_id, None)
        if node is not None:
            node.findable = False
            self._drop(node)

    def is_forgotten(self, response_id: str) -> bool:
        """Was it deleted, as far as that is remembered?"""
        return response_id in self._forgotten

    def drop_oldest(self) -> None:
        """Of the turns that none follows, the one that was unused for longest."""
        self._drop(next(iter(self._leaves.values()), None))

    def clear(self) -> None:
        self._nodes.clear()
        self._leaves.clear()
        self._by_response.clear()
        self.size_bytes = 0

    def _found(self, content: Content) -> _Node[Turn] | None:
        node = self._nodes.get(content.said)
        if node is None or not node.findable:
            return None
        return node if content.thought in (b"", node.content.thought) else None

    def _touch(self, node: _Node[Turn]) -> None:
        if node.content.said in self._leaves:
            self._leaves.move_to_end(node.content.said)

    def _shrunk(self, content: Content) -> bool:
        """Makes room. Is that turn still there?"""
        while self.size_bytes > self._max_bytes:
            self.drop_oldest()
        return content.said in self._nodes

    def _replace(self, node: _Node[Turn], newer: _Node[Turn]) -> None:
        self._by_response.pop(node.response_id, None)
        self.size_bytes += newer.size_bytes - node.size_bytes
        node.content, node.response_id, node.turn = newer.content, newer.response_id, newer.turn
        node.size_bytes, node.findable = newer.size_bytes, True
        self._by_response[node.response_id] = node

    def _drop(self, node: _Node[Turn] | None) -> None:
        """A turn that none follows, and then those before it that were deleted."""
        if node is None or node.children:
            return
        while node is not None:
            del self._nodes[node.content.said], self._leaves[node.content.said]
            self._by_response.pop(node.response_id, None)
            self.size_bytes -= node.size_bytes
            node = node.before
            if node is None:
                return
            node.children -= 1
            if node.children:
                return
            self._leaves[node.content.said] = node
            self._leaves.move_to_end(node.content.said, last=False)
            if node.findable:
                return


def _chained(before: bytes, *parts: str) -> bytes:
    """Each part behind its length: no two lists of parts look alike."""
    data = "".join([f"{len(part)}:{part}" for part in parts])
    said = before.ljust(_HASH_BYTES, b"\0") + data.encode("utf-8", "surrogatepass")
    return blake2b(said, digest_size=_HASH_BYTES).digest()


def _said(item: Item) -> tuple[str, ...]:
    match item:
        case Message(role=role, text=text):
            return "message", role, text, *_beyond_text(item, text)
        case Call(kind=kind, call_id=call_id, name=name, arguments=arguments):
            return kind, call_id, name, arguments
        case CallOutput(kind=kind, call_id=call_id, text=text):
            return kind, call_id, text, *_beyond_text(item, text)
        case _:
            return (_canonical(item),)


def _beyond_text(item: Item, text: str) -> tuple[str, ...]:
    """Images and files leave only a note in the text."""
    return (_canonical(item),) if NOTE in text else ()


def _canonical(item: Item) -> str:
    members = msgspec.json.decode(item.json)
    members = {name: value for name, value in members.items() if name not in ("id", "status")}
    return msgspec.json.encode(members, order="deterministic").decode()
