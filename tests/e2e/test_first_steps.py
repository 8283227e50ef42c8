"""What the README promises a newcomer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from running_server import RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
COMMAND = Path(sys.executable).parent / "turnwire"
ROOT = Path(__file__).parents[2]


def run(*arguments: str | Path, words: str = "") -> str:
    done = subprocess.run(arguments, input=words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_ready_block_names_url_models_and_how_to_begin(server: RunningServer) -> None:
    said = "".join(server.output)
    assert server.url.startswith("http://127.0.0.1:")
    assert re.search(r"turnwire is ready after \d+\.\d s", said)
    assert f"turnwire chat --url {server.url} --model smollm2" in said
    assert f'OpenAI(base_url="{server.url}", api_key="none")' in said


def test_models_lists_what_is_served(server: RunningServer) -> None:
    assert "sim-1000" in run(COMMAND, "models", "--url", server.url).split()


def test_chat_keeps_its_thread_over_one_socket(server: RunningServer) -> None:
    words = "remember:COLOUR=teal\nrecall:COLOUR\n\n"
    said = run(COMMAND, "chat", "--url", server.url, "--model", "sim-max", words=words)
    assert "teal" in said


def test_chat_says_when_there_is_no_server() -> None:
    done = subprocess.run(
        [COMMAND, "chat", "--url", "http://127.0.0.1:9/v1"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("turnwire: no server at http://127.0.0.1:9/v1")


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_an_example_runs_to_its_end(server: RunningServer, example: Path) -> None:
    assert run(sys.executable, example, "--url", server.url, "--model", "sim-max").strip()
