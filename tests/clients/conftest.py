"""Servers for real clients, and where `make test-clients` has put those clients."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_servers import MODELS
from codex_client import Codex
from running_server import RunningServer

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / "build" / "clients"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.clients)


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """One server for all tests that leave it as it is."""
    with RunningServer({"TURNWIRE_MODELS": MODELS}) as running:
        yield running


@pytest.fixture(scope="session")
def npm() -> Path:
    """Where node finds the packages; the scripts stand beside them."""
    folder = INSTALLED / "npm"
    assert (folder / "node_modules").is_dir(), "install the clients first: make test-clients"
    for script in (Path(__file__).parent / "npm").glob("*.mjs"):
        shutil.copy(script, folder)
    return folder


@pytest.fixture(scope="session")
def agents_python() -> Path:
    """The interpreter of the Agents SDK's own environment: it wants other websockets than we."""
    found = INSTALLED / "agents" / "bin" / "python"
    assert found.exists(), "install the clients first: make test-clients"
    return found


@pytest.fixture
def codex(server: RunningServer, npm: Path, tmp_path: Path) -> Codex:
    """Codex as a user of `examples/codex` has it, in a folder with one file."""
    return Codex.of(npm, server.url, tmp_path)
