"""The end of a server: turns in flight finish, a second signal forces, and nothing is left."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from running_server import RunningServer
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

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
