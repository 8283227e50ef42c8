"""Items with what was sealed in them opened, as prompts and engines read them."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.items import Compaction, Item, Reasoning, Reference, kept_items
from turnwire.pipelines.sealing import Sealer
from turnwire.pipelines.window import window_of

_MAY_BE_SEALED = b'"encrypted_content"'


class Opened(NamedTuple):
    """Reasoning in plain text, and from the last compaction item on what that stands for."""

    items: tuple[Item | Reference, ...]
    window: int = 0
    """So many of the first items stand for a compaction item and all before it; 0: there is none.
    """


def opened(items: Sequence[Item | Reference], sealer: Sealer, at: str = "input") -> Opened:
    """Raises InvalidEncryptedContent about `at`, for example `input[2].encrypted_content`."""
    if not any(_is_sealed(item) for item in items):
        return Opened(tuple(items))
    window: tuple[Item, ...] = ()
    read: list[Item | Reference] = []
    for index, item in enumerate(items):
        match item:
            case Compaction(sealed=sealed):
                text = sealer.open("compaction", sealed, f"{at}[{index}]")
                window = window_of(item.id, text)
                read = [*window]
            case Reasoning(sealed=sealed) if sealed:
                read.append(_opened(item, sealer.open("reasoning", sealed, f"{at}[{index}]")))
            case _:
                read.append(item)
    return Opened(tuple(read), len(window))


def opened_run(run: Json, sealer: Sealer, at: str) -> tuple[Json, Json | None]:
    """The same for items that went through here before, with commas between them, no brackets.

    Two runs: the items, and before them what a compaction item stood for, if there was one.
    """
    if _MAY_BE_SEALED not in run:
        return run, None
    items, window = opened(kept_items(run), sealer, at)
    jsons = [item.json for item in items if not isinstance(item, Reference)]
    return b",".join(jsons[window:]), b",".join(jsons[:window]) if window else None


def _is_sealed(item: Item | Reference) -> bool:
    return isinstance(item, Compaction) or (isinstance(item, Reasoning) and bool(item.sealed))


def _opened(item: Reasoning, text: str) -> Reasoning:
    """What was sealed takes the place of what a client wrote: it cannot have been changed."""
    members = msgspec.json.decode(item.json)
    del members["encrypted_content"]
    members["content"] = [{"type": "reasoning_text", "text": text}]
    return Reasoning(item.id, msgspec.json.encode(members))
