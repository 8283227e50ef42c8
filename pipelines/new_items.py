"""The new input of a turn, checked against the conversation it continues."""

import msgspec
from msgspec.structs import replace

from turnwire.pipelines.lineage import Context, joined
from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.items import (
    CallOutput,
    Foreign,
    Item,
    Message,
    Reference,
    call_of,
    new_text,
)


class NewItems(msgspec.Struct, frozen=True):
    """Items that follow a conversation."""

    items: tuple[Item, ...]
    json: Json
    """With commas between them, no brackets."""
    texts: tuple[str, ...]
    """What people and tools wrote."""
    foreign: int
    given_json: Json
    """With those before them that were repeated."""
    repeated: tuple[str, ...] = ()
    """The ids those came with: others than before, mostly."""
    unread: int = 0
    """Parts of messages and tool outputs that are not text."""
    window: int = 0
    """So many of the first items stand for a compaction item."""

    def behind(self, repeated: int) -> "NewItems":
        """Without the first items, which are known already."""
        new = _of(self.items[repeated:], max(0, self.window - repeated))
        ids = tuple(item.id for item in self.items[:repeated])
        return replace(new, given_json=self.json, repeated=ids)


def check(given: tuple[Item | Reference, ...], context: Context, window: int = 0) -> NewItems:
    """Raises InvalidRequest for a reference or a tool output that belongs to nothing.

    `window`: so many of the first items stand for a compaction item.
    """
    items = _without_references(given, context)
    _check_outputs(items, context)
    return _of(items, window)


def _of(items: tuple[Item, ...], window: int) -> NewItems:
    json = joined(*(item.json for item in items))
    # What a window holds was screened when it was new.
    texts = tuple(text for item in items[window:] if (text := new_text(item)))
    foreign = sum(isinstance(item, Foreign) for item in items)
    unread = sum(item.unread for item in items if isinstance(item, Message | CallOutput))
    return NewItems(items, json, texts, foreign, json, unread=unread, window=window)


def _without_references(given: tuple[Item | Reference, ...], context: Context) -> tuple[Item, ...]:
    """An item that is in the context already is there for the model, so a reference adds nothing.

    A second copy of it would only cost tokens and mislead.
    """
    items: list[Item] = []
    ids: set[str] = set()
    for index, item in enumerate(given):
        if not isinstance(item, Reference):
            items.append(item)
            ids.add(item.id)
        elif item.id not in ids and item.id not in context.items:
            raise InvalidRequest(
                f"Item 'input[{index}]' refers to an item that is not in this conversation.",
                f"input[{index}].id",
            )
    return tuple(items)


def _check_outputs(items: tuple[Item, ...], context: Context) -> None:
    opened = {call_id for item in items if (call_id := call_of(item)) is not None}
    for item in items:
        if not isinstance(item, CallOutput):
            continue
        if item.call_id not in opened and item.call_id not in context.calls:
            raise InvalidRequest(
                f"No tool call found for the output with call_id {item.call_id}.", "input"
            )
