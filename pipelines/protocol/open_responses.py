"""What a response object may repeat of its request under the Open Responses schema.

That schema knows function tools only, no JSON schema in `text`, and fewer reasoning efforts.
"""

from typing import Any

import orjson

from turnwire.pipelines.messages import Json

_EFFORTS = frozenset({"none", "low", "medium", "high", "xhigh"})


def narrowed_members(members: Json) -> Json:
    """Members without braces, as `messages.Prepared.echo`; what is not known is left neutral."""
    found = orjson.loads(b"{%b}" % members)
    found["tool_choice"] = _tool_choice(found["tool_choice"])
    reasoning = found["reasoning"]
    if reasoning["effort"] not in _EFFORTS:
        found["reasoning"] = reasoning | {"effort": None}
    text_format = found["text"]["format"]
    if text_format["type"] == "json_schema":
        strict = bool(text_format.get("strict"))
        found["text"]["format"] = {"description": None} | text_format
        found["text"]["format"] |= {"schema": None, "strict": strict}
    return orjson.dumps(found)[1:-1]


def narrowed_tools(members: Json) -> Json:
    """As `messages.Prepared.echo_tools`, with the function tools alone."""
    found = orjson.loads(b"{%b}" % members)
    found["tools"] = [tool for tool in found["tools"] if tool["type"] == "function"]
    return orjson.dumps(found)[1:-1]


def _tool_choice(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(choice, str) or choice["type"] == "function":
        return choice
    if choice["type"] != "allowed_tools":
        return "auto"
    return choice | {"tools": [tool for tool in choice["tools"] if tool["type"] == "function"]}
