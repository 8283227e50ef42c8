"""What tests do with background responses."""

import asyncio
from typing import Any

import httpx
import openai
import orjson
from gateway_worlds import Town

from turnwire.pipelines.config import BackgroundSettings, GatewaySettings

QUICK = BackgroundSettings(flush_s=0.001, renew_s=0.05)


def settings(**background: object) -> GatewaySettings:
    return GatewaySettings(port=0, background=QUICK.model_copy(update=background))


def hanging(town: Town, after: int = 0) -> None:
    """The next turn hangs, with so many texts said."""
    town.world.hang_at = len(town.world.steps) + 3 + after + 1


async def begun(client: openai.AsyncOpenAI, **fields: Any) -> str:  # noqa: ANN401
    """The id of a background response."""
    response = await client.responses.create(
        model="scripted", input="hi", background=True, **fields
    )
    assert (response.status, response.background, response.output) == ("queued", True, [])
    return response.id


async def polled(client: openai.AsyncOpenAI, response_id: str) -> openai.types.responses.Response:
    """As clients do it, with less patience."""
    async with asyncio.timeout(20):
        while True:
            response = await client.responses.retrieve(response_id)
            if response.status not in ("queued", "in_progress"):
                return response
            await asyncio.sleep(0.01)


async def streamed(client: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    return [orjson.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
