"""A gateway with real storage, on each database."""

from collections.abc import AsyncIterator

import openai
import pytest
from background_turns import settings
from gateway_worlds import Opener, Town
from local_storage import LocalStorage


@pytest.fixture
async def storage(database_url: str) -> AsyncIterator[LocalStorage]:
    async with LocalStorage(database_url) as storage:
        yield storage


@pytest.fixture
async def town(storage: LocalStorage, opener: Opener) -> Town:
    return await opener.open(settings=settings(), storage=storage)


@pytest.fixture
async def client(town: Town) -> AsyncIterator[openai.AsyncOpenAI]:
    async with town.openai() as client:
        yield client
