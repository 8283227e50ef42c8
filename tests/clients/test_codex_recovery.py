"""What dies while Codex works: it goes on over WebSocket, and says at most that it reconnects."""

import os
import signal
from collections.abc import Callable

import pytest
from codex_client import Codex, Run
from running_server import RunningServer
from turn_counts import refusals_of, turns_of

TOOL_TURNS = 8
AT_COMMAND = 3


def work_through(codex: Codex, strike: Callable[[], None]) -> Run:
    """A task during whose third command something happens to the server."""
    run = Run()
    for event in codex.follow("Look around.", run=run):
        started = [one for one in run.events if one["type"] == "item.started"]
        if event["type"] == "item.started" and len(started) == AT_COMMAND:
            strike()
    assert run.code == 0, (run.events, run.stderr)
    assert len(run.commands) == TOOL_TURNS
    assert run.answers[-1].startswith(f"I ran {TOOL_TURNS} commands")
    assert not any("HTTP" in complaint for complaint in run.complaints), run.complaints
    return run


def test_a_lost_connection_actor_costs_one_full_history(
    codex: Codex, server: RunningServer
) -> None:
    before, refused = turns_of(server, "codex"), refusals_of(server, "codex")

    def kill_actors() -> None:
        for pid in server.pids("PlacedConnectionActor"):
            os.kill(pid, signal.SIGKILL)

    work_through(codex, kill_actors)
    counted = turns_of(server, "codex") - before
    assert {transport for transport, _, _ in counted} == {"websocket"}
    assert refusals_of(server, "codex") - refused == {"previous_response_not_found": 1}
    assert sum(n for (_, came, _), n in counted.items() if came == "full_after_error") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL], ids=["killed"])
def test_a_gateway_that_dies_is_waited_for(
    codex: Codex, server: RunningServer, number: signal.Signals
) -> None:
    (gateway,) = server.pids("ServeReplica:gateway")
    work_through(codex, lambda: os.kill(gateway, number))
    (_,) = set(server.pids("ServeReplica:gateway")) - {gateway}
    # The new one counts from zero, and knows nothing of an error that another met.
    counted = turns_of(server, "codex")
    assert {transport for transport, _, _ in counted} == {"websocket"}
    assert sum(n for (_, came, _), n in counted.items() if came == "full") == 1
