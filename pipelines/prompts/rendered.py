"""Prompts of turns, in either form: what follows the parent's prompt, or the whole.

A prompt's key is chained from its parent's, so both sides can name a prompt of any length by 16
bytes. `prefix_key` always names the PROMPT of the parent turn as it was sent, without its answer:
the answer is part of what follows.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from turnwire.pipelines.lineage import Checkpoint, Mark, joined
from turnwire.pipelines.messages import (
    ItemPrompt,
    Json,
    Prompt,
    TokenIds,
    TokenPrompt,
    next_key,
    root_key,
)
from turnwire.pipelines.prompts.format import Format
from turnwire.pipelines.protocol.codec import fingerprint
from turnwire.pipelines.protocol.items import Item, kept_items
from turnwire.pipelines.protocol.tools import Instructions, Tools

Charge = Callable[[Checkpoint, int], None]
"""Told when ids were made for a checkpoint and kept with it."""

_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class Head:
    """System message, instructions and tools, as the model or the engine gets them."""

    key: bytes
    content: bytes


class Prompts(Protocol):
    """Makes the prompts of one tenant for one model."""

    def head(self, instructions: Instructions, tools: Tools, leading: str) -> Head: ...

    def continued(
        self, turn: Checkpoint, items: tuple[Item, ...], head: Head
    ) -> tuple[Prompt, Mark]:
        """The prompt of a new turn, after its parent's where that is a prefix of it.

        `items` are the turn's own.
        """

    def whole(self, turn: Checkpoint, head: Head) -> Prompt:
        """The same prompt, and the same key, with nothing before it."""


class TokenPrompts:
    """Token ids. Nothing is encoded twice, and the sampled ids of answers are kept."""

    def __init__(self, tenant: str, model: str, form: Format, charge: Charge) -> None:
        self._model = model
        self._root = root_key(tenant, model)
        self._form = form
        self._charge = charge

    def head(self, instructions: Instructions, tools: Tools, leading: str) -> Head:
        ids = self._form.head(instructions.text, tools, leading)
        return Head(fingerprint(ids), ids)

    def continued(
        self, turn: Checkpoint, items: tuple[Item, ...], head: Head
    ) -> tuple[TokenPrompt, Mark]:
        given = b"".join(map(self._form.item, items))
        turn.rendered[f"{self._form.key} input"] = given
        before = self._sent_before(turn.parent, head)
        if before is None:
            ids = self._all(turn, head)
            prompt = TokenPrompt(next_key(self._root, ids), b"", ids)
            tokens = 0
        else:
            mark, answer = before
            ids = answer + given + self._header(turn)
            prompt = TokenPrompt(next_key(mark.key, ids), mark.key, ids)
            tokens = mark.tokens
        return prompt, Mark(prompt.key, self._model, head.key, tokens + len(ids) // _ID_BYTES)

    def whole(self, turn: Checkpoint, head: Head) -> TokenPrompt:
        assert turn.mark is not None, "only a turn that was prepared has a prompt"
        return TokenPrompt(turn.mark.key, b"", self._all(turn, head))

    def _sent_before(self, parent: Checkpoint | None, head: Head) -> tuple[Mark, TokenIds] | None:
        """The parent's prompt and what its turn added to it, when all of it stands as it is."""
        if parent is None or parent.mark is None:
            return None
        if (parent.mark.model, parent.mark.head) != (self._model, head.key):
            return None
        header, reply = self._header(parent), self._reply(parent)
        # Rendered from text, an answer may merge with the header's last token.
        return (parent.mark, reply[len(header) :]) if reply.startswith(header) else None

    def _all(self, turn: Checkpoint, head: Head) -> TokenIds:
        parts = [head.content]
        for before in turn.ancestors():
            parts += (self._items(before, "input", before.input), self._reply(before))
        parts += (self._items(turn, "input", turn.input), self._header(turn))
        return b"".join(parts)

    def _header(self, turn: Checkpoint) -> TokenIds:
        return self._form.header if turn.generated else b""

    def _reply(self, turn: Checkpoint) -> TokenIds:
        """A turn's header and answer: as sampled by this model, else rendered from its items."""
        if not turn.generated:
            return b""
        if turn.output and not (turn.sampled and turn.model == self._model):
            return self._items(turn, "output", turn.output)
        sampled = turn.sampled if turn.model == self._model else b""
        return self._form.header + self._form.answer(sampled, turn.finish)

    def _items(self, turn: Checkpoint, part: str, items: Json) -> TokenIds:
        name = f"{self._form.key} {part}"
        ids = turn.rendered.get(name)
        if ids is None:
            ids = b"".join(map(self._form.item, kept_items(items)))
            turn.rendered[name] = ids
            self._charge(turn, len(ids))
        return ids


class ItemPrompts:
    """Items as JSON, for engines that render themselves."""

    def __init__(self, tenant: str, model: str) -> None:
        self._model = model
        self._root = root_key(tenant, model)

    def head(self, instructions: Instructions, tools: Tools, leading: str) -> Head:
        head = b'{"instructions":%b,"tools":%b}' % (instructions.json, tools.shown)
        return Head(fingerprint(head), head)

    def continued(
        self, turn: Checkpoint, items: tuple[Item, ...], head: Head
    ) -> tuple[ItemPrompt, Mark]:
        parent = turn.parent
        mark = parent.mark if parent is not None else None
        if parent is None or mark is None or mark.model != self._model:
            added = self._all(turn)
            key = next_key(self._root, head.content + added)
            prompt = ItemPrompt(key, b"", added, head.content)
        else:
            # The head is not part of the sequence, so a changed one costs only itself.
            added = b"[%b]" % joined(parent.output, turn.input)
            changed = None if mark.head == head.key else head.content
            key = next_key(mark.key, (changed or b"") + added)
            prompt = ItemPrompt(key, mark.key, added, changed)
        return prompt, Mark(prompt.key, self._model, head.key, 0)

    def whole(self, turn: Checkpoint, head: Head) -> ItemPrompt:
        assert turn.mark is not None, "only a turn that was prepared has a prompt"
        return ItemPrompt(turn.mark.key, b"", self._all(turn), head.content)

    def _all(self, turn: Checkpoint) -> Json:
        parts = [part for before in turn.ancestors() for part in (before.input, before.output)]
        return b"[%b]" % joined(*parts, turn.input)


class HeadCache:
    """Heads that were made lately, by the request members they come from."""

    def __init__(self, max_entries: int = 8) -> None:
        self._max_entries = max_entries
        self._heads: OrderedDict[tuple[str, bytes, bytes, str], Head] = OrderedDict()

    def get(
        self, model: str, prompts: Prompts, instructions: Instructions, tools: Tools, leading: str
    ) -> Head:
        key = (model, instructions.key, tools.key, leading)
        head = self._heads.get(key)
        if head is None:
            head = prompts.head(instructions, tools, leading)
            self._heads[key] = head
            if len(self._heads) > self._max_entries:
                self._heads.popitem(last=False)
        else:
            self._heads.move_to_end(key)
        return head
