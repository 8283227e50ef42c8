"""Opening a database for one pinned writer and one reader. Every failure names file and remedy.

SQLite runs in WAL mode with `synchronous=FULL`: an acknowledged write is on the disk, also after
the machine loses power. NORMAL would save one fsync a commit but may lose the last acknowledged
ones; group commit already shares that fsync among all that wait. Storage and billing may share
one file from two processes, hence `BEGIN IMMEDIATE` and a busy timeout.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from turnwire.pipelines.protocol.errors import Internal

BUSY_TIMEOUT_MS = 5000
"""How long a write waits for another process's transaction on the same file."""

_versions = sa.MetaData()
_schema_versions = sa.Table(
    "schema_versions",
    _versions,
    sa.Column("part", sa.String(32), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)


def open_database(url: str, tables: sa.MetaData, part: str, version: int) -> sa.Engine:
    """An engine whose tables exist. Blocks; call it in the thread that will use it.

    Raises Internal, with a text for the operator, when the database cannot be used.
    """
    shown = "URL"  # without a password, once it can be told apart
    try:
        location = sa.make_url(url)
        shown = location.render_as_string(hide_password=True)
        if location.get_backend_name() == "sqlite":
            _make_folder(location)
        engine = sa.create_engine(location, pool_size=2, max_overflow=0, pool_timeout=10)
    except (SQLAlchemyError, OSError, ImportError, ValueError) as error:
        raise Internal(f"the {part} database {shown} cannot be opened: {error}") from error
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _configure)
        sa.event.listen(engine, "begin", _begin_immediate)
    try:
        _migrate(engine, tables, part, version)
    except SQLAlchemyError as error:
        engine.dispose()
        cause = getattr(error, "orig", None) or error
        raise Internal(
            f"the {part} database {shown} cannot be used: {cause}. "
            "Is it writable, a database, and free of another program's lock?"
        ) from error
    return engine


def _make_folder(location: sa.URL) -> None:
    if location.database and location.database != ":memory:":
        Path(location.database).parent.mkdir(parents=True, exist_ok=True)


def _configure(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA journal_size_limit = 67108864")
    cursor.close()


def _begin_immediate(connection: sa.Connection) -> None:
    if not connection.get_execution_options().get("read_only", False):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.exec_driver_sql("BEGIN")


def _migrate(engine: sa.Engine, tables: sa.MetaData, part: str, version: int) -> None:
    with engine.begin() as connection:
        _versions.create_all(connection)
        tables.create_all(connection)
        ours = _schema_versions.c.part == part
        found = connection.scalar(sa.select(_schema_versions.c.version).where(ours))
        if found is None:
            row = {"part": part, "version": version}
            insert_missing(connection, _schema_versions, [row])
        elif found > version:
            raise SchemaTooNew(f"its {part} tables have version {found}, this program {version}")


class SchemaTooNew(SQLAlchemyError):
    """A newer release has written this database."""


def insert_missing(
    connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Insert the rows; one whose key is already there is left as it is."""
    if not rows:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(dialect.insert(table).on_conflict_do_nothing(), list(rows))
