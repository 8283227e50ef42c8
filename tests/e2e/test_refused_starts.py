"""What stops `turnwire serve` before it serves: one line that says what to do, and nothing left."""

import socket

import pytest
from running_server import RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def refused(settings: dict[str, str], *arguments: str) -> tuple[int, str]:
    server = RunningServer(settings, arguments)
    try:
        server.spawn()
        code = server.wait_for_end()
        assert server.left() == []
        return code, "".join(server.output)
    finally:
        server.discard()


def test_a_port_in_use_is_said_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = refused({}, "--port", str(port))
    assert (code, said) == (
        2,
        f"turnwire: cannot listen on 127.0.0.1:{port}: Address already in use; choose another "
        "with --port\n",
    )


@pytest.mark.parametrize(
    ("settings", "arguments", "said"),
    [
        ({"TURNWIRE_GATEWAY__PROT": "1"}, (), "did you mean 'port'?"),
        ({}, ("--host", "0.0.0.0"), "no key is set"),
        ({}, ("--config", "nowhere.toml"), "cannot read nowhere.toml: No such file or directory"),
        (
            {"TURNWIRE_MODELS": '[{"name":"m","engine":"llama","llama":{"path":"/no.gguf"}}]'},
            (),
            "model m: cannot read no.gguf",
        ),
        ({"TURNWIRE_MIN_FREE_BYTES": str(2**60)}, (), "MiB are free"),
    ],
    ids=["misspelt", "no key", "no file", "no model", "no memory"],
)
def test_a_mistake_in_the_settings_is_one_line(
    settings: dict[str, str], arguments: tuple[str, ...], said: str
) -> None:
    code, output = refused(settings, *arguments)
    assert code == 2
    assert output.startswith("turnwire: ")
    assert said in output
    assert output.count("\n") == 1


def test_a_model_that_cannot_start_ends_the_start_with_its_reason() -> None:
    server = RunningServer({"TURNWIRE_MODELS": '[{"name": "sim-0", "engine": "simulated"}]'})
    try:
        server.spawn()
        code = server.wait_for_end()
        last = "".join(server.output).splitlines()[-1]
        assert code == 1
        assert last.startswith("turnwire: model-sim-0 cannot start: no simulated model 'sim-0'")
        assert server.left() == []
        assert (server.log_folder / "last-failure").is_dir()
    finally:
        server.discard()
