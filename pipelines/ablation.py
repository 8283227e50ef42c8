"""Work that a connection saves from turn to turn, done all the same: to see what each saving buys.

Never in production. What is left out changes what a turn costs and never what it answers.
"""

from collections.abc import Iterable
from typing import Final, Literal, get_args

from msgspec.structs import replace

from turnwire.pipelines.config import AblationSettings
from turnwire.pipelines.lineage import Checkpoint, context_of
from turnwire.pipelines.new_items import check
from turnwire.pipelines.protocol.items import kept_items, new_text

Saving = Literal["token_cache", "validation", "screening", "route", "delta", "settlement"]
"""What can be left out, by the names of `AblationSettings`."""

SAVINGS: Final[tuple[Saving, ...]] = get_args(Saving)


def ablated(settings: AblationSettings, header: str = "") -> tuple[Saving, ...]:
    """What is left out on a connection. `header`: names with commas between them.

    The header counts only where the settings say so; names that are none are passed over.
    """
    wanted = {name.strip() for name in header.split(",")} if settings.by_header else set()
    return tuple(name for name in SAVINGS if name in wanted or getattr(settings, name))


def validated_again(turn: Checkpoint) -> None:
    """All items before this turn become typed objects, and are checked, once more."""
    for before in turn.ancestors():
        context = context_of(before.parent)
        for part in (before.input, before.output):
            items = kept_items(part)
            check(items, context)
            context = context.plus(items, part)


def unrendered(turn: Checkpoint) -> Checkpoint:
    """The same conversation, of which nothing is rendered or tokenized yet."""
    copy: Checkpoint | None = None
    for each in (*turn.ancestors(), turn):
        copy = replace(each, parent=copy, rendered={})
    assert copy is not None, "it has itself"
    return copy


def all_text(turn: Checkpoint, new: Iterable[str]) -> tuple[str, ...]:
    """What people and tools wrote from the beginning of the conversation."""
    items = (item for before in turn.ancestors() for item in kept_items(before.input))
    return (*(text for item in items if (text := new_text(item))), *new)
