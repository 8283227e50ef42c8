"""The clients of the npm world: `openai` over its WebSocket, the AI SDK over HTTP."""

import json
import subprocess
from pathlib import Path
from typing import Any

from running_server import RunningServer
from turn_counts import Turns, turns_of

NAMELESS = "other"
"""The SDK of this version sends no `User-Agent` with the upgrade."""


def run(npm: Path, script: str, server: RunningServer) -> dict[str, Any]:
    done = subprocess.run(
        ["node", script, server.url, "sim-max"],
        cwd=npm,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_openai_chains_turns_and_tool_rounds_over_one_socket(
    npm: Path, server: RunningServer
) -> None:
    before = turns_of(server, NAMELESS)
    said = run(npm, "openai_ws.mjs", server)
    assert said["first"][0] == "response.created"
    assert said["first"][-1] == "response.completed"
    assert said["call"]["name"] == "look_up"
    assert isinstance(said["call"]["arguments"]["word"], str)
    assert said["text"] == "teal"
    assert turns_of(server, NAMELESS) - before == Turns(
        {("websocket", "new", "completed"): 2, ("websocket", "incremental", "completed"): 2}
    )


def test_openai_is_told_of_a_lost_parent_and_goes_on_on_the_same_socket(
    npm: Path, server: RunningServer
) -> None:
    said = run(npm, "openai_ws.mjs", server)
    assert len(said["errors"]) == 1
    assert said["lost"] == "previous_response_not_found"
    assert said["after"] == "completed"


def test_the_ai_sdk_generates_and_streams_with_a_tool(npm: Path, server: RunningServer) -> None:
    before = turns_of(server, "ai-sdk")
    said = run(npm, "ai_sdk.mjs", server)
    assert said["asked"] == 2
    assert said["steps"] == 2
    assert said["generated"]
    assert said["streamed"]
    assert said["finish"] == "stop"
    assert said["warnings"] == []
    assert said["usage"]["inputTokens"] > 0
    assert said["usage"]["outputTokens"] > 0
    assert (turns_of(server, "ai-sdk") - before).total() == 4
