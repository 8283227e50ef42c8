"""Tables that grow up: each part of the database has its migrations, and a version of its own.

A part is one file that declares its tables, and beside them a `Schema` with one function a version:

    SCHEMA = Schema("things", metadata, (_create, _add_colour))

Version 1 is what `_create` leaves, version 2 what `_add_colour` makes of it. What has landed is
never changed again: a new version is one function more at the end. Parts share a database and know
nothing of each other, so two of them may get a migration at the same time. A test holds that the
migrations lead to the tables the file declares, on every database.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from alembic.operations import Operations

ADVISORY_LOCK = 0x7475726E
"""On PostgreSQL, replicas that start at the same time migrate one after another."""

_metadata = sa.MetaData()
_schema_versions = sa.Table(
    "schema_versions",
    _metadata,
    sa.Column("part", sa.String(32), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)

Migration = Callable[["Operations"], None]
"""From one version to the next, in a transaction that others may not write in; with Alembic's
operations, which hide what the databases do differently."""


@dataclass(frozen=True)
class Schema:
    part: str
    metadata: sa.MetaData
    """The tables as the newest version has them."""
    migrations: tuple[Migration, ...]
    """Number `n` leads to version `n + 1`; an empty database has version 0."""

    @property
    def version(self) -> int:
        return len(self.migrations)


class SchemaTooNew(SQLAlchemyError):
    """A newer release has written this database."""


def migrate(engine: sa.Engine, schema: Schema) -> None:
    """Bring the tables of a part up to date: all of it, or nothing. Raises SchemaTooNew."""
    if _version(engine, schema) < schema.version:
        # Takes 0.3 s, and seconds on a busy machine: before the transaction, in which no other
        # part can write, and not at all for a database that is up to date.
        import_module("alembic.operations")
        import_module("alembic.runtime.migration")
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY_LOCK)))
        _metadata.create_all(connection)
        ours = _schema_versions.c.part == schema.part
        found = connection.scalar(sa.select(_schema_versions.c.version).where(ours))
        if found is None:
            row = {"part": schema.part, "version": 0}
            connection.execute(sa.insert(_schema_versions), row)
            found = 0
        if found > schema.version:
            raise SchemaTooNew(
                f"its {schema.part} tables have version {found}, this program {schema.version}"
            )
        if found < schema.version:
            operations = _operations(connection)
            for migration in schema.migrations[found:]:
                migration(operations)
            connection.execute(
                sa.update(_schema_versions).where(ours).values(version=schema.version)
            )


def _version(engine: sa.Engine, schema: Schema) -> int:
    """As it is now; another may be about to change it."""
    with engine.connect().execution_options(read_only=True) as connection:
        if not sa.inspect(connection).has_table(_schema_versions.name):
            return 0
        ours = _schema_versions.c.part == schema.part
        return connection.scalar(sa.select(_schema_versions.c.version).where(ours)) or 0


def _operations(connection: sa.Connection) -> "Operations":
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    return Operations(MigrationContext.configure(connection))
