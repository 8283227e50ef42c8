"""Which of the offered tools a turn may call, and whether it must. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from turnwire.pipelines.protocol.errors import InvalidRequest

Function = Mapping[str, Any]


def callable_functions(
    offered: Sequence[Function], tool_choice: bytes
) -> tuple[list[Function], bool]:
    """The functions in the order to prefer them; true when one of them must be called.

    Raises `InvalidRequest` when one must be and none can be.
    """
    allowed, forced = _allowed(offered, orjson.loads(tool_choice))
    if forced and not allowed:
        raise InvalidRequest("names no tool of this request that can be called", "tool_choice")
    return allowed, forced


def _allowed(offered: Sequence[Function], choice: object) -> tuple[list[Function], bool]:
    match choice:
        case "auto" | None:
            return list(offered), False
        case "required":
            return list(offered), True
        case {"type": "function" | "custom", "name": str(name)}:
            return [f for f in offered if f["name"] == name], True
        case {"type": "allowed_tools", "tools": list(tools), **rest}:
            names = [tool.get("name") for tool in tools]
            return [f for f in offered if f["name"] in names], rest.get("mode") == "required"
        case _:
            return [], False
