"""The keys of a deployment: made once, for nobody else to read, and named by a setting."""

import stat
from pathlib import Path

import pytest

from turnwire.cluster import sealing_keys
from turnwire.cluster.settings import Settings, SettingsError, load
from turnwire.pipelines.sealing import KEY_BYTES


def test_keys_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path / "data"))
    made = sealing_keys.read(settings)
    assert len(made) == KEY_BYTES
    assert sealing_keys.read(settings) == made
    (file,) = (tmp_path / "data").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_two_servers_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    file = tmp_path / sealing_keys.FILE
    file.write_text("ab" * KEY_BYTES)
    sealing_keys._make(file)
    assert sealing_keys.read(Settings(data=str(tmp_path))) == b"\xab" * KEY_BYTES


def test_a_named_file_is_used_and_never_made(tmp_path: Path) -> None:
    environ = {"TURNWIRE_SEALING_KEY_FILE": str(tmp_path / "mine"), "TURNWIRE_DATA": str(tmp_path)}
    settings = load(environ)
    with pytest.raises(SettingsError, match=r"sealing_key_file .*mine cannot be read"):
        sealing_keys.read(settings)
    (tmp_path / "mine").write_text("cd" * KEY_BYTES)
    assert sealing_keys.read(settings) == b"\xcd" * KEY_BYTES
    (tmp_path / "mine").write_text("secret")
    with pytest.raises(SettingsError, match="line 1 is not a key") as found:
        sealing_keys.read(settings)
    assert "secret" not in str(found.value)
