"""Bodies of many megabytes: served below the limit, refused in band above it."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest
from running_server import RunningServer
from websockets.asyncio.client import connect

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MIB = 1024 * 1024
SERVED = 40 * MIB
REFUSED = 49 * MIB
"""The server of these tests takes 48 MiB."""


def body(size: int, **fields: object) -> bytes:
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * size}
    content = [{"type": "input_text", "text": "what is it?"}, image]
    message = {"type": "message", "role": "user", "content": content}
    made = {"type": "response.create", "model": "sim-max", "input": [message]}
    return orjson.dumps(made | fields)


async def over_socket(url: str, *frames: bytes) -> list[dict[str, Any]]:
    """The last event of each frame's turn, on one connection."""
    ends: list[dict[str, Any]] = []
    async with connect(
        url.replace("http", "ws", 1) + "/responses", max_size=None, ping_timeout=60
    ) as socket:
        for frame in frames:
            await socket.send(frame.decode())
            while True:
                event = orjson.loads(await socket.recv())
                if event["type"] in ("response.completed", "error"):
                    ends.append(event)
                    break
    return ends


async def test_forty_mebibytes_are_served_and_continued_on_a_socket(
    open_responses_server: RunningServer,
) -> None:
    async with asyncio.timeout(120):
        (made,) = await over_socket(open_responses_server.url, body(SERVED, store=True))
        assert made["type"] == "response.completed", made
        parent = made["response"]["id"]
        (next_turn,) = await over_socket(
            open_responses_server.url, body(10, store=False, previous_response_id=parent)
        )
    assert next_turn["type"] == "response.completed", next_turn


async def test_forty_mebibytes_are_served_over_http(open_responses_server: RunningServer) -> None:
    async with httpx.AsyncClient(base_url=open_responses_server.url, timeout=120) as client:
        answer = await client.post("/responses", content=body(SERVED, store=False))
        assert (answer.status_code, answer.json()["status"]) == (200, "completed")
        counted = await client.post("/responses/input_tokens", content=body(SERVED))
    assert counted.json()["input_tokens"] == answer.json()["usage"]["input_tokens"]


async def test_more_than_the_limit_is_a_400_in_band_on_both_transports(
    open_responses_server: RunningServer,
) -> None:
    url = open_responses_server.url
    refused, served = await over_socket(url, body(REFUSED), body(10))
    assert (refused["type"], refused["status"]) == ("error", 400)
    assert served["type"] == "response.completed"
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        answer = await client.post("/responses", content=body(REFUSED))
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            400,
            "invalid_request_error",
        )
        assert (await client.post("/responses", content=body(10))).status_code == 200
