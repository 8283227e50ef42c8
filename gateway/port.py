"""The listening socket: ours alone, or shared by the gateways of one server on one node.

Sharing (SO_REUSEPORT) would let a second server of the same user listen unnoticed and take half of
the clients. So gateways that share hold a lock file between them that names their server.
"""

import errno
import fcntl
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

BACKLOG = 2048
_MAX_NAME_BYTES = 4096


class Port:
    """A bound, listening socket. `close` also lets the next server have the port."""

    def __init__(self, listener: socket.socket, lock: int | None = None) -> None:
        self.listener = listener
        self._lock = lock

    def close(self) -> None:
        self.listener.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def bind(host: str, port: int, sharers: str = "") -> Port:
    """`sharers`: the name of those that may listen there together; empty: nobody else may.

    Raises OSError with a text for a person.
    """
    try:
        if not sharers:
            return Port(_listener(host, port))
        lock = _lock(host, port, sharers)
        try:
            return Port(_listener(host, port, shared=True), lock)
        except BaseException:
            os.close(lock)
            raise
    except OSError as error:
        reason = error.strerror or "unusable"
        if error.errno == errno.EADDRINUSE:
            reason = "already taken by another server; choose another port"
        raise OSError(error.errno, f"cannot listen on {host} port {port}: {reason}") from error


def _listener(host: str, port: int, *, shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=shared)


def _lock(host: str, port: int, sharers: str) -> int:
    """Hold the lock file of the port together with those of the same name, until it is closed."""
    folder = Path(tempfile.gettempdir())
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(folder / f"turnwire-{os.getuid()}-{port}.lock", flags, 0o600)
    try:
        # Who comes first holds it alone for as long as it takes to look and to write its name.
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _listener(host, port).close()
            os.ftruncate(lock, 0)
            os.pwrite(lock, sharers.encode(), 0)
        fcntl.flock(lock, fcntl.LOCK_SH)
        # Read last, since another may have been faster between the two locks.
        if os.pread(lock, _MAX_NAME_BYTES, 0).decode() != sharers:
            raise OSError(errno.EADDRINUSE, "another server")
    except BaseException:
        os.close(lock)
        raise
    return lock
