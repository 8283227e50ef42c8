"""The servers that end-to-end tests talk to."""

from collections.abc import Iterator

import pytest
from postgres import PostgresServer
from running_server import DEFAULT_MODELS, RunningServer
from served import free_port

REPLICAS = 2
"""Gateways, and storage workers, of a server on PostgreSQL."""


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """One server with the default models for all tests that leave it as it is."""
    with RunningServer({"TURNWIRE_MODELS": DEFAULT_MODELS}) as running:
        yield running


@pytest.fixture(scope="session", params=["postgresql", "sqlite"])
def stored_server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """The same on either database: the one above, and one with two gateways and two storage workers
    on PostgreSQL, whose workers may be killed. pytest ends it before it begins the other."""
    if request.param == "sqlite":
        yield request.getfixturevalue("server")
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    settings = {
        "TURNWIRE_MODELS": DEFAULT_MODELS,
        "TURNWIRE_GATEWAY__REPLICAS": str(REPLICAS),
        "TURNWIRE_GATEWAY__PORT": str(free_port()),
        "TURNWIRE_STORAGE__REPLICAS": str(REPLICAS),
        "TURNWIRE_STORAGE__URL": postgres.database(),
    }
    with RunningServer(settings) as running:
        yield running


@pytest.fixture(scope="session")
def open_responses_server() -> Iterator[RunningServer]:
    """One server with the default models and the settings for Open Responses."""
    settings = {
        "TURNWIRE_MODELS": DEFAULT_MODELS,
        "TURNWIRE_GATEWAY__REASONING_EVENTS": "open_responses",
        "TURNWIRE_GATEWAY__ECHO_SCHEMA": "open_responses",
        "TURNWIRE_GATEWAY__MAX_MESSAGE_BYTES": str(48 * 1024 * 1024),
    }
    with RunningServer(settings) as running:
        yield running
