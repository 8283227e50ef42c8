"""What a simulated model knows of a prompt: counts and a few facts, never the history itself. Pure.

Each prompt extends the one before it, so that a turn costs what its new items cost, however long
the conversation is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson
from msgspec.structs import replace

from turnwire.actors.engines.simulated_text import count
from turnwire.pipelines.compaction import SUMMARIZE

ITEM_TOKENS: Final = 4
"""What an item costs beside its texts."""
IMAGE_TOKENS: Final = 256
LEAST_PROMPT_BYTES: Final = 768
"""What holding a prompt takes, its keys and places in tables included."""

_NAME: Final = r"[\w-]+(?:[.:/][\w-]+)*"
_REMEMBER: Final = re.compile(rf"remember:({_NAME})=(\S+)")
_RECALL: Final = re.compile(rf"recall:({_NAME})")
_CLOSING: Final = ".,;:!?\"')]}>\\"
"""Punctuation of the sentence or document around a value, not part of it."""


class Memory(msgspec.Struct, frozen=True):
    """`remember:KEY=VALUE`, the newest first; a prompt that adds none shares its parent's."""

    values: Mapping[str, str]
    before: "Memory | None"
    size_bytes: int
    """Of this and all before."""

    def all(self) -> dict[str, str]:
        """What holds now, the newest first."""
        found: dict[str, str] = {}
        memory: Memory | None = self
        while memory is not None:
            found = found | {key: memory.values[key] for key in memory.values if key not in found}
            memory = memory.before
        return found

    def value(self, key: str) -> str | None:
        memory: Memory | None = self
        while memory is not None:
            if key in memory.values:
                return memory.values[key]
            memory = memory.before
        return None


class Head(msgspec.Struct, frozen=True):
    """Instructions and tools of a prompt."""

    tokens: int = 0
    functions: tuple[Mapping[str, Any], ...] = ()
    """The tools offered: functions, then custom ones."""
    values: Mapping[str, str] = msgspec.field(default_factory=dict)
    size_bytes: int = 0


NO_HEAD: Final = Head()


class Items(msgspec.Struct, frozen=True):
    """All items of a prompt."""

    tokens: int = 0
    outputs: int = 0
    """Tool outputs since the last user message."""
    recall: str | None = None
    """The key asked for since the model's last item."""
    memory: Memory | None = None
    summary: bool = False
    """The last item asks for a summary of all."""

    @property
    def size_bytes(self) -> int:
        return LEAST_PROMPT_BYTES + (self.memory.size_bytes if self.memory else 0)


def read_head(document: bytes) -> Head:
    """Raises `ValueError` when `document` is not an object."""
    head = orjson.loads(document)
    if not isinstance(head, dict):
        raise ValueError("a head that is not an object")
    instructions = head.get("instructions") or ""
    tools = head.get("tools") or []
    functions = tuple(t for kind in ("function", "custom") for t in tools if t.get("type") == kind)
    return Head(
        tokens=count(instructions) + sum(count(orjson.dumps(t).decode()) for t in tools),
        functions=functions,
        values=_remembered(instructions),
        # Parsed JSON takes several times its bytes.
        size_bytes=1024 + 6 * len(document),
    )


def extended(before: Items, document: bytes) -> Items:
    """`before` with more items behind it. Raises `ValueError` when `document` is not a list."""
    items = orjson.loads(document)
    if not isinstance(items, list):
        raise ValueError("items that are not a list")
    for item in items:
        before = _with_item(before, item)
    return before


def _with_item(before: Items, item: Mapping[str, Any]) -> Items:
    kind, role = item.get("type") or "message", item.get("role")
    texts = list(_texts(item))
    tokens = before.tokens + ITEM_TOKENS + sum(map(count, texts)) + _images(item)
    memory = _extended_memory(before.memory, texts)
    after = replace(before, tokens=tokens, memory=memory, summary=SUMMARIZE in texts)
    if kind.endswith("_output"):
        return replace(after, outputs=before.outputs + 1, recall=_asked(texts, before.recall))
    if kind == "message" and role != "assistant":
        outputs = 0 if role == "user" else before.outputs
        return replace(after, outputs=outputs, recall=_asked(texts, before.recall))
    return replace(after, recall=None)


def _asked(texts: Sequence[str], before: str | None) -> str | None:
    for text in texts:
        if "recall:" in text:
            before = max(_RECALL.findall(text)[-1:], default=before)
    return before


def _extended_memory(before: Memory | None, texts: Sequence[str]) -> Memory | None:
    values: dict[str, str] = {}
    for text in texts:
        values |= _remembered(text)
    if not values:
        return before
    size_bytes = sum(len(key) + len(value) + 256 for key, value in values.items())
    return Memory(values, before, size_bytes + (before.size_bytes if before else 0))


def _remembered(text: str) -> dict[str, str]:
    if "remember:" not in text:
        return {}
    pairs = {key: value.rstrip(_CLOSING) for key, value in _REMEMBER.findall(text)}
    return {key: value for key, value in pairs.items() if value}


def _texts(item: Mapping[str, Any]) -> Iterator[str]:
    """Every text of an item that a model would read."""
    for name in ("name", "arguments", "input", "encrypted_content"):
        if isinstance(text := item.get(name), str):
            yield text
    for name in ("content", "output", "summary"):
        value = item.get(name)
        if isinstance(value, str):
            yield value
        for part in _parts(value):
            yield from (part[k] for k in ("text", "refusal") if isinstance(part.get(k), str))


def _images(item: Mapping[str, Any]) -> int:
    parts = _parts(item.get("content") or item.get("output"))
    return IMAGE_TOKENS * sum(part.get("type") in ("input_image", "input_file") for part in parts)


def _parts(value: object) -> list[dict[str, Any]]:
    """Items of kinds nobody here knows are passed on, whatever is in them."""
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
