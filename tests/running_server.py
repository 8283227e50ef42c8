"""A whole server in processes of its own, for end-to-end tests: start it, look into it, end it."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from served import free_port

from turnwire.cluster import descendants

START_S = 240.0
END_S = 240.0
WAIT_S = 60.0
POLL_S = 0.05
READY = re.compile(r"URL +(http://\S+)")
SIMULATED = '[{"name": "simulated", "engine": "simulated", "default_output_tokens": 256}]'
DEFAULT_MODELS = (
    '[{"name": "smollm2", "engine": "llama", "prompt_format": "chatml"}, ' + SIMULATED[1:]
)


@dataclass
class RunningServer:
    """`turnwire serve` as a person starts it. Settings are given as its environment variables.

    `with RunningServer({"TURNWIRE_SAFETY__POLICY": "block"}) as server:` ends it like Ctrl-C and
    checks that nothing of it is left.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    url: str = ""
    output: list[str] = field(default_factory=list)
    root: Path = field(init=False)
    """Everything of this server lies in here: data, logs, Ray's folder."""

    def __post_init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="e"))
        self._process: subprocess.Popen[str] | None = None
        self._seen: set[int] = set()

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def log_folder(self) -> Path:
        return self.root / "data" / "log"

    @property
    def ray_folder(self) -> Path:
        """Of the private Ray, as long as the server runs."""
        (found,) = (self.root / "r").glob("tw-*")
        return found

    def ledger(self) -> dict[str, dict[str, Any]]:
        """The usage records by response id, each id once."""
        path = self.root / "data" / "turnwire.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            rows = [dict(row) for row in database.execute("SELECT * FROM usage_records")]
        found = {row["response_id"]: row for row in rows}
        assert len(found) == len(rows), "a turn is in the ledger twice"
        return found

    def ray_environment(self) -> dict[str, str]:
        """With this another process may join the server's Ray at `ray_address`."""
        token = self.ray_folder / "token"
        return os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}

    @property
    def ray_address(self) -> str:
        (raylet,) = self.pids("/raylet/raylet ")
        found = re.search(r"--gcs-address=(\S+)", command_of(raylet))
        assert found is not None
        return found[1]

    def spawn(self) -> None:
        """Begin to start; `wait_until_ready` or `wait_for_end` follow."""
        (self.root / "r").mkdir(exist_ok=True)
        ours = {
            "TURNWIRE_MODELS": SIMULATED,
            "TURNWIRE_GATEWAY__PORT": str(free_port()),
            "TURNWIRE_DATA": str(self.root / "data"),
            "TURNWIRE_RAY__FOLDER": str(self.root / "r"),
            "TURNWIRE_RAY__START_S": str(int(START_S)),
        }
        self._process = subprocess.Popen(
            [Path(sys.executable).parent / "turnwire", "serve", *self.arguments],
            env=os.environ | ours | dict(self.settings),
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # As a terminal does it, so that a test can send Ctrl-C to all of it.
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            if found := READY.search(line):
                self.url = found[1]
            if line.startswith("Ctrl-C"):
                return
        raise AssertionError(f"the server ended: {''.join(self.output)}")

    def wait_for_end(self) -> int:
        """The exit code; what it said is then in `output`."""
        text, _ = self.process.communicate(timeout=END_S)
        self.output.append(text)
        return self.process.returncode

    def pids(self, name: str = "") -> list[int]:
        """Processes of the server whose title contains `name`, e.g. `model-simulated`, `raylet`,
        `PlacedConnectionActor`."""
        found = descendants.below(self.process.pid)
        self._seen |= set(found)
        return [pid for pid in found if name in command_of(pid)]

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """A signal to the process, or with SIGINT to all of its group, as Ctrl-C does."""
        self.pids()
        if number == signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def left(self) -> list[str]:
        """What is still there of a server that has ended."""
        living = [f"{pid} {command_of(pid)}" for pid in sorted(self._seen) if command_of(pid)]
        return living + [str(path) for path in (self.root / "r").rglob("*")]

    def __enter__(self) -> Self:
        self.spawn()
        try:
            self.wait_until_ready()
            self.pids()
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.process.poll() is None:
                self.interrupt()
                assert self.wait_for_end() == 0, self.output
            assert self.left() == []
        finally:
            self.discard()

    def discard(self) -> None:
        """End what is left of it, however."""
        if self.process.poll() is None:
            self.pids()
            self.process.kill()
            self.process.wait()
        for pid in self._seen:
            if command_of(pid):
                os.kill(pid, signal.SIGKILL)
        if self.process.stdout is not None:
            self.process.stdout.close()
        shutil.rmtree(self.root, ignore_errors=True)


def kill(server: RunningServer, name: str) -> list[int]:
    """All processes of that name, at once."""
    pids = server.pids(name)
    assert pids, f"no {name}"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return pids


def wait_until(condition: Callable[[], bool]) -> None:
    """For what no event tells of: processes that come and go, rows that are written."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(POLL_S)


def command_of(pid: int) -> str:
    """The title of a living process, else empty."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""
