"""Opening a database, SQLite or PostgreSQL, for one writer and one reader.

Every failure names the database and the remedy.

SQLite runs in WAL mode with `synchronous=FULL`: an acknowledged write is on the disk, also after
the machine loses power. NORMAL would save one fsync a commit but may lose the last acknowledged
ones; group commit already shares that fsync among all that wait. Storage and billing may share
one file from two processes, hence `BEGIN IMMEDIATE` and a busy timeout.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from turnwire.actors import database_postgres
from turnwire.actors.backoff import Backoff
from turnwire.actors.schema import Schema, migrate
from turnwire.pipelines.protocol.errors import Internal, Overloaded

_log = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 5000
"""How long a write waits for another process's transaction on the same file."""
ANSWER_S = 5.0
"""A PostgreSQL that takes longer to connect or to answer is taken to be away, the second time."""
MIGRATE_S = 3600.0
MAX_UNDONE = 5
"""So often a transaction is made again that met others in an order in which all would wait."""

Answer = TypeVar("Answer")


def open_database(url: str, name: str, schemas: Sequence[Schema]) -> sa.Engine:
    """An engine whose tables are up to date. Blocks; call it in a thread.

    `name` is who wants it, as the operator calls that. Raises Internal, with a text for the
    operator, when the database cannot be used.
    """
    shown = "URL"  # without a password, once it can be told apart
    try:
        location = sa.make_url(url)
        shown = location.render_as_string(hide_password=True)
        if location.get_backend_name() == "sqlite":
            _make_folder(location)
        engine = _engine(location, name, ANSWER_S)
        migrating = _engine(location, name, MIGRATE_S)
    except ImportError as error:
        hint = "; PostgreSQL needs the extra: pip install 'turnwire[postgres]'"
        wanted = hint if database_postgres.is_meant(url) else ""
        raise Internal(f"the {name} database {shown} cannot be opened: {error}{wanted}") from error
    except (SQLAlchemyError, OSError, ValueError) as error:
        raise Internal(f"the {name} database {shown} cannot be opened: {error}") from error
    try:
        for schema in schemas:
            migrate(migrating, schema)
        _make_shrinkable(migrating)
    except SQLAlchemyError as error:
        engine.dispose()
        cause = getattr(error, "orig", None) or error
        raise Internal(
            f"the {name} database {shown} cannot be used: {cause}. "
            "Is it writable, a database, and free of another program's lock?"
        ) from error
    finally:
        migrating.dispose()
    return engine


def _engine(location: sa.URL, name: str, answer_s: float) -> sa.Engine:
    if location.get_backend_name() in database_postgres.NAMES:
        return database_postgres.engine(location, name, answer_s)
    engine = sa.create_engine(location, pool_size=2, max_overflow=0, pool_timeout=10)
    if engine.dialect.name != "sqlite":
        raise ValueError("use sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE")
    sa.event.listen(engine, "connect", _configure)
    sa.event.listen(engine, "begin", _begin_immediate)
    return engine


def _make_folder(location: sa.URL) -> None:
    if location.database and location.database != ":memory:":
        Path(location.database).parent.mkdir(parents=True, exist_ok=True)


def _configure(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    # Before the first page is written; later it takes a VACUUM.
    cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA journal_size_limit = 67108864")
    cursor.close()


def _begin_immediate(connection: sa.Connection) -> None:
    if not connection.get_execution_options().get("read_only", False):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.exec_driver_sql("BEGIN")


def _make_shrinkable(engine: sa.Engine) -> None:
    """Files of the first release cannot give space back until they are written anew, once."""
    if engine.dialect.name != "sqlite":
        return
    connection = engine.raw_connection()
    cursor = connection.cursor()
    try:
        cursor.execute("PRAGMA auto_vacuum")
        if cursor.fetchone() == (0,):
            cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
            cursor.execute("VACUUM")
    except sqlite3.Error as error:
        # Another process may hold it. All works, only the file does not shrink.
        _log.warning("database.not_shrinkable: %s", error)
    finally:
        cursor.close()
        connection.close()


def persistently(attempt: Callable[[], Answer]) -> Answer:
    """The answer of `attempt`, tried again at once where a kept connection turns out to be dead,
    or the database undid it in favour of another transaction.

    A connection may also die in the middle of a commit, so a second try must change nothing where
    the first one has. Raises Overloaded when the database is away.
    """
    undone, was_away, backoff = 0, False, Backoff(first_s=0.01)
    while True:
        try:
            return attempt()
        except (DBAPIError, OSError) as error:
            if database_postgres.was_undone(error) and undone < MAX_UNDONE:
                undone += 1
                # The others have to come past.
                time.sleep(backoff.next_s())
            elif not is_away(error):
                raise
            elif was_away:
                raise Overloaded("the database is away") from error
            else:
                was_away = True


def read(engine: sa.Engine, query: Callable[[sa.Connection], Answer]) -> Answer:
    """The answer of `query` in a transaction that only reads. Raises as `persistently`."""

    def attempt() -> Answer:
        with engine.connect().execution_options(read_only=True) as connection:
            return query(connection)

    return persistently(attempt)


def is_away(error: DBAPIError | OSError) -> bool:
    """Did the database go, or refuse all of us for now, rather than this one statement?"""
    if isinstance(error, OSError):
        return True
    return error.connection_invalidated or database_postgres.cannot_connect(error)


def insert_missing(
    connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Insert the rows; one whose key is already there is left as it is."""
    if rows:
        connection.execute(missing(connection, table), list(rows))


def missing(connection: sa.Connection, table: sa.Table) -> Any:  # noqa: ANN401 -- of either dialect
    """An insert that does nothing where the key is already there."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing()
