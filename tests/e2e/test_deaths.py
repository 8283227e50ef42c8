"""kill -9 of every process a turn needs, while turns run. One server for all of it.

The servers' own supervisor brings each of them back; what the turns at hand saw is the matter here.
Ray itself is the last to be killed, and the server ends.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from responses_client import DELTA, Ended, Socket, open_socket
from running_server import RunningServer, command_of, kill, wait_until
from websockets.exceptions import ConnectionClosed, WebSocketException

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SLOTS = 2
MODELS = (
    '[{"name": "smollm2", "engine": "llama", "prompt_format": "chatml"}, '
    f'{{"name": "simulated", "engine": "simulated", "simulated": {{"max_ongoing": {SLOTS}}}}}]'
)
SLOW_START = {"sim.first_token_ms": "2000"}
NEVER_STARTS = {"sim.first_token_ms": "600000"}


@pytest.fixture(scope="module")
def mortal() -> Iterator[RunningServer]:
    with RunningServer({"TURNWIRE_MODELS": MODELS}) as running:
        yield running


@contextmanager
def stopped(server: RunningServer, name: str) -> Iterator[None]:
    """The process does nothing meanwhile; it may be killed."""
    (pid,) = server.pids(name)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if command_of(pid):
            os.kill(pid, signal.SIGCONT)


def long(tokens: int) -> dict[str, Any]:
    return {"max_output_tokens": tokens, "metadata": {"sim.output_tokens": str(tokens)}}


def begin(socket: Socket, tokens: int = 400, parent: Ended | None = None) -> None:
    """A turn that is in the middle of its answer."""
    socket.create("sim-250", "go", parent, **long(tokens))
    socket.wait_for(DELTA)


def persevere(socket: Socket, model: str, text: str, parent: Ended | None = None) -> Ended:
    """As clients do: again as long as the server says that this helps."""
    while True:
        ended = socket.turn(model, text, parent)
        if ended.type != "response.failed":
            return ended
        assert ended.error["code"] == "rate_limit_exceeded"


def test_a_connection_actor_is_killed_and_the_socket_lives_on(mortal: RunningServer) -> None:
    with open_socket(mortal.url) as socket:
        stored = socket.turn("sim-max", "remember:COLOUR=teal", store=True).succeeded()
        begin(socket, parent=stored)
        kill(mortal, "PlacedConnectionActor")
        running = socket.end().succeeded()
        assert running.output_tokens == 400
        forgotten = socket.turn("sim-max", "recall:COLOUR", running)
        assert forgotten.error["code"] == "previous_response_not_found"
        assert socket.turn("sim-max", "recall:COLOUR", stored).succeeded().text == "teal"


def test_an_inference_worker_is_killed_before_output_and_nobody_notices(
    mortal: RunningServer,
) -> None:
    with open_socket(mortal.url) as socket:
        first = socket.turn("sim-max", "remember:COLOUR=teal").succeeded()
        socket.create("sim-max", "recall:COLOUR", first, metadata=SLOW_START)
        socket.wait_for("response.in_progress")
        kill(mortal, "ServeReplica:model-simulated")
        assert socket.end().succeeded().text == "teal"


def test_an_inference_worker_is_killed_and_no_other_comes(mortal: RunningServer) -> None:
    """In the middle of one answer and before another; then the next turns find a new worker."""
    with open_socket(mortal.url) as talking, open_socket(mortal.url) as waiting:
        begin(talking)
        waiting.create("sim-max", "go", metadata=SLOW_START)
        waiting.wait_for("response.in_progress")
        with stopped(mortal, "ServeController"):
            kill(mortal, "ServeReplica:model-simulated")
            cut = talking.end()
            assert (cut.type, cut.error["code"]) == ("response.failed", "server_error")
            refused = waiting.end()
            assert (refused.type, refused.error["code"]) == (
                "response.failed",
                "rate_limit_exceeded",
            )
            assert "try again in" in refused.error["message"].lower()
        wait_until(lambda: mortal.ledger().keys() >= {cut.id, refused.id})
        assert mortal.ledger()[cut.id]["output_tokens"] == cut.output_tokens > 0
        assert persevere(talking, "sim-max", "go").succeeded()
        assert persevere(waiting, "sim-max", "go").succeeded()


def test_a_real_models_worker_is_killed_and_its_successor_gets_the_whole_prompt(
    mortal: RunningServer,
) -> None:
    greedy: dict[str, Any] = {"temperature": 0.0, "max_output_tokens": 16}
    with open_socket(mortal.url) as socket:
        first = socket.turn("smollm2", "I have a cat called Luna.", **greedy).succeeded()
        kill(mortal, "ServeReplica:model-smollm2")
        question = "What is the name of my cat?"
        answer = socket.turn("smollm2", question, first, **greedy).succeeded()
        assert "Luna" in answer.text
        assert answer.cached_tokens == 0
        again = socket.turn("smollm2", question, answer, **greedy).succeeded()
        assert again.cached_tokens == answer.input_tokens + answer.output_tokens - 1


def test_a_safety_worker_that_is_stuck_or_killed_holds_nothing_up_and_leaves_a_mark(
    mortal: RunningServer,
) -> None:
    with open_socket(mortal.url) as socket:
        with stopped(mortal, "ServeReplica:safety"):
            stuck = socket.turn("sim-max", "Hello.").succeeded()
            begin(socket)
            kill(mortal, "ServeReplica:safety")
            running = socket.end().succeeded()
        without = socket.turn("sim-max", "Hello.").succeeded()
        assert persevere(socket, "sim-max", "Hello.", without).succeeded()
    ids = [stuck.id, running.id]
    wait_until(lambda: mortal.ledger().keys() >= set(ids))
    assert [mortal.ledger()[id]["flagged"] for id in ids] == ["unscreened"] * 2


def test_billing_is_killed_and_every_turn_is_in_the_ledger_once(mortal: RunningServer) -> None:
    turns: list[Ended] = []
    with open_socket(mortal.url) as socket:
        (old,) = kill(mortal, "ServeReplica:billing")
        while len(turns) < 20 or not set(mortal.pids("ServeReplica:billing")) - {old}:
            turns.append(socket.turn("sim-250", "go", **long(20)).succeeded())
        kill(mortal, "ServeReplica:billing")
        turns += [socket.turn("sim-250", "go", **long(20)).succeeded() for _ in range(3)]
    wait_until(lambda: mortal.ledger().keys() >= {turn.id for turn in turns})
    rows = [mortal.ledger()[turn.id] for turn in turns]
    assert {(row["status"], row["output_tokens"]) for row in rows} == {("completed", 20)}


def test_storage_is_killed_and_what_was_said_to_be_stored_is_stored(mortal: RunningServer) -> None:
    kept: list[Ended] = []
    lost: list[Ended] = []
    with open_socket(mortal.url) as socket:
        kept.append(socket.turn("sim-250", "remember:N=first", store=True).succeeded())
        kill(mortal, "ServeReplica:storage")
        while not (lost and kept[-1] is not kept[0]):
            number = f"remember:N={len(kept)}"
            ended = socket.turn("sim-250", number, store=True, **long(20))
            if ended.type == "response.failed":
                assert ended.error["code"] == "server_is_overloaded"
                lost.append(ended)
            else:
                kept.append(ended.succeeded())
            socket.turn("sim-250", "go", **long(20)).succeeded()
    with open_socket(mortal.url) as socket:
        values = ["first", *map(str, range(1, len(kept)))]
        assert [socket.turn("sim-max", "recall:N", one).text for one in kept] == values
        for one in lost:
            refused = socket.turn("sim-max", "recall:N", one)
            assert refused.error["code"] == "previous_response_not_found"


def test_a_gateway_is_killed_and_leaves_no_slot_and_no_actor_behind(
    mortal: RunningServer,
) -> None:
    actors = mortal.pids("PlacedConnectionActor")
    with ExitStack() as stack:
        sockets = [stack.enter_context(open_socket(mortal.url)) for _ in range(SLOTS + 1)]
        for socket in sockets:
            socket.create("sim-max", "go", metadata=NEVER_STARTS)
            socket.wait_for("response.in_progress")
        kill(mortal, "ServeReplica:gateway")
        for socket in sockets:
            with pytest.raises(ConnectionClosed):
                socket.end()
    with ExitStack() as stack:
        # At the same address; all of them at once, in slots that would be taken for ten minutes.
        sockets = [stack.enter_context(reconnected(mortal)) for _ in range(SLOTS)]
        for socket in sockets:
            socket.create("sim-max", "go")
        for socket in sockets:
            socket.end().succeeded()
    wait_until(lambda: not any("PlacedConnectionActor" in command_of(pid) for pid in actors))


@contextmanager
def reconnected(server: RunningServer) -> Iterator[Socket]:
    with ExitStack() as stack:
        opened: list[Socket] = []

        def try_again() -> bool:
            try:
                opened.append(stack.enter_context(open_socket(server.url)))
            except (OSError, WebSocketException):
                return False
            return True

        wait_until(try_again)
        yield opened[0]


def test_ray_is_killed_and_the_server_ends_and_says_so(mortal: RunningServer) -> None:
    kill(mortal, "/raylet/raylet ")
    assert mortal.wait_for_end() == 1
    assert "turnwire: Ray has died" in mortal.output[-1]
