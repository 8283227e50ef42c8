"""`tool_choice`: as it is repeated, and with the names that models know tools by."""

import json
from typing import Any

import pytest

from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.tool_choice import parse_tool_choice
from turnwire.pipelines.protocol.tools import parse_tools


def space(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": list(tools)}


SEND, NOTE = {"type": "function", "name": "send"}, {"type": "custom", "name": "note"}
FIND = {"type": "function", "name": "find"}
TOOLS = parse_tools(
    json.dumps([space("mail", SEND, NOTE), space("chat", SEND), FIND, {"type": "mcp"}]).encode()
)


def known(choice: object) -> Any:  # noqa: ANN401 -- any JSON
    raw = json.dumps(choice).encode()
    repeated, chosen = parse_tool_choice(raw, TOOLS)
    assert repeated == raw
    return json.loads(chosen)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"type": "function", "name": "find"}, "find"),
        ({"type": "function", "namespace": "mail", "name": "send"}, "mail__send"),
        ({"type": "function", "namespace": "chat", "name": "send"}, "chat__send"),
        ({"type": "function", "name": "mail__send"}, "mail__send"),
        ({"type": "custom", "name": "note"}, "mail__note"),
        ({"type": "custom", "namespace": "mail", "name": "note"}, "mail__note"),
    ],
)
def test_a_tool_of_a_namespace_is_named_in_every_way(given: dict[str, str], name: str) -> None:
    assert known(given) == {"type": given["type"], "name": name}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [given]}
    assert known(allowed)["tools"] == [{"type": given["type"], "name": name}]


def test_a_whole_namespace_can_be_allowed() -> None:
    tools = [{"type": "namespace", "name": "mail"}, {"type": "mcp"}]
    allowed = known({"type": "allowed_tools", "mode": "auto", "tools": tools})
    assert [tool["name"] for tool in allowed["tools"]] == ["mail__send", "mail__note"]


@pytest.mark.parametrize(
    "given",
    [
        {"type": "function", "name": "send"},
        {"type": "function", "name": "note"},
        {"type": "function", "namespace": "other", "name": "send"},
        {"type": "function", "namespace": "mail", "name": "find"},
        {"type": "custom", "name": "find"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "x"}]},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]},
    ],
)
def test_what_names_no_tool_or_several_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        known(given)
    assert (refused.value.param or "").startswith("tool_choice")
