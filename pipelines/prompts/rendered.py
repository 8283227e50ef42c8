"""Prompts of turns, in whatever form: what follows the parent's prompt, or the whole.

A prompt's key is chained from its parent's, so both sides can name a prompt of any length by 16
bytes. `prefix_key` always names the PROMPT of the parent turn as it was sent, without its answer:
the answer is part of what follows.
"""

from collections import OrderedDict
from typing import Protocol

import msgspec

from turnwire.pipelines.lineage import Checkpoint, Mark, joined
from turnwire.pipelines.messages import (
    ItemPrompt,
    Json,
    Prompt,
    next_key,
    root_key,
)
from turnwire.pipelines.protocol.codec import fingerprint
from turnwire.pipelines.protocol.items import Item
from turnwire.pipelines.protocol.tools import Instructions, Tools


class Head(msgspec.Struct, frozen=True):
    """System message, instructions and tools, as the model or the engine gets them."""

    key: bytes
    content: bytes
    instructions: str | None = None
    """What it was made of, for formats in which it grows together with the first items."""
    tools: Tools | None = None
    effort: str | None = None


class Prompts(Protocol):
    """Makes the prompts of one tenant for one model."""

    def head(
        self, instructions: Instructions, tools: Tools, leading: str, effort: str | None = None
    ) -> Head: ...

    def continued(
        self, turn: Checkpoint, items: tuple[Item, ...], head: Head
    ) -> tuple[Prompt, Mark]:
        """The prompt of a new turn, after its parent's where that is a prefix of it.

        `items` are the turn's own.
        """

    def whole(self, turn: Checkpoint, head: Head) -> Prompt:
        """The same prompt, and the same key, with nothing before it."""


class ItemPrompts:
    """Items as JSON, for engines that render themselves."""

    def __init__(self, tenant: str, model: str) -> None:
        self._model = model
        self._root = root_key(tenant, model)

    def head(
        self, instructions: Instructions, tools: Tools, leading: str, effort: str | None = None
    ) -> Head:
        head = b'{"instructions":%b,"tools":%b}' % (instructions.json, tools.shown)
        return Head(fingerprint(head), head)

    def continued(
        self, turn: Checkpoint, items: tuple[Item, ...], head: Head
    ) -> tuple[ItemPrompt, Mark]:
        parts, base = [turn.input], turn.parent
        while base is not None and base.mark is None:
            # It came from storage, behind turns that may have been sent from here.
            parts += base.output, base.input
            base = base.parent
        mark = base.mark if base is not None else None
        if base is None or mark is None or mark.model != self._model:
            added = self._all(turn)
            key = next_key(self._root, head.content + added)
            prompt = ItemPrompt(key, b"", added, head.content)
        else:
            # The head is not part of the sequence, so a changed one costs only itself.
            parts.append(base.output)
            added = b"[%b]" % joined(*reversed(parts))
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
        self._heads: OrderedDict[tuple[str, bytes, bytes, str, str | None], Head] = OrderedDict()

    def get(
        self,
        model: str,
        prompts: Prompts,
        instructions: Instructions,
        tools: Tools,
        leading: str,
        effort: str | None = None,
    ) -> Head:
        key = (model, instructions.key, tools.key, leading, effort)
        head = self._heads.get(key)
        if head is None:
            head = prompts.head(instructions, tools, leading, effort)
            self._heads[key] = head
            if len(self._heads) > self._max_entries:
                self._heads.popitem(last=False)
        else:
            self._heads.move_to_end(key)
        return head
