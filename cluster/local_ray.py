"""The Ray a server runs on: a private one in a folder of its own, or a cluster that it joins."""

import fcntl
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from turnwire.cluster import descendants
from turnwire.cluster.settings import RaySettings, SettingsError

ENVIRONMENT = {
    # Ray runs workers at nice 15, where background work starves turns.
    "RAY_worker_niceness": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    # User code of a replica then runs on the actor's own loop, which is uvloop, without a hop.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    # llama.cpp's threads sleep instead of spinning on a core that others need.
    "OMP_WAIT_POLICY": "passive",
}
"""Set before Ray is imported; what the user has set is kept."""

MAX_FOLDER_CHARACTERS = 36
"""Ray's own sockets lie up to 70 characters deeper; a socket path may have 107."""


_NO_AGENT = {
    "--runtime_env_agent_command": "--runtime_env_agent_command=cat",
    "--runtime_env_agent_port": "--runtime_env_agent_port=1",
}
"""The raylet wants a process, which ends with its input, and a port to ask. With one environment
for all it never asks."""


class RayUnavailable(Exception):
    """There is no Ray to run on; the message is one line for a person."""


class Folder:
    """Short-lived files of one server: Ray's session, sockets. Locked while its owner lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700)
        self._lock = (path / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @property
    def ray(self) -> Path:
        """Ray opens its folder to all users, so it lies within one that is closed to them."""
        return self.path / "r"

    @property
    def sockets(self) -> Path:
        return self.path / "s"

    @property
    def session_logs(self) -> Path:
        return self.ray / "session_latest" / "logs"

    def remove(self) -> None:
        self._lock.close()
        shutil.rmtree(self.path, ignore_errors=True)


def make_folder(parent: str, *, private: bool = True) -> Folder:
    """A new folder. `private`: of a server with its own Ray, and those that were killed are
    removed first; what runs on a joined cluster outlives its server, and so does its folder.
    """
    root = Path(parent or tempfile.gettempdir()).resolve()
    prefix = f"tw-{os.getuid()}-" if private else f"twj-{os.getuid()}-"
    if len(f"{root}/{prefix}") + 8 > MAX_FOLDER_CHARACTERS:
        if parent:
            raise SettingsError(
                f"ray.folder {root} is too long for the sockets in it: "
                f"{MAX_FOLDER_CHARACTERS - len(prefix) - 9} characters at most"
            )
        root = Path("/tmp")
    for left in root.glob(f"{prefix}*") if private else ():
        _remove_if_abandoned(left)
    return Folder(root / f"{prefix}{secrets.token_hex(4)}")


def _remove_if_abandoned(path: Path) -> None:
    try:
        with (path / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except OSError:  # its owner lives, or has not come as far as the lock
        return


@contextmanager
def connected(settings: RaySettings, folder: Folder) -> Iterator[None]:
    """Inside the block Ray is there. At its end a private Ray is gone with all its processes."""
    assert "ray" not in sys.modules, "Ray reads the environment when it is imported"
    if settings.address is None:
        descendants.adopt_orphans()
        _guard_with_token(folder)
    os.environ.update({key: os.environ.get(key, value) for key, value in ENVIRONMENT.items()})
    import ray

    # Half of a start is waiting for Ray's processes: time to import the rest.
    Thread(target=import_module, args=("turnwire.cluster.app",), daemon=True).start()
    try:
        _init(settings, folder)
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # from here on it only takes seconds
        with suppress(Exception):  # half-started Ray: what counts is that its processes end below
            ray.shutdown()
        if settings.address is None:
            descendants.end_all(grace_s=5.0)


def _init(settings: RaySettings, folder: Folder) -> None:
    import ray

    try:
        with _with_few_processes():
            ray.init(**_init_arguments(settings, folder))
    except Exception as error:  # of many kinds, and all mean the same to us
        reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        what = f"joined at {settings.address}" if settings.address else "started"
        raise RayUnavailable(f"Ray cannot be {what}: {reason}") from error


@contextmanager
def _with_few_processes() -> Iterator[None]:
    """Four Python processes less for a private Ray, of which no option of `ray.init` rids it: two
    monitors (one would scale a cluster that has one node, the other would print workers' logs,
    which go to files), the dashboard, and the agent that makes environments for workers, where all
    have ours. Starting those waits for the dashboard, and the raylet for its agents.
    """
    from ray._private import node, parameter, services

    class WithoutMonitors(parameter.RayParams):
        # Any: handed on as it came.
        def __init__(self, **params: Any) -> None:  # noqa: ANN401
            super().__init__(**params | {"no_monitor": True, "include_log_monitor": False})

    def no_dashboard(*_: object, **__: object) -> None:
        return

    start_process = services.start_ray_process

    # Any: handed on as it came.
    def without_agent(command: list[str], *rest: Any, **named: Any) -> Any:  # noqa: ANN401
        return start_process([_NO_AGENT.get(of(part), part) for part in command], *rest, **named)

    def of(part: str) -> str:
        return part.partition("=")[0]

    with (
        _replaced(parameter, "RayParams", WithoutMonitors),
        _replaced(node.Node, "start_api_server", no_dashboard),
        _replaced(services, "start_ray_process", without_agent),
    ):
        yield


@contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Inside the block `owner` has another `name`."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _guard_with_token(folder: Folder) -> None:
    """Only who can read the folder can talk to this Ray, and nothing is left in the home folder."""
    if "RAY_AUTH_MODE" in os.environ:
        return
    token = folder.path / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def _init_arguments(settings: RaySettings, folder: Folder) -> dict[str, Any]:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if settings.address is not None:
        workers = {"env_vars": ENVIRONMENT}
        return {
            **quiet,
            "address": settings.address,
            "namespace": "turnwire",
            "runtime_env": workers,
        }
    return {
        **quiet,
        # Never `None`: Ray would try to join an older cluster whose address file is left.
        "address": "local",
        "namespace": "turnwire",
        "include_dashboard": False,
        "num_cpus": settings.num_cpus,
        "object_store_memory": settings.object_store_bytes,
        "_temp_dir": str(folder.ray),
    }
