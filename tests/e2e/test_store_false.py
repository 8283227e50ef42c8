"""Content of `store: false` reaches no disk, no log and no metric; one that is stored does."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from responses_client import open_socket
from running_server import RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SECRET = "heliotrope-7731"
KEPT = "celadon-1984"


def post(server: RunningServer, body: dict[str, object]) -> int:
    request = urllib.request.Request(
        f"{server.url}/responses", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def holding(server: RunningServer, text: str) -> list[Path]:
    """Files of the server, Ray's among them, that hold the text."""
    files = [path for path in server.root.rglob("*") if path.is_file()]
    assert any(path.is_relative_to(server.log_folder) for path in files)
    return [path for path in files if text.encode() in path.read_bytes()]


def test_what_is_not_to_be_stored_is_written_nowhere(server: RunningServer) -> None:
    with open_socket(server.url) as socket:
        first = socket.turn("sim-max", f"remember:COLOUR={SECRET}").succeeded()
        assert socket.turn("sim-max", "recall:COLOUR", first).succeeded().text == SECRET
        failed = socket.turn("sim-max", SECRET, metadata={"sim.fail": "internal@0"})
        assert failed.type == "response.failed"
        refused = socket.turn("sim-max", SECRET, tool_choice=SECRET)
        assert refused.type == "error"
        kept = socket.turn("sim-max", f"remember:COLOUR={KEPT}", store=True).succeeded()
    unstored = {"model": "sim-max", "input": SECRET, "instructions": SECRET, "store": False}
    assert post(server, unstored) == 200
    assert post(server, unstored | {"tool_choice": SECRET}) == 400
    assert post(server, unstored | {"model": SECRET}) == 400
    with urllib.request.urlopen(f"{server.url.removesuffix('/v1')}/metrics", timeout=60) as page:
        assert SECRET.encode() not in page.read()
    found = holding(server, KEPT)
    assert found
    assert {path.name.removesuffix("-wal") for path in found} == {"turnwire.db"}, kept.id
    assert holding(server, SECRET) == []
