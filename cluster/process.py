"""What every process of a server does first: logs to a file, and an end with its raylet."""

import gc
import logging
import os
import traceback
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType

import ray

from turnwire.cluster import descendants
from turnwire.cluster.place import Place
from turnwire.pipelines.config import MIB

_LINES_A_LOOK = 64
_NICE = 5
"""A third of the weight of the others: late under load, never starved."""

ErrorInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)
LOG_FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s %(message)s"


class LogFile(RotatingFileHandler):
    """Looks at its size with every 64th line only: looking costs more than writing a line."""

    _lines = 0

    def shouldRollover(self, record: logging.LogRecord) -> bool:
        self._lines += 1
        if self._lines % _LINES_A_LOOK:
            return False
        return bool(super().shouldRollover(record))


def give_way() -> None:
    """To the processes that a turn waits for, where there are not enough processors for all.

    Before any thread is started: it holds for the calling thread and those it starts.
    """
    os.nice(_NICE)


def loaded() -> None:
    """All that is in memory by now stays; a collector that looks at it again makes turns wait."""
    gc.collect()
    gc.freeze()


class WithoutTexts(logging.Formatter):
    """Tracebacks without what the errors say: that may quote what a user wrote."""

    def formatException(self, ei: ErrorInfo) -> str:
        error, lines = ei[1], []
        while error is not None:
            lines += [f"{type(error).__name__}\n", *traceback.format_tb(error.__traceback__)]
            error = error.__cause__ or error.__context__
        return "".join(lines).rstrip()


def tcp_host(place: Place) -> str | None:
    """Where to listen for other nodes, if there may be any."""
    if not place.several_nodes:
        return None
    host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return host


def prepare(place: Place, log_name: str) -> str:
    """Once a process, before anything else. Returns the id of its node."""
    if not place.several_nodes:
        descendants.die_with_parent()
    folder = Path(place.log_folder)
    folder.mkdir(parents=True, exist_ok=True)
    handler = LogFile(folder / f"{log_name}.log", maxBytes=8 * MIB, backupCount=1, delay=True)
    handler.setFormatter(WithoutTexts(LOG_FORMAT))
    ours = logging.getLogger("turnwire")
    ours.addHandler(handler)
    ours.setLevel(place.log_level.upper())
    node: str = ray.get_runtime_context().get_node_id()
    return node
