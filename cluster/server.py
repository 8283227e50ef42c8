"""The life of `turnwire serve`: bring everything up, say so once, drain at the end, leave nothing.

Ray is started and stopped from the main thread outside the event loop, as it wants it.
"""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING

from turnwire.cluster import descendants, local_ray, preflight, sealing_keys
from turnwire.cluster.blocking import in_thread
from turnwire.cluster.place import Place
from turnwire.cluster.settings import Settings

if TYPE_CHECKING:
    from turnwire.cluster.app import Applications

POLL_S = 0.25
RAY_NEWS_S = 0.5
KEYS_S = 30.0
RAY_DIED = "Ray has died, and every turn with it: start again"
FORCED_EXIT = 130


class ServerFailed(Exception):
    """The server cannot start or go on; the message is one line for a person."""


@dataclass(frozen=True)
class Ready:
    """What a person wants to know when all is up."""

    url: str
    models: tuple[str, ...]
    took_s: float
    needs_key: bool


@dataclass(frozen=True)
class Reporter:
    """Who is told how far the server has come."""

    stage: Callable[[str], None]
    ready: Callable[[Ready], None]


def run(settings: Settings, reporter: Reporter, log_level: str) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code; raises SettingsError, ServerFailed."""
    started = time.monotonic()
    preflight.check(settings)
    log_folder = Path(settings.data) / "log"
    log_folder.mkdir(parents=True, exist_ok=True)
    keys = sealing_keys.read(settings)
    private = settings.ray.address is None
    folder = local_ray.make_folder(settings.ray.folder, private=private)
    place = Place(
        folder=str(folder.sockets),
        log_folder=str(log_folder),
        log_level=log_level,
        several_nodes=not private,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _quiet(log_folder / "serve.log"):
            return _run_on_ray(settings, place, folder, keys, reporter, started)
    except (ServerFailed, local_ray.RayUnavailable) as error:
        raise ServerFailed(f"{error} (logs: {log_folder})") from None
    except KeyboardInterrupt:
        return FORCED_EXIT
    finally:
        folder.remove()


@contextmanager
def _quiet(file: Path) -> Iterator[None]:
    """What Ray has to say in this process goes into a file; our own consoles hold the terminal."""
    with file.open("w") as log, redirect_stdout(log), redirect_stderr(log):
        yield


def _run_on_ray(
    settings: Settings,
    place: Place,
    folder: local_ray.Folder,
    keys: bytes,
    reporter: Reporter,
    started: float,
) -> int:
    reporter.stage("Ray" if settings.ray.address is None else f"Ray at {settings.ray.address}")
    with local_ray.connected(settings.ray, folder):
        from turnwire.cluster.app import Applications

        life = _Life(settings, Applications(settings, place), keys, reporter, started)
        try:
            return asyncio.run(life.run())
        except ServerFailed:
            _keep_logs(folder, Path(place.log_folder))
            raise


def _keep_logs(folder: local_ray.Folder, log_folder: Path) -> None:
    """What Ray and its workers wrote, for whoever looks into a failure; only the last one's."""
    kept = log_folder / "last-failure"
    shutil.rmtree(kept, ignore_errors=True)
    if folder.session_logs.is_dir():
        shutil.copytree(folder.session_logs, kept, ignore_dangling_symlinks=True)


class _Life:
    """One server from deployed to drained."""

    def __init__(
        self,
        settings: Settings,
        applications: "Applications",
        keys: bytes,
        reporter: Reporter,
        started: float,
    ) -> None:
        """`keys`: what seals are made with."""
        self._settings = settings
        self._applications = applications
        self._keys = keys
        self._reporter = reporter
        self._started = started
        self._ray_lost = False
        self._phase: asyncio.Task[None] | None = None

    async def run(self) -> int:
        with self._signals_and_ray_watched():
            try:
                await self._until_ended(self._serve())
            except ServerFailed:
                # A private Ray ends with all of it; in a cluster others live on.
                if self._settings.ray.address is not None:
                    await self._until_ended(self._drain())
                raise
            drained = await self._until_ended(self._drain())
        return 0 if drained else FORCED_EXIT

    async def _until_ended(self, work: Coroutine[None, None, None]) -> bool:
        """Do the work. False: a signal came first. Raises ServerFailed when Ray has died."""
        if self._ray_lost:
            work.close()
            return False
        self._phase = asyncio.create_task(work)
        try:
            await self._phase
            return True
        except asyncio.CancelledError:
            if self._ray_lost:
                raise ServerFailed(RAY_DIED) from None
            return False
        except Exception:
            # It may reach us a moment before the news that Ray's processes have ended.
            await asyncio.sleep(RAY_NEWS_S)
            if self._ray_lost:
                raise ServerFailed(RAY_DIED) from None
            raise

    async def _serve(self) -> None:
        """Bring everything up, say so, then stay."""
        try:
            async with asyncio.timeout(self._settings.ray.start_s):
                url = await self._bring_up()
        except TimeoutError:
            raise ServerFailed(
                f"not ready after {self._settings.ray.start_s} s (ray.start_s)"
            ) from None
        models = tuple(model.name for model in self._settings.models)
        gateway = self._settings.gateway
        needs_key = gateway.api_key is not None or gateway.key_file is not None
        took_s = time.monotonic() - self._started
        self._reporter.ready(Ready(url, models, took_s, needs_key))
        while True:
            # A routing that was replaced has to be told again.
            await asyncio.sleep(KEYS_S)
            await in_thread(partial(self._applications.give_keys, self._keys))

    async def _bring_up(self) -> str:
        self._reporter.stage("Serve")
        await in_thread(self._applications.deploy)
        told = False
        while waiting := await in_thread(self._applications.waiting):
            # The gateway starts when it has them.
            told = told or await in_thread(partial(self._applications.give_keys, self._keys))
            self._reporter.stage(", ".join(waiting))
            await asyncio.sleep(POLL_S)
        host, port = await in_thread(self._applications.address)
        while not await in_thread(partial(answers_ready, host, port)):
            self._reporter.stage("first turn")
            await asyncio.sleep(POLL_S)
        return f"http://{host}:{port}/v1"

    async def _drain(self) -> None:
        """The gateway first: it lets its turns end, which need all the others."""
        self._reporter.stage("turns in flight (once more to force)")
        await in_thread(self._applications.delete_gateway)
        self._reporter.stage("the pools")
        await in_thread(self._applications.delete)

    @contextmanager
    def _signals_and_ray_watched(self) -> Iterator[None]:
        """A signal ends the phase at hand; so does the end of a process of our Ray, at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end_phase)
        watched = [
            os.pidfd_open(pid)
            for name in ("raylet", "gcs_server")
            if (pid := descendants.named(os.getpid(), name)) is not None
        ]
        for process in watched:
            loop.add_reader(process, self._lose_ray)
        try:
            yield
        finally:
            for process in watched:
                loop.remove_reader(process)
                os.close(process)

    def _end_phase(self) -> None:
        if self._phase is not None:
            self._phase.cancel()

    def _lose_ray(self) -> None:
        self._ray_lost = True
        self._end_phase()


def answers_ready(host: str, port: int) -> bool:
    """Does the gateway say that a turn can be served?"""
    connection = HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/readyz", headers={"Host": "localhost"})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
