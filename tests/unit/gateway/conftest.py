"""Gateways on real sockets, over ports without processes."""

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))

from gateway_worlds import Opener, Town


@pytest.fixture
async def opener() -> AsyncIterator[Opener]:
    """Opens gateways that are closed at the end, and sees to it that nothing is left running."""
    async with AsyncExitStack() as stack:
        yield Opener(stack)


@pytest.fixture
async def town(opener: Opener) -> Town:
    """A gateway with the settings of the product."""
    return await opener.open()
