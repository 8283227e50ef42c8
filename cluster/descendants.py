"""The processes below this one, so that none of them outlives a server. Linux only, by /proc."""

import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Processes whose parent dies become children of this one, where `end_all` still finds them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """The kernel kills this process when its parent dies: a worker, when its raylet does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:  # the thread has just ended
            continue
    return found


def below(pid: int) -> list[int]:
    """All descendants, parents before their children."""
    found = children(pid)
    for child in found:
        found += below(child)
    return found


def named(pid: int, name: str) -> int | None:
    """The child whose executable is called `name`."""
    for child in children(pid):
        try:
            if Path(f"/proc/{child}/comm").read_text().strip() == name:
                return child
        except OSError:
            continue
    return None


def end_all(grace_s: float) -> list[int]:
    """Wait for all descendants to end, kill those that have not after `grace_s`, reap them.

    Returns the processes that had to be killed.
    """
    deadline = time.monotonic() + grace_s
    while _reap() and time.monotonic() < deadline:
        time.sleep(0.02)
    killed = below(os.getpid())
    for pid in killed:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    while _reap():
        time.sleep(0.01)
    return killed


def _reap() -> bool:
    """Collect ended children; is any child left?"""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
