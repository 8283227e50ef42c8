"""The servers that end-to-end tests talk to."""

from collections.abc import Iterator

import pytest
from running_server import DEFAULT_MODELS, RunningServer


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """One server with the default models for all tests that leave it as it is."""
    with RunningServer({"TURNWIRE_MODELS": DEFAULT_MODELS}) as running:
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
