"""The end of a server: turns in flight finish, a second signal forces, and nothing is left."""

import json
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from running_server import RunningServer
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from turnwire.cluster import local_ray

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@contextmanager
def connected(server: RunningServer) -> Iterator[ClientConnection]:
    with connect(f"ws{server.url.removeprefix('http')}/responses") as socket:
        yield socket


def create(socket: ClientConnection, output_tokens: int) -> None:
    request = {"type": "response.create", "model": "sim-250", "input": "go", "store": False}
    length = {
        "max_output_tokens": output_tokens,
        "metadata": {"sim.output_tokens": str(output_tokens)},
    }
    socket.send(json.dumps(request | length))


def wait_for(socket: ClientConnection, *types: str) -> dict[str, Any]:
    while True:
        event: dict[str, Any] = json.loads(socket.recv(timeout=60))
        if event["type"] in types:
            return event


def test_a_turn_in_flight_finishes_and_nothing_is_left() -> None:
    with RunningServer() as server, connected(server) as socket:
        create(socket, output_tokens=500)
        wait_for(socket, "response.output_text.delta")
        server.interrupt()
        done = wait_for(socket, "response.completed", "response.failed", "response.incomplete")
        assert done["type"] != "response.failed"
        assert done["response"]["usage"]["output_tokens"] == 500
        with pytest.raises(ConnectionClosed):
            wait_for(socket, "never")
        assert server.wait_for_end() == 0
        row = server.ledger()[done["response"]["id"]]
        assert (row["status"], row["output_tokens"]) == ("completed", 500)


def test_sigterm_ends_it_like_ctrl_c_and_a_turn_that_takes_too_long_is_told() -> None:
    hasty = {"TURNWIRE_GATEWAY__DRAIN_S": "0.2"}
    with RunningServer(hasty) as server, connected(server) as socket:
        create(socket, output_tokens=100_000)
        wait_for(socket, "response.output_text.delta")
        server.interrupt(signal.SIGTERM)
        told = wait_for(socket, "response.failed")["response"]
        assert told["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed) as closed:
            wait_for(socket, "never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        assert server.wait_for_end() == 0
        row = server.ledger()[told["id"]]
        assert (row["status"], row["output_tokens"]) == ("failed", told["usage"]["output_tokens"])


def test_a_second_signal_does_not_wait_for_turns() -> None:
    patient = {"TURNWIRE_GATEWAY__DRAIN_S": "600"}
    with RunningServer(patient) as server, connected(server) as socket:
        create(socket, output_tokens=100_000)
        wait_for(socket, "response.output_text.delta")
        server.interrupt()
        for line in server.process.stdout or ():
            if "turns in flight" in line:
                break
        server.interrupt()
        assert server.wait_for_end() == 130
        with pytest.raises(ConnectionClosed):
            wait_for(socket, "response.completed")


def test_ctrl_c_while_starting_leaves_nothing() -> None:
    server = RunningServer()
    try:
        server.spawn()
        for line in server.process.stdout or ():
            if "gateway" in line:
                break
        server.interrupt()
        assert server.wait_for_end() in (0, 130)
        assert server.left() == []
    finally:
        server.discard()


def test_a_server_whose_ray_dies_ends_and_says_so() -> None:
    with RunningServer() as server:
        (raylet,) = server.pids("/raylet/raylet ")
        server.pids()
        os.kill(raylet, signal.SIGKILL)
        assert server.wait_for_end() == 1
        assert "turnwire: Ray has died" in server.output[-1]


def test_workers_end_with_a_server_that_is_killed_and_the_next_one_sweeps_up() -> None:
    server = RunningServer()
    try:
        server.spawn()
        server.wait_until_ready()
        ours = [*server.pids("ServeReplica"), *server.pids("PlacedConnectionActor")]
        assert len(ours) >= 7
        ends = [os.pidfd_open(pid) for pid in ours]
        server.process.kill()
        server.wait_for_end()
        for end in ends:
            assert select.select([end], [], [], 10) == ([end], [], [])
            os.close(end)
        (left,) = (server.root / "r").iterdir()
        folder = local_ray.make_folder(str(server.root / "r"))
        assert not left.exists()
        folder.remove()
    finally:
        server.discard()
