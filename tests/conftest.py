"""Options of all tests, and how long the fuzzing ones search."""

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, so that a failure is the change's own. Something new is searched
# for with `--hypothesis-profile=deep`.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=60,
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
