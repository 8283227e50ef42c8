"""What a worker still knows of earlier prompts: the whole prompt behind a prefix key."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

Prompt = TypeVar("Prompt")


@dataclass(frozen=True, slots=True)
class _Held(Generic[Prompt]):
    prompt: Prompt
    size_bytes: int


class PrefixTable(Generic[Prompt]):
    """Prompts by tenant and key, of any form (ids, item lists). The longest unused goes first.

    Bounded by bytes and by count; a prompt larger than the whole table is not kept, so that its
    next turn is answered `PrefixMissing` and arrives whole.
    """

    def __init__(self, max_bytes: int, max_count: int = 4096) -> None:
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._held: OrderedDict[tuple[str, bytes], _Held[Prompt]] = OrderedDict()
        self._bytes = 0

    def get(self, tenant: str, key: bytes) -> Prompt | None:
        """The prompt `key` names, if it is still held for this tenant; counts as a use."""
        held = self._held.get((tenant, key))
        if held is None:
            return None
        self._held.move_to_end((tenant, key))
        return held.prompt

    def put(self, tenant: str, key: bytes, prompt: Prompt, size_bytes: int) -> None:
        """Hold `prompt`, which takes `size_bytes`; the longest unused go beyond the bounds."""
        replaced = self._held.pop((tenant, key), None)
        if replaced is not None:
            self._bytes -= replaced.size_bytes
        if size_bytes > self._max_bytes:
            return
        self._held[(tenant, key)] = _Held(prompt, size_bytes)
        self._bytes += size_bytes
        while self._bytes > self._max_bytes or len(self._held) > self._max_count:
            _, dropped = self._held.popitem(last=False)
            self._bytes -= dropped.size_bytes

    def discard(self, tenant: str, key: bytes) -> None:
        """Hold the prompt no longer, if it is held."""
        dropped = self._held.pop((tenant, key), None)
        if dropped is not None:
            self._bytes -= dropped.size_bytes

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size_bytes(self) -> int:
        """What the held prompts take, as told by `put`."""
        return self._bytes
