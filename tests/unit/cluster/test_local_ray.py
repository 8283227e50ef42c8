"""The short-lived folder of a server: private, short, and swept up after a killed one."""

import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from turnwire.cluster import local_ray
from turnwire.cluster.settings import SettingsError


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path_factory.mktemp("r")
    monkeypatch.setattr(local_ray, "MAX_FOLDER_CHARACTERS", len(str(root)) + 32)
    return root


def test_the_folder_is_private_and_short_and_removed(root: Path) -> None:
    folder = local_ray.make_folder(str(root))
    assert folder.path.parent == root
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    (folder.path / "session").mkdir()
    folder.remove()
    assert list(root.iterdir()) == []


def test_a_folder_whose_owner_lives_is_left_alone(root: Path) -> None:
    first = local_ray.make_folder(str(root))
    second = local_ray.make_folder(str(root))
    assert first.path.exists()
    first.remove()
    second.remove()


KILLED_OWNER = """
import os, signal, sys
from turnwire.cluster import local_ray

local_ray.MAX_FOLDER_CHARACTERS = 200
folder = local_ray.make_folder(sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_of_a_killed_server_is_swept_up(root: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED_OWNER, str(root)])
    assert killed.returncode == -signal.SIGKILL
    (left,) = root.iterdir()
    folder = local_ray.make_folder(str(root))
    assert not left.exists()
    folder.remove()


def test_a_folder_too_long_for_sockets_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_ray, "MAX_FOLDER_CHARACTERS", 10)
    with pytest.raises(SettingsError, match="too long for the sockets"):
        local_ray.make_folder(str(root))
