"""Items of a stored response or a conversation, a page at a time, as clients list them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.include import shown_item

MAX_PAGE = 100
DEFAULT_PAGE = 20
_LIMIT = re.compile(r"[0-9]{1,9}\Z")

_HAVE_STATUS = frozenset(
    {
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
    }
)


class PageQuery(msgspec.Struct, frozen=True):
    """Which part of a list is asked for."""

    limit: int = DEFAULT_PAGE
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


class _Named(msgspec.Struct, frozen=True):
    id: str


_lists = msgspec.json.Decoder(list[Raw])
_named = msgspec.json.Decoder(_Named)


def page_query(given: Mapping[str, str]) -> PageQuery:
    """From the parameters of a URL; others are ignored. Raises InvalidRequest."""
    limit, order = given.get("limit", str(DEFAULT_PAGE)), given.get("order", "desc")
    if not (_LIMIT.match(limit) and 1 <= int(limit) <= MAX_PAGE):
        raise InvalidRequest(
            f"Invalid 'limit': expected a whole number from 1 to {MAX_PAGE}.", "limit"
        )
    if order not in ("asc", "desc"):
        raise InvalidRequest("Invalid 'order': expected 'asc' or 'desc'.", "order")
    after = given.get("after")
    if after is not None and "\0" in after:
        raise InvalidRequest("Invalid 'after': expected the id of an item.", "after")
    return PageQuery(int(limit), "asc" if order == "asc" else "desc", after)


def items_of(items: Json) -> tuple[Json, ...]:
    """The members of a JSON list."""
    return tuple(map(bytes, _lists.decode(items)))


def item_id(item: Json) -> str:
    """Of an item that has one."""
    return _named.decode(item).id


def item_page(items: Json, query: PageQuery, include: frozenset[str]) -> Json:
    """A list object. `items`: a JSON list of items that have ids, oldest first.

    Raises InvalidRequest for an `after` that is not the id of one of them.
    """
    found = [(_named.decode(item).id, item) for item in _lists.decode(items)]
    if query.order == "desc":
        found.reverse()
    begin = 0 if query.after is None else _behind([id for id, _ in found], query.after)
    page = found[begin : begin + query.limit]
    more = begin + len(page) < len(found)
    return list_object([item for _, item in page], include, more=more)


def list_object(items: Sequence[Json], include: frozenset[str], *, more: bool) -> Json:
    """A page of items that have ids, in their order."""
    return msgspec.json.encode(
        {
            "object": "list",
            "data": [listed_item(item, include) for item in items],
            "first_id": item_id(items[0]) if items else None,
            "last_id": item_id(items[-1]) if items else None,
            "has_more": more,
        }
    )


def listed_item(item: Json, include: frozenset[str]) -> dict[str, Any]:
    """An item as clients list it, in its long form."""
    return shown_item(_long_form(msgspec.json.decode(item)), include)


def _behind(ids: list[str], after: str) -> int:
    if after not in ids:
        raise InvalidRequest("Invalid 'after': no item of this response has that id.", "after")
    return ids.index(after) + 1


def _long_form(item: dict[str, Any]) -> dict[str, Any]:
    """Clients know the long form only: content in parts, and a status."""
    if item["type"] in _HAVE_STATUS:
        item = {"status": "completed"} | {k: v for k, v in item.items() if v is not None}
    content = item.get("content")
    if item["type"] != "message" or content is None:
        return item
    kind = "output_text" if item["role"] == "assistant" else "input_text"
    parts = [{"type": kind, "text": content}] if isinstance(content, str) else content
    return item | {"content": [_shown_part(part) for part in parts]}


def _shown_part(part: dict[str, Any]) -> dict[str, Any]:
    return {"annotations": []} | part if part["type"] == "output_text" else part
