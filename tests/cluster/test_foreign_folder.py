"""A Ray worker started from a user's folder that has packages of our folders' names."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = """
import json

from turnwire.cluster import local_ray
from turnwire.cluster.settings import RaySettings


def seen():
    import pipelines
    import turnwire.cluster
    import turnwire.pipelines.messages

    return pipelines.OWNER, turnwire.pipelines.messages.__name__, turnwire.cluster.__file__


folder = local_ray.make_folder("")
with local_ray.connected(RaySettings(num_cpus=1), folder):
    import ray

    found = ray.get(ray.remote(num_cpus=0)(seen).remote())
folder.remove()
print(json.dumps([*found, str(folder.path)]))
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_worker_in_a_folder_with_its_own_pipelines_imports_ours(tmp_path: Path) -> None:
    for package in ("pipelines", "cluster", "actors", "gateway"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("OWNER = 'the user'\n")
    (tmp_path / "turnwire").mkdir()
    (tmp_path / "driver.py").write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, "driver.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    owner, ours, cluster_file, folder = json.loads(done.stdout.splitlines()[-1])
    assert (owner, ours) == ("the user", "turnwire.pipelines.messages")
    assert not cluster_file.startswith(str(tmp_path))
    assert not Path(folder).exists()
