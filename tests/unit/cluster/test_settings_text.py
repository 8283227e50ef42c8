"""What `turnwire settings` shows can be used as a settings file, and tells no secret."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnwire.cluster.cli import app
from turnwire.cluster.settings import Settings, load
from turnwire.cluster.settings_text import settings_text

NOTHING = {"TURNWIRE_DATA": "/srv/turnwire"}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TURNWIRE_GATEWAY__PORT": "9000", "TURNWIRE_SAFETY__CLASSIFIERS": "[]"},
        {"TURNWIRE_MODELS": '[{"name": "a\\"\u007f\u00e4\U0001f600", "engine": "simulated"}]'},
    ],
)
def test_the_text_gives_the_settings_again(environ: dict[str, str]) -> None:
    settings = load(NOTHING | environ)
    assert Settings.model_validate(tomllib.loads(settings_text(settings))) == settings


def test_no_secret_is_shown() -> None:
    settings = load(
        NOTHING
        | {
            "TURNWIRE_GATEWAY__API_KEY": "sesame",
            "TURNWIRE_STORAGE__URL": "postgresql://me:hush@db/turnwire",
            "TURNWIRE_BILLING__URL": "postgresql://db/turnwire",
        }
    )
    text = settings_text(settings)
    assert "sesame" not in text
    assert "hush" not in text
    assert "# api_key: set, and not shown" in text
    assert "# url: set, and not shown for its password" in text
    assert 'url = "postgresql://db/turnwire"' in text


def test_every_setting_is_under_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "turnwire.toml"
    file.write_text("[gateway]\nport = 9000\n")
    shown = CliRunner().invoke(app, ["settings", "--config", str(file)])
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert "port = 9000" in lines
    assert lines[lines.index("max_at_door = 64") - 1].startswith("# Connections that have not")
