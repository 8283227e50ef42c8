"""`include`: parts of stored items that are shown only to who asks for them."""

from collections.abc import Iterable
from typing import Any, Final

import orjson

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.errors import InvalidRequest

LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED: Final = "reasoning.encrypted_content"

INCLUDABLE: Final = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    LOGPROBS,
    ENCRYPTED,
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""The API's names. Those of parts that no model here produces, or that are always shown, are taken
and change nothing."""


def included(query: Iterable[tuple[str, str]]) -> frozenset[str]:
    """From the parameters of a URL, `include` or `include[]`. Raises InvalidRequest."""
    found = {value for name, value in query if name in ("include", "include[]")}
    if not found <= set(INCLUDABLE):
        raise InvalidRequest(
            f"Invalid 'include': expected one of {', '.join(INCLUDABLE)}.", "include"
        )
    return frozenset(found)


def shown(response: Json, include: frozenset[str]) -> Json:
    """A response object without what was not asked for."""
    if not _hides(response, include):
        return response
    found = orjson.loads(response)
    return orjson.dumps(found | {"output": [_item(item, include) for item in found["output"]]})


def shown_items(items: Json, include: frozenset[str]) -> Json:
    """The same for a JSON list of items."""
    if not _hides(items, include):
        return items
    return orjson.dumps([_item(item, include) for item in orjson.loads(items)])


def _hides(text: Json, include: frozenset[str]) -> bool:
    """Is there a chance of it? Most have nothing to hide, and are not decoded for it."""
    return (LOGPROBS not in include and b'"logprobs"' in text) or (
        ENCRYPTED not in include and b'"encrypted_content"' in text
    )


def _item(item: dict[str, Any], include: frozenset[str]) -> dict[str, Any]:
    kind, content = item.get("type", "message"), item.get("content")
    if kind == "reasoning" and ENCRYPTED not in include:
        return {name: value for name, value in item.items() if name != "encrypted_content"}
    if kind == "message" and LOGPROBS not in include and isinstance(content, list):
        return item | {"content": [_part(part) for part in content]}
    return item


def _part(part: dict[str, Any]) -> dict[str, Any]:
    return part | {"logprobs": []} if part.get("logprobs") else part
