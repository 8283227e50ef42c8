"""The prompts a simulated engine holds, each as counts and facts, bounded in bytes."""

import hashlib
from dataclasses import dataclass
from typing import Final

import msgspec

from turnwire.actors.engines.prefixes import PrefixTable
from turnwire.actors.engines.simulated_prompt import (
    LEAST_PROMPT_BYTES,
    NO_HEAD,
    Head,
    Items,
    extended,
    read_head,
)
from turnwire.pipelines.messages import ItemPrompt

_HEADS_SHARE: Final = 4
"""One part in so many of the memory is for instructions and tools."""


@dataclass(slots=True)
class Held:
    """A prompt that is evaluated, or will be when `ready_s` has come."""

    head_key: bytes
    items: Items
    tokens: int
    ready_s: float = 0.0
    waiting: int = 0
    """Generations that wait for its evaluation."""


class Placed(msgspec.Struct, frozen=True):
    """A prompt as one request finds it: `cached_tokens` of it are evaluated already."""

    held: Held
    head: Head
    cached_tokens: int
    after_s: float
    """What it is built on is evaluated then."""


_NOTHING: Final = (Held(b"", Items(), 0), NO_HEAD)


class HeldPrompts:
    """All tenants' prompts; neither keys nor anything behind them cross tenants."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        for_heads = self._max_bytes // _HEADS_SHARE
        self._heads: PrefixTable[Head] = PrefixTable(for_heads)
        self._prompts: PrefixTable[Held] = PrefixTable(
            self._max_bytes - for_heads, max_count=self._max_bytes // LEAST_PROMPT_BYTES
        )

    def place(self, prompt: ItemPrompt, tenant: str, *, cold: bool = False) -> Placed | None:
        """The prompt, built on the prefix it names; None when that is not held.

        `cold`: what is held already is of no use.
        """
        if not cold and (known := self._find(tenant, prompt.key)) is not None:
            held, head = known
            return Placed(held, head, held.tokens, held.ready_s)
        before, head = _NOTHING
        if prompt.prefix_key:
            if (parent := self._find(tenant, prompt.prefix_key)) is None:
                return None
            before, head = parent
        head_key = before.head_key
        if prompt.head is not None:
            head_key, head = self._head(tenant, prompt.head)
        items = extended(before.items, prompt.items)
        held = Held(head_key, items, head.tokens + items.tokens)
        # The head comes first: with another one nothing behind it can be used again.
        cached_tokens = before.tokens if head_key == before.head_key else 0
        return Placed(held, head, cached_tokens, before.ready_s)

    def keep(self, tenant: str, key: bytes, held: Held) -> None:
        """Hold the prompt, to be found from now on."""
        self._prompts.put(tenant, key, held, held.items.size_bytes)

    def drop(self, tenant: str, key: bytes) -> None:
        """Its evaluation was given up."""
        self._prompts.discard(tenant, key)

    def _find(self, tenant: str, key: bytes) -> tuple[Held, Head] | None:
        held = self._prompts.get(tenant, key)
        if held is None:
            return None
        head = self._heads.get(tenant, held.head_key) if held.head_key else NO_HEAD
        return None if head is None else (held, head)

    def _head(self, tenant: str, document: bytes) -> tuple[bytes, Head]:
        key = hashlib.blake2b(document, digest_size=16).digest()
        head = self._heads.get(tenant, key)
        if head is None:
            head = read_head(document)
            self._heads.put(tenant, key, head, head.size_bytes)
        return key, head
