"""`tool_choice`: which tools a turn may call, checked against those it brings along."""

import msgspec

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.codec import ChoiceMode, check_portable, read
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.tools import Tools

_HOSTED = frozenset(
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


class _Named(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    mode: ChoiceMode | None = None
    tools: list[_Named] | None = None


_choices = msgspec.json.Decoder(_Choice)


def parse_tool_choice(raw: Json, tools: Tools) -> Json:
    """`auto`, `none`, `required`, a named tool, `allowed_tools`, or a hosted kind."""
    if raw == b"null":
        return b'"auto"'
    if raw == b'"required"' and tools.shown == b"[]":
        raise _refusal("a tool must be called, but 'tools' has no function to call")
    if raw in (b'"auto"', b'"none"', b'"required"'):
        return raw
    if raw.startswith(b'"'):
        raise _refusal("expected 'auto', 'none', 'required' or an object")
    choice = read(_choices.decode, raw, "tool_choice")
    check_portable(raw, "tool_choice")
    match choice.type:
        case "function" | "custom":
            _check_named(_Named(choice.type, choice.name), tools, "tool_choice")
        case "allowed_tools":
            _check_allowed(choice, tools)
        case kind if kind not in _HOSTED:
            kinds = ", ".join(("function", "custom", "allowed_tools", *sorted(_HOSTED)))
            raise _refusal(f"expected one of {kinds}", "tool_choice.type")
    return raw


def _check_allowed(choice: _Choice, tools: Tools) -> None:
    if choice.tools is None or choice.mode is None:
        raise _refusal("'allowed_tools' needs 'mode' and 'tools'")
    for index, tool in enumerate(choice.tools):
        if tool.type in ("function", "custom"):
            _check_named(tool, tools, f"tool_choice.tools[{index}]")
    callable_ = any(tool.type in ("function", "custom") for tool in choice.tools)
    if choice.mode == "required" and not callable_:
        raise _refusal("a tool must be called, but none of those allowed can be")


def _check_named(tool: _Named, tools: Tools, at: str) -> None:
    if tool.name is None:
        raise _refusal("it is required", f"{at}.name")
    if (tool.type, tool.name) not in tools.names:
        raise _refusal("it names a tool that is not in 'tools'", at)


def _refusal(reason: str, at: str = "tool_choice") -> InvalidRequest:
    return InvalidRequest(f"Invalid '{at}': {reason}.", at)
