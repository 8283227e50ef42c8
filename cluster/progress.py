"""What a person sees of a server: the stage it is at, then one block when it is ready."""

import time
from typing import Self

from rich.console import Console
from rich.status import Status

from turnwire.cluster.server import Ready, Reporter


class Progress:
    """A spinner on a terminal, one line a stage elsewhere. Everything but the ready block goes to
    standard error.
    """

    def __init__(self, err: Console, out: Console) -> None:
        self._err = err
        self._out = out
        self._status: Status | None = None
        self._stage = ""
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def reporter(self) -> Reporter:
        return Reporter(self.stage, self.ready)

    def stage(self, text: str) -> None:
        if text == self._stage:
            return
        self._stage = text
        if not self._err.is_terminal:
            took_s = time.monotonic() - self._started
            self._err.print(f"{took_s:5.1f} s  {text}", markup=False, soft_wrap=True)
        elif self._status is None:
            self._status = self._err.status(text)
            self._status.start()
        else:
            self._status.update(text)

    def ready(self, ready: Ready) -> None:
        self._stop()
        self._out.print(ready_block(ready), markup=False, soft_wrap=True)
        self._stage = ""

    def print(self, text: str, *, markup: bool, soft_wrap: bool) -> None:
        self._stop()
        self._err.print(text, markup=markup, soft_wrap=soft_wrap)

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def ready_block(ready: Ready) -> str:
    key = "KEY" if ready.needs_key else "none"
    first = ready.models[0]
    return f"""
turnwire is ready after {ready.took_s:.1f} s
  URL     {ready.url}
  models  {", ".join(ready.models)}
  try     turnwire chat --url {ready.url} --model {first}
  Python  OpenAI(base_url="{ready.url}", api_key="{key}").responses.connect()
Ctrl-C ends it.
"""
