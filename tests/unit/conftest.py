"""Unit tests need no Ray: starting one is a mistake, whatever the arguments."""

from typing import Any, NoReturn

import pytest
import ray


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:  # noqa: ANN401 -- any arguments are refused
        raise AssertionError("a unit test may not start Ray")

    monkeypatch.setattr(ray, "init", refuse)
