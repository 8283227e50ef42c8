"""What clients send to make and change conversations, and what they are shown of them."""

import msgspec
from msgspec import Raw

from turnwire.pipelines.messages import Conversation
from turnwire.pipelines.protocol.codec import NULL, Metadata, read_document
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.ids import RandomBytes
from turnwire.pipelines.protocol.items import Item, Reference, parse_items

MAX_ITEMS = 20
"""In one request, as at OpenAI."""


class _Create(msgspec.Struct, frozen=True):
    items: Raw = NULL
    metadata: Metadata | None = None


class _Update(msgspec.Struct, frozen=True):
    metadata: Metadata | None


class _Add(msgspec.Struct, frozen=True):
    items: Raw


_creates = msgspec.json.Decoder(_Create)
_updates = msgspec.json.Decoder(_Update)
_adds = msgspec.json.Decoder(_Add)


def parse_create(body: bytes, random_bytes: RandomBytes) -> tuple[tuple[Item, ...], dict[str, str]]:
    """Items and metadata. An empty body is one without either. Raises InvalidRequest."""
    given = read_document(_creates.decode, body or b"{}")
    items = () if bytes(given.items) == b"null" else _items(given.items, random_bytes)
    return items, given.metadata or {}


def parse_update(body: bytes) -> dict[str, str]:
    """The new metadata. Raises InvalidRequest."""
    return read_document(_updates.decode, body).metadata or {}


def parse_addition(body: bytes, random_bytes: RandomBytes) -> tuple[Item, ...]:
    """Items to append. Raises InvalidRequest."""
    return _items(read_document(_adds.decode, body).items, random_bytes)


def conversation_object(conversation: Conversation) -> dict[str, object]:
    return {
        "id": conversation.conversation_id,
        "object": "conversation",
        "created_at": conversation.created_at,
        "metadata": conversation.metadata,
    }


def _items(raw: Raw, random_bytes: RandomBytes) -> tuple[Item, ...]:
    items: list[Item] = []
    for index, item in enumerate(parse_items(raw, random_bytes, "items")):
        if isinstance(item, Reference):
            raise InvalidRequest(
                f"Invalid 'items[{index}]': a conversation is given items, not references.",
                f"items[{index}].type",
            )
        items.append(item)
    if len(items) > MAX_ITEMS:
        raise InvalidRequest(
            f"Invalid 'items': {len(items)} were sent, at most {MAX_ITEMS} are taken at a time.",
            "items",
        )
    return tuple(items)
