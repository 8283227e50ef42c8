"""The safety pool: screens new text in a few threads, so that the channel's loop never waits.

No text, and no error text that could quote it, is kept or logged.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from turnwire.actors.channel import Listener
from turnwire.actors.safety_classifiers import Classifier, Rules, load_classifiers
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, SafetySettings
from turnwire.pipelines.protocol.errors import Overloaded
from turnwire.pipelines.safety import Findings, excerpt

_log = logging.getLogger(__name__)

MAX_THREADS = 2
"""The rules hold the interpreter while they run: more threads only make the loop wait longer."""
QUICK_CHARACTERS = 8192
"""The rules take 2 ms for so many, less than a thread costs everybody: they hold the interpreter
anyway."""


class SafetyActor:
    """One worker of the pool. `start`, then any number of calls on its channel, then `close`."""

    def __init__(
        self,
        id: str,
        node: str,
        settings: SafetySettings,
        channel: ChannelSettings,
        classifiers: list[Classifier] | None = None,
    ) -> None:
        self._settings = settings
        self._classifiers = classifiers
        self._listener = Listener(id, node, {m.Screen: self._screen}, {}, channel)
        self._threads = min(MAX_THREADS, os.cpu_count() or 1, settings.max_ongoing)
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="safety")
        self._taken = 0
        self._quick = False

    async def start(self, folder: Path, tcp_host: str | None = None) -> m.Worker:
        """Load the classifiers, then listen. Raises Internal when one cannot be loaded."""
        if self._classifiers is None:
            names = self._settings.classifiers
            self._classifiers = await asyncio.to_thread(load_classifiers, names)
        self._quick = all(isinstance(classifier, Rules) for classifier in self._classifiers)
        endpoint = await self._listener.start(folder=folder, tcp_host=tcp_host)
        return m.Worker(endpoint, "safety", max_ongoing=self._settings.max_ongoing)

    async def close(self) -> None:
        """Answer what runs, at most for `drain_s`, then stop; a thread ends at its next chunk."""
        await self._listener.close(self._settings.drain_s)
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    @property
    def secret(self) -> bytes:
        return self._listener.secret

    def load(self) -> tuple[int, int]:
        """Screenings running and waiting, now."""
        return min(self._taken, self._threads), max(0, self._taken - self._threads)

    def _screen(self, command: m.Screen, _caller: object) -> m.Screened | Awaitable[m.Screened]:
        if not any(command.texts):
            return Findings().verdict()
        if self._quick and not self._taken and sum(map(len, command.texts)) <= QUICK_CHARACTERS:
            return self._look(command, Event(), time.monotonic() + self._settings.deadline_s)
        return self._screen_in_thread(command)

    async def _screen_in_thread(self, command: m.Screen) -> m.Screened:
        if self._taken >= self._threads + self._settings.max_queued:
            raise Overloaded(f"{self._taken} screenings wait")
        stop = Event()
        until_s = time.monotonic() + self._settings.deadline_s
        self._taken += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self._look, command, stop, until_s)
        finally:
            self._taken -= 1
            stop.set()

    def _look(self, command: m.Screen, stop: Event, until_s: float) -> m.Screened:
        """In a thread. A text too long, too late or unwanted leaves the verdict incomplete."""
        text = excerpt(command.texts, sys.maxsize if command.whole else self._settings.max_bytes)
        findings = Findings(complete=text.complete)
        for chunk in text.chunks:
            if stop.is_set() or time.monotonic() > until_s:
                findings.complete = False
                break
            self._look_at(chunk, findings, command.response_id)
        return findings.verdict()

    def _look_at(self, chunk: str, findings: Findings, response_id: str) -> None:
        for classifier in self._classifiers or ():
            try:
                classifier.look(chunk, findings)
            except Exception as error:
                # One broken classifier must not hide what the others find.
                findings.complete = False
                names = type(classifier).__name__, type(error).__name__
                _log.error("safety.classifier_failed %s: %s %s", response_id, *names)
