"""A whole server for the length of a benchmark: `turnwire serve` on a free port, then gone."""

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import psutil

STEADY_PORTS, PORT_TRIES = range(20_000, 32_000), 50
START_S, STOP_S, POLL_S = 180.0, 60.0, 0.05

ONLY_SIMULATED = '[[models]]\nname = "simulated"\nengine = "simulated"\n'
"""Settings: no model files are loaded."""


@dataclass(frozen=True)
class Server:
    """One that is ready."""

    url: str
    """With `/v1`."""
    ready_s: float
    process: psutil.Process


@contextmanager
def served(settings: str) -> Iterator[Server]:
    """A server with these settings (TOML), ready; ended with all its processes at the end."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "bench.toml"
        config.write_text(settings)
        log = (Path(folder) / "serve.log").open("w+")
        command = [str(Path(sys.executable).with_name("turnwire")), "serve"]
        command += ["--config", str(config), "--port", str(port), "--data", f"{folder}/data"]
        begin = time.monotonic()
        started = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        process = psutil.Process(started.pid)
        try:
            _wait_ready(started, port)
            yield Server(f"http://127.0.0.1:{port}/v1", time.monotonic() - begin, process)
        except _NotReady as error:
            log.seek(0)
            raise SystemExit(f"{error}: {log.read()[-2000:]}") from None
        finally:
            _end(started, process)
            log.close()


class _NotReady(Exception):
    pass


def _wait_ready(started: "subprocess.Popen[bytes]", port: int) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        if started.poll() is not None:
            raise _NotReady(f"the server ended with {started.returncode}")
        if _ready(port):
            return
        time.sleep(POLL_S)
    raise _NotReady(f"not ready within {START_S:.0f} s")


def _ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _end(started: "subprocess.Popen[bytes]", process: psutil.Process) -> None:
    """As a person would; then whatever is left of the processes it started."""
    children = process.children(recursive=True) if started.poll() is None else []
    started.terminate()
    try:
        started.wait(STOP_S)
    except subprocess.TimeoutExpired:
        started.kill()
        started.wait()
    _, alive = psutil.wait_procs(children, timeout=5)
    for child in alive:
        child.kill()


def free_port() -> int:
    """Below those that the system gives to whoever asks for any, as a starting Ray does."""
    for port in random.Random().sample(STEADY_PORTS, PORT_TRIES):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError(f"none of {PORT_TRIES} ports is free")


def websocket_url(url: str) -> str:
    """Of the Responses endpoint, from a base URL with `/v1`."""
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss"}[parts.scheme]
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}/responses"


def pss_bytes(process: psutil.Process) -> int:
    """Proportional set size: shared pages count in parts, so that a sum is true."""
    for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no Pss of {process.pid}")


def role(process: psutil.Process) -> str:
    """What a process is for, from its command line."""
    words = process.cmdline()
    if not words:
        return process.name()
    if words[0].startswith("ray::"):
        return " ".join(words).split()[0].removeprefix("ray::").split(".")[0]
    for word in words:
        name = os.path.basename(word).removesuffix(".py")
        if name and not name.startswith(("-", "python")) and "=" not in name:
            return name
    return process.name()
