"""What stands in a compaction item: a summary, and the items behind it that were kept as they were.

Together they take the place of all that came before, for whoever reads the item back.
"""

import msgspec
from msgspec import Raw

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.events import quoted
from turnwire.pipelines.protocol.items import Item, Message, Reference, parse_items

LEAD = "Summary of the conversation so far:\n"


class _Window(msgspec.Struct, frozen=True):
    summary: str
    kept: Raw


_windows = msgspec.json.Decoder(_Window)


def packed(summary: str, kept: Json) -> str:
    """Text to be sealed. `kept`: items with commas between them, no brackets."""
    return (b'{"summary":%b,"kept":[%b]}' % (quoted(summary), kept)).decode()


def window_of(item_id: str, text: str) -> tuple[Item, ...]:
    """The items that a compaction item stands for. `text`: what was `packed`."""
    window = _windows.decode(text)
    said = LEAD + window.summary
    json = b'{"type":"message","id":%b,"role":"user","content":[%b]}' % (
        quoted(item_id),
        b'{"type":"input_text","text":%b}' % quoted(said),
    )
    kept = parse_items(window.kept, bytes, "kept")
    items = (item for item in kept if not isinstance(item, Reference))
    return (Message(item_id, json, "user", said), *items)


def is_summary(item: Item) -> bool:
    """Is it the summary of a window?"""
    return isinstance(item, Message) and item.role == "user" and item.text.startswith(LEAD)
