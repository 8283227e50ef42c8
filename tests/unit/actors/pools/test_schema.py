"""Migrations: they lead to the declared tables, from any version, all or nothing."""

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from postgres import connect, rows_of

from turnwire.actors import ledger
from turnwire.actors.database import open_database
from turnwire.actors.schema import Schema
from turnwire.actors.storage import SCHEMAS
from turnwire.actors.stored_responses import StoredResponses
from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import Internal

ALL = (*SCHEMAS, ledger.SCHEMA)


def versions(url: str) -> dict[str, int]:
    return {str(part): version for part, version in rows_of(url, "select * from schema_versions")}


@pytest.mark.parametrize("schema", ALL, ids=lambda schema: schema.part)
def test_the_migrations_of_a_part_lead_to_the_tables_it_declares(
    database_url: str, schema: Schema
) -> None:
    open_database(database_url, "test", [schema]).dispose()
    engine = connect(database_url)
    with engine.connect() as connection:
        ours = {
            "compare_type": True,
            "compare_server_default": True,
            "include_name": lambda name, kind, _: kind != "table" or name != "schema_versions",
        }
        context = MigrationContext.configure(connection, opts=ours)
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()
    assert versions(database_url) == {schema.part: schema.version}


def test_parts_are_named_once_and_share_no_table() -> None:
    names = [name for schema in ALL for name in (schema.part, *schema.metadata.tables)]
    assert len(set(names) | {"schema_versions"}) == len(names) + 1


def test_parts_share_a_database_and_each_has_its_version(database_url: str) -> None:
    open_database(database_url, "storage", SCHEMAS).dispose()
    open_database(database_url, "billing", [ledger.SCHEMA]).dispose()
    assert versions(database_url) == {schema.part: schema.version for schema in ALL}


def test_others_can_write_while_what_migrates_is_imported(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_database(database_url, "storage", SCHEMAS).dispose()
    imported: list[str] = []

    def importing(name: str) -> None:
        engine = connect(database_url)
        with engine.begin() as connection:
            connection.execute(sa.text("UPDATE storage_slots SET bytes = bytes + 1"))
        engine.dispose()
        imported.append(name)

    monkeypatch.setattr("turnwire.actors.schema.import_module", importing)
    open_database(database_url, "storage", SCHEMAS).dispose()
    assert imported == []
    open_database(database_url, "billing", [ledger.SCHEMA]).dispose()
    assert imported


def _first(op: Operations) -> None:
    op.create_table("things", sa.Column("id", sa.Integer, primary_key=True))
    op.execute("INSERT INTO things VALUES (7)")


def _second(op: Operations) -> None:
    op.add_column("things", sa.Column("colour", sa.String(32)))
    op.execute("UPDATE things SET colour = 'teal'")


def _broken(op: Operations) -> None:
    op.execute("UPDATE things SET colour = 'red'")
    op.execute("UPDATE nothing SET colour = 'red'")


def things(*migrations: object) -> list[Schema]:
    return [Schema("things", sa.MetaData(), migrations)]  # type: ignore[arg-type]


def test_what_is_there_is_kept_by_a_later_migration(database_url: str) -> None:
    open_database(database_url, "test", things(_first)).dispose()
    for _ in range(2):
        open_database(database_url, "test", things(_first, _second)).dispose()
    assert rows_of(database_url, "select * from things") == [(7, "teal")]
    assert versions(database_url) == {"things": 2}


def test_a_migration_that_fails_changes_nothing(database_url: str) -> None:
    open_database(database_url, "test", things(_first)).dispose()
    with pytest.raises(Internal, match="nothing"):
        open_database(database_url, "test", things(_first, _second, _broken))
    assert rows_of(database_url, "select * from things") == [(7,)]
    assert versions(database_url) == {"things": 1}


def test_workers_that_start_together_migrate_once(database_url: str) -> None:
    together = threading.Barrier(4)
    failures: list[Internal] = []

    def start() -> None:
        together.wait()
        try:
            open_database(database_url, "test", things(_first, _second)).dispose()
        except Internal as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert rows_of(database_url, "select * from things") == [(7, "teal")]


FIRST_RELEASE = (
    "CREATE TABLE schema_versions (part VARCHAR(32) NOT NULL, version INTEGER NOT NULL,"
    " PRIMARY KEY (part))",
    "CREATE TABLE responses (tenant VARCHAR(256) NOT NULL, response_id VARCHAR(256) NOT NULL,"
    " created_at BIGINT NOT NULL, parent_id VARCHAR(256), response BLOB NOT NULL,"
    " input BLOB NOT NULL, output BLOB NOT NULL, model VARCHAR(256) NOT NULL,"
    " sampled BLOB NOT NULL, finish VARCHAR(32) NOT NULL, context BLOB,"
    " PRIMARY KEY (tenant, response_id))",
    "CREATE INDEX responses_by_age ON responses (created_at)",
    "INSERT INTO schema_versions VALUES ('storage', 1)",
    "INSERT INTO responses VALUES ('red', 'r1', 7, NULL, X'7b7d', X'5b5d', X'5b315d', 'm',"
    " X'01000000', 'stop', NULL)",
    "INSERT INTO responses VALUES ('red', 'r2', 8, 'r1', X'7b7d', X'5b5d', X'5b5d', 'm', X'',"
    " 'stop', NULL)",
)
"""As it was created, read out of such a file."""


def test_a_database_of_the_first_release_is_upgraded_with_all_it_holds(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/turnwire.db"
    first = connect(url)
    with first.begin() as connection:
        for statement in FIRST_RELEASE:
            connection.exec_driver_sql(statement)
    first.dispose()
    engine = open_database(url, "storage", SCHEMAS)
    stored = StoredResponses(engine)
    assert stored.fetch(m.Fetch("red", "r1")) == m.Stored(b"{}", b"[]")
    chain = stored.load(m.Load("red", "r2"))
    assert [turn.response_id for turn in chain.turns] == ["r1", "r2"]
    engine.dispose()
    assert rows_of(url, "select response_id, bytes from responses order by 1") == [
        ("r1", 11),
        ("r2", 6),
    ]
    assert rows_of(url, "select sum(bytes) from storage_slots") == [(17,)]
    assert rows_of(url, "pragma auto_vacuum") == [(2,)]
