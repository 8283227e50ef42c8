"""Codex, unmodified, with the configuration a user copies."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from client_servers import MODELS
from codex_client import Codex, Run
from running_server import RunningServer, wait_until
from turn_counts import Turns, refusals_of, turns_of

TOOL_TURNS = 8
COMPACT_TOKENS = 6500
"""More than a task alone takes (5,500), less than with the long listings (8,000)."""
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
ONE_TASK = Turns(
    {
        ("websocket", "new", "warm_up"): 1,
        ("websocket", "incremental", "completed"): TOOL_TURNS + 1,
    }
)
"""A warm-up, a turn for each command, the answer: all but the first send only what is new."""


def check_task(run: Run) -> None:
    """The commands really ran in the folder, the model answered, nothing was complained about."""
    assert run.complaints == []
    check_work(run)


def check_work(run: Run) -> None:
    assert run.code == 0
    assert [command["exit_code"] for command in run.commands] == [0] * TOOL_TURNS
    assert any("needle.txt" in command["aggregated_output"] for command in run.commands)
    assert len(run.answers) == 1
    assert run.answers[0].startswith(f"I ran {TOOL_TURNS} commands")


def test_a_task_and_its_resumption_run_over_one_socket_each_sending_only_what_is_new(
    codex: Codex, server: RunningServer
) -> None:
    before = turns_of(server, "codex")
    check_task(codex.exec("--sandbox", "workspace-write", "Look around."))
    after = turns_of(server, "codex")
    assert after - before == ONE_TASK
    check_task(codex.exec("resume", "--last", "Look again."))
    assert turns_of(server, "codex") - after == ONE_TASK


def test_a_turn_is_one_line_of_the_log(codex: Codex, server: RunningServer) -> None:
    check_task(codex.exec("Look around."))
    ended = "client=codex transport=websocket continuation=incremental status=completed"
    log = server.log_folder / "gateway-0.log"
    wait_until(lambda: f"{ended} model=sim-agent input_tokens=" in log.read_text())
    assert "turn.ended response_id=resp_" in log.read_text()


def test_tools_no_model_here_is_shown_are_no_obstacle(codex: Codex, server: RunningServer) -> None:
    """The freeform `apply_patch` beside namespaces and web search."""
    codex.catalogue["models"][0]["apply_patch_tool_type"] = "freeform"
    codex.offer()
    before = turns_of(server, "codex")
    check_task(codex.exec("Look around."))
    assert turns_of(server, "codex") - before == ONE_TASK


def test_a_long_conversation_is_compacted_by_codex_itself(
    codex: Codex, server: RunningServer
) -> None:
    """One request more, with all of the history, on a socket of its own."""
    for number in range(400):
        (codex.scratch / f"file-{number:04}.txt").touch()
    check_task(codex.exec("Look around."))
    for file in codex.scratch.glob("file-*"):
        file.unlink()
    before = turns_of(server, "codex")
    limit = ("-c", f"model_auto_compact_token_limit={COMPACT_TOKENS}")
    check_task(codex.exec(*limit, "resume", "--last", "Look again."))
    compaction = Turns({("websocket", "full", "completed"): 1})
    assert turns_of(server, "codex") - before == ONE_TASK + compaction


@pytest.mark.parametrize("model", ["sim-65", "smollm2"])
def test_a_prompt_that_does_not_fit_is_said_at_once(
    codex: Codex, server: RunningServer, model: str
) -> None:
    codex.offer(slug=model)
    before = turns_of(server, "codex")
    refused = refusals_of(server, "codex")
    run = codex.exec("--model", model, "word " * 4000)
    assert run.code == 1
    (failed,) = [event for event in run.events if event["type"] == "turn.failed"]
    assert "ran out of room in the model's context window" in failed["error"]["message"]
    assert not any("econnect" in complaint for complaint in run.complaints)
    assert run.commands == []
    counted = turns_of(server, "codex") - before
    assert {transport for transport, _, _ in counted} <= {"websocket"}
    answers = sum(n for (_, _, status), n in counted.items() if status == "failed")
    asked = refusals_of(server, "codex") - refused
    assert answers + asked["context_length_exceeded"] == 1
    assert asked.total() <= 1


@pytest.fixture
def http_server() -> Iterator[RunningServer]:
    """One that refuses upgrades."""
    rows = json.loads(MODELS)
    settings = {
        "TURNWIRE_MODELS": json.dumps([row for row in rows if row["name"] == "sim-agent"]),
        "TURNWIRE_GATEWAY__WEBSOCKET": "false",
    }
    with RunningServer(settings) as running:
        yield running


def test_without_websocket_codex_works_over_http_at_once(
    npm: Path, http_server: RunningServer, tmp_path: Path
) -> None:
    answer = httpx.get(f"{http_server.url}/responses", headers=UPGRADE)
    assert answer.status_code == 426
    assert answer.json()["error"]["code"] == "websocket_disabled"
    run = Codex.of(npm, http_server.url, tmp_path).exec("Look around.")
    check_work(run)
    # Its own log names what it tried first; the user is told nothing.
    (line,) = run.complaints
    assert "failed to connect to Responses WebSocket" in line
    assert turns_of(http_server, "codex") == Turns(
        {("http", "new", "completed"): 1, ("http", "full", "completed"): TOOL_TURNS}
    )
