"""The command line: what it offers, and how it refuses."""

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from turnwire.cluster import cli


def test_help_lists_the_commands() -> None:
    result = CliRunner().invoke(cli.app, ["--help"])
    assert result.exit_code == 0
    for command in ("serve", "chat", "models", "settings", "version"):
        assert command in result.stdout


def test_flags_become_settings_only_where_they_are_given() -> None:
    assert cli._flags(None, None, None, None) == {}
    assert cli._flags("h", 0, "auto", "d") == {
        "data": "d",
        "gateway": {"host": "h", "port": 0},
        "ray": {"address": "auto"},
    }


@pytest.mark.parametrize("command", ["serve", "settings"])
def test_a_bad_setting_ends_with_code_2_and_one_line(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()
    monkeypatch.setattr(cli, "err", Console(file=said))
    monkeypatch.setenv("TURNWIRE_GATEWAY__PROT", "1")
    assert CliRunner().invoke(cli.app, [command]).exit_code == 2
    assert said.getvalue().startswith("turnwire: gateway.prot in the environment")
    assert said.getvalue().count("\n") == 1
