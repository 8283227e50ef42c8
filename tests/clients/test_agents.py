"""The Agents SDK over both transports."""

import json
import subprocess
from pathlib import Path

import pytest
from running_server import RunningServer
from turn_counts import turns_of


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_an_agent_calls_its_tool_and_continues(
    agents_python: Path, server: RunningServer, transport: str
) -> None:
    before = turns_of(server, "agents-python")
    script = Path(__file__).parent / "agents_run.py"
    done = subprocess.run(
        [agents_python, script, server.url, "sim-max", transport],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert said["asked"] == 1
    assert said["usage"] == 2
    assert said["second"] == said["third"] == "teal"
    assert said["first"]
    assert said["streamed"]
    counted = turns_of(server, "agents-python") - before
    assert {kind for kind, _, _ in counted} == {transport}
    # The first run repeats itself after its tool call: the SDK sends no parent by itself.
    full = "full_cached" if transport == "websocket" else "full"
    came = {came: n for (_, came, _), n in counted.items()}
    assert came == {"new": 2, full: 2, "incremental": 1}
