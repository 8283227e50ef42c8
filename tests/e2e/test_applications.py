"""One Serve application a model: others come, go and restart without the gateway noticing."""

import json
import os
import signal
import subprocess
import sys

import pytest
from running_server import RunningServer
from websockets.sync.client import ClientConnection, connect

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DEPLOY = """
import sys
import ray
from ray import serve
from turnwire.cluster.app import model_application
from turnwire.cluster.place import Place
from turnwire.cluster.settings import Settings
from turnwire.pipelines.config import ModelSettings

address, folder, name, alias = sys.argv[1:]
place = Place(f"{folder}/s", f"{folder}/log", "info", several_nodes=False)
model = ModelSettings(name=name, aliases=(alias,), engine="simulated")
ray.init(address=address, namespace="turnwire", log_to_driver=False)
serve.run_many(
    [model_application(model, Settings(), place).target()], wait_for_applications_running=True
)
"""


def deploy(server: RunningServer, name: str, alias: str) -> None:
    """From another process, as an operator would."""
    done = subprocess.run(
        [sys.executable, "-c", DEPLOY, server.ray_address, server.ray_folder, name, alias],
        env=server.ray_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def ask(socket: ClientConnection, parent: str | None = None) -> str:
    request = {"type": "response.create", "model": "sim-max", "input": "x", "store": False}
    socket.send(json.dumps(request | ({"previous_response_id": parent} if parent else {})))
    while True:
        event = json.loads(socket.recv(timeout=60))
        assert event["type"] not in ("error", "response.failed"), event
        if event["type"] == "response.completed":
            response_id: str = event["response"]["id"]
            return response_id


def test_a_model_that_is_added_or_restarted_leaves_gateway_and_sockets_alone(
    server: RunningServer,
) -> None:
    (gateway,) = server.pids("ServeReplica:gateway")
    (before,) = server.pids("ServeReplica:model-simulated")
    with connect(f"ws{server.url.removeprefix('http')}/responses") as socket:
        first = ask(socket)
        deploy(server, "sim-65", "b")
        second = ask(socket, first)
        deploy(server, "simulated", "restarted")
        ask(socket, second)
    assert server.pids("ServeReplica:gateway") == [gateway]
    assert len(server.pids("ServeReplica:model-sim-65")) == 1
    assert before not in server.pids("ServeReplica:model-simulated")


def test_a_model_whose_process_is_killed_comes_back_under_the_same_socket(
    server: RunningServer,
) -> None:
    (victim,) = server.pids("ServeReplica:model-simulated")
    with connect(f"ws{server.url.removeprefix('http')}/responses") as socket:
        first = ask(socket)
        os.kill(victim, signal.SIGKILL)
        ask(socket, first)
    assert victim not in server.pids("ServeReplica:model-simulated")
