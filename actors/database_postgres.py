"""What is different about PostgreSQL: its URL, its time limits, and how it says that it is away."""

import ssl
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.exc import DBAPIError

NAMES = {"postgresql", "postgres"}

_AWAY = ("08", "57P", "53", "25006")
"""SQLSTATEs, or how they begin: connection lost, shut down or starting, out of connections or
memory, and a standby that does not take writes."""


_UNDONE = ("40P01", "40001")
"""A deadlock, and what could not be put in an order with others: it may pass the next time."""


def is_meant(url: str) -> bool:
    return url.split(":")[0].split("+")[0] in NAMES


def engine(location: sa.URL, name: str, answer_s: float) -> sa.Engine:
    """Raises ValueError for what the URL asks and cannot be had, ImportError without the driver."""
    arguments: dict[str, Any] = {
        # Of the socket, so it bounds connecting and every answer: nothing waits for ever.
        "timeout": answer_s,
        "application_name": f"turnwire {name}",
    }
    if (context := _ssl_context(location)) is not None:
        arguments["ssl_context"] = context
    made = sa.create_engine(
        location.difference_update_query(("sslmode", "sslrootcert")).set(
            drivername="postgresql+pg8000"
        ),
        connect_args=arguments,
        pool_size=2,
        max_overflow=0,
        pool_timeout=answer_s,
    )
    sa.event.listen(made, "handle_error", _mark_away)
    return made


def _ssl_context(location: sa.URL) -> ssl.SSLContext | bool | None:
    """As libpq has it, but `prefer` where nothing is said: None leaves that to the driver."""
    mode = location.query.get("sslmode", "prefer")
    authority = location.query.get("sslrootcert")
    if isinstance(authority, tuple):
        raise ValueError("sslrootcert is given twice")
    match mode:
        case "prefer":
            return False if "unix_sock" in location.query else None
        case "disable":
            return False
        case "require":
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return context
        case "verify-ca" | "verify-full":
            context = ssl.create_default_context(cafile=authority)
            context.check_hostname = mode == "verify-full"
            return context
        case _:
            raise ValueError("sslmode: use disable, prefer, require, verify-ca or verify-full")


def _mark_away(context: ExceptionContext) -> None:
    """So that SQLAlchemy throws the connection away, and the next use makes a new one."""
    error = context.original_exception
    # The driver leaves some errors of its socket as they are.
    if isinstance(error, OSError) or _sqlstate(error).startswith(_AWAY):
        context.is_disconnect = True


def cannot_connect(error: DBAPIError) -> bool:
    """Raised while connecting: then there is no statement, and no connection to invalidate."""
    return error.statement is None and (
        isinstance(error, sa.exc.InterfaceError) or _sqlstate(error.orig).startswith(_AWAY)
    )


def was_undone(error: Exception) -> bool:
    """Did the database undo this transaction, so that others could go on?"""
    return isinstance(error, DBAPIError) and _sqlstate(error.orig) in _UNDONE


def _sqlstate(error: BaseException | None) -> str:
    """The driver's errors carry the server's fields, `C` being the state."""
    fields = error.args[0] if error is not None and error.args else None
    return str(fields.get("C", "")) if isinstance(fields, dict) else ""
