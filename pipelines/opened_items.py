"""Items with what was sealed in them opened, as prompts and engines read them."""

from collections.abc import Sequence

import msgspec

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.items import Item, Reasoning, Reference, kept_items
from turnwire.pipelines.sealing import Sealer

MAY_BE_SEALED = b'"encrypted_content"'


def opened(
    items: Sequence[Item | Reference], sealer: Sealer, at: str = "input"
) -> tuple[Item | Reference, ...]:
    """Reasoning in plain text instead of sealed; the items themselves where nothing is sealed.

    Raises InvalidEncryptedContent about `at`, for example `input[2].encrypted_content`.
    """
    if not any(isinstance(item, Reasoning) and item.sealed for item in items):
        return tuple(items)
    return tuple(
        _opened(item, sealer, f"{at}[{index}]")
        if isinstance(item, Reasoning) and item.sealed
        else item
        for index, item in enumerate(items)
    )


def opened_run(items: Json, sealer: Sealer, at: str) -> Json:
    """The same for items that went through here before, with commas between them, no brackets."""
    if MAY_BE_SEALED not in items:
        return items
    return b",".join(
        item.json
        for item in opened(kept_items(items), sealer, at)
        if not isinstance(item, Reference)
    )


def _opened(item: Reasoning, sealer: Sealer, at: str) -> Reasoning:
    """What was sealed takes the place of what a client wrote: it cannot have been changed."""
    text = sealer.open("reasoning", item.sealed, at)
    members = msgspec.json.decode(item.json)
    del members["encrypted_content"]
    members["content"] = [{"type": "reasoning_text", "text": text}]
    return Reasoning(item.id, msgspec.json.encode(members))
