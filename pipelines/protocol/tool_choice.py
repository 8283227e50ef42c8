"""`tool_choice`: which tools a turn may call, checked against those it brings along."""

import msgspec

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.codec import ChoiceMode, check_portable, read
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.tools import Tools

HOSTED = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "shell",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Kinds of tools that the API runs itself; nothing here does."""


class _Named(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    namespace: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: ChoiceMode | None = None
    tools: list[_Named] | None = None


_encode = msgspec.json.encode
_choices = msgspec.json.Decoder(_Choice)


def parse_tool_choice(raw: Json, tools: Tools) -> tuple[Json, Json]:
    """`auto`, `none`, `required`, a named tool, `allowed_tools`, or a hosted kind.

    As the response repeats it; and with the names that models and engines know tools by. A tool of
    a namespace is named with `namespace`, with its flat name, or by its own name where no other
    tool has that.
    """
    if raw == b"null":
        return b'"auto"', b'"auto"'
    if raw == b'"required"' and tools.shown == b"[]":
        raise _refusal("a tool must be called, but 'tools' has no function to call")
    if raw in (b'"auto"', b'"none"', b'"required"'):
        return raw, raw
    if raw.startswith(b'"'):
        raise _refusal("expected 'auto', 'none', 'required' or an object")
    choice = read(_choices.decode, raw, "tool_choice")
    check_portable(raw, "tool_choice")
    match choice.type:
        case "function" | "custom":
            named = _Named(choice.type, choice.name, choice.namespace)
            return raw, _encode(_known(named, tools, "tool_choice"))
        case "allowed_tools":
            return raw, _encode(_allowed(choice, tools))
        case kind if kind not in HOSTED:
            kinds = ", ".join(("function", "custom", "allowed_tools", *sorted(HOSTED)))
            raise _refusal(f"expected one of {kinds}", "tool_choice.type")
    return raw, raw


def _allowed(choice: _Choice, tools: Tools) -> dict[str, object]:
    if choice.tools is None or choice.mode is None:
        raise _refusal("'allowed_tools' needs 'mode' and 'tools'")
    known: list[dict[str, str]] = []
    for index, tool in enumerate(choice.tools):
        at = f"tool_choice.tools[{index}]"
        if tool.type in ("function", "custom"):
            known.append(_known(tool, tools, at))
        elif tool.type == "namespace":
            known += _members(tool, tools, at)
    if choice.mode == "required" and not known:
        raise _refusal("a tool must be called, but none of those allowed can be")
    return {"type": "allowed_tools", "mode": choice.mode, "tools": known}


def _known(tool: _Named, tools: Tools, at: str) -> dict[str, str]:
    """The tool as models know it."""
    if tool.name is None:
        raise _refusal("it is required", f"{at}.name")
    if tool.namespace is None and (tool.type, tool.name) in tools.names:
        return {"type": tool.type, "name": tool.name}
    found = [
        flat
        for flat, (namespace, name) in tools.namespaced.items()
        if (tool.type == "custom") == (flat in tools.custom)
        and tool.namespace in (None, namespace)
        and tool.name in (name, flat)
    ]
    if not found:
        raise _refusal("it names a tool that is not in 'tools'", at)
    if len(found) > 1:
        raise _refusal("several namespaces have a tool of that name: give 'namespace' too", at)
    return {"type": tool.type, "name": found[0]}


def _members(space: _Named, tools: Tools, at: str) -> list[dict[str, str]]:
    """All tools of a namespace."""
    if ("namespace", space.name) not in tools.names:
        raise _refusal("it names a namespace that is not in 'tools'", at)
    return [
        {"type": "custom" if flat in tools.custom else "function", "name": flat}
        for flat, (namespace, _) in tools.namespaced.items()
        if namespace == space.name
    ]


def _refusal(reason: str, at: str = "tool_choice") -> InvalidRequest:
    return InvalidRequest(f"Invalid '{at}': {reason}.", at)
