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
    # Most have nothing to hide, and are not decoded for it.
    if (LOGPROBS in include or b'"logprobs"' not in response) and (
        ENCRYPTED in include or b'"encrypted_content"' not in response
    ):
        return response
    found = orjson.loads(response)
    return orjson.dumps(found | {"output": [shown_item(item, include) for item in found["output"]]})


def shown_item(item: dict[str, Any], include: frozenset[str]) -> dict[str, Any]:
    """The same for one item."""
    kind, content = item.get("type", "message"), item.get("content")
    if kind == "reasoning" and ENCRYPTED not in include:
        return {name: value for name, value in item.items() if name != "encrypted_content"}
    if kind == "message" and LOGPROBS not in include and isinstance(content, list):
        return item | {"content": [_part(part) for part in content]}
    return item


def _part(part: dict[str, Any]) -> dict[str, Any]:
    return part | {"logprobs": []} if part.get("logprobs") else part
