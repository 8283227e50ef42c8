"""What a person sees while a server comes up, and when it is ready."""

import io

from rich.console import Console

from turnwire.cluster.progress import Progress, ready_block
from turnwire.cluster.server import Ready

READY = Ready("http://127.0.0.1:8080/v1", ("a", "b"), took_s=12.34, needs_key=False)


def consoles() -> tuple[Console, Console]:
    return Console(file=io.StringIO()), Console(file=io.StringIO())


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_each_stage_is_one_line() -> None:
    err, out = consoles()
    with Progress(err, out) as progress:
        for stage in ("Ray", "Ray", "Serve"):
            progress.stage(stage)
    assert [line.split("  ")[-1] for line in said(err).splitlines()] == ["Ray", "Serve"]
    assert said(out) == ""


def test_a_long_stage_is_not_wrapped() -> None:
    err, out = consoles()
    with Progress(err, out) as progress:
        progress.stage(", ".join(f"model-{number}" for number in range(30)))
    assert said(err).count("\n") == 1


def test_on_a_terminal_the_spinner_is_gone_before_the_ready_block() -> None:
    err = Console(file=io.StringIO(), force_terminal=True)
    _, out = consoles()
    with Progress(err, out) as progress:
        progress.stage("Ray")
        progress.ready(READY)
        assert "turnwire is ready after 12.3 s" in said(out)
        assert said(err).endswith("\x1b[?25h\r\x1b[1A\x1b[2K")


def test_the_ready_block_can_be_copied_and_says_when_a_key_is_needed() -> None:
    assert 'OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")' in ready_block(READY)
    locked = Ready(READY.url, READY.models, READY.took_s, needs_key=True)
    assert 'api_key="KEY"' in ready_block(locked)
