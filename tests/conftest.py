"""Options of all tests, how long the fuzzing ones search, and the databases."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from postgres import PostgresServer

# The same examples in every run, so that a failure is the change's own. Something new is searched
# for with `--hypothesis-profile=deep`.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=40,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep",
    settings.get_profile("steady"),
    derandomize=False,
    max_examples=2000,
    stateful_step_count=80,
)
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write transcripts as they play today")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests that leave it running."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of a test's own: each test that asks for it runs on both kinds."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/made/on/demand/turnwire.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()
