"""Whatever a body says, the answer is a response or an error of the client's, and valid JSON."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import orjson
import pytest
from any_bodies import BODIES
from gateway_worlds import Opener, Town, heard
from hypothesis import HealthCheck, example, given, settings
from simulated_ports import SimulatedPorts

DEEP = 900 * "[" + 900 * "]"


class Served:
    """One gateway for all examples, in a loop of its own."""

    def __init__(self, runner: asyncio.Runner, town: Town) -> None:
        self._runner = runner
        self._town = town
        self._client = town.httpx()

    def post(self, body: bytes) -> httpx.Response:
        return self._runner.run(self._client.post("/responses", content=body))

    def send(self, frame: str) -> list[dict[str, Any]]:
        return self._runner.run(self._sent(frame))

    async def _sent(self, frame: str) -> list[dict[str, Any]]:
        async with self._town.connect() as socket:
            await socket.send(frame)
            return await heard(socket)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        opened = Opener(stack).open(simulated=SimulatedPorts())
        made = Served(runner, runner.run(opened))
        yield made
        runner.run(made._client.aclose())
        runner.run(stack.aclose())


def check_error(status: int, error: dict[str, Any]) -> None:
    assert 400 <= status < 500, error
    assert set(error) == {"type", "code", "message", "param"}
    assert error["code"] != "server_error"
    assert error["type"]
    assert error["message"]


def encoded(fields: dict[str, Any]) -> bytes:
    body = {"model": "sim-max", "store": False, "max_output_tokens": 4} | fields
    return json.dumps(body).encode()


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@example(fields={"input": [{"type": "new", "x": 10**40}], "stream": True})
@example(fields={"text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": 1}}}})
@example(fields={"input": "\ud800", "tools": []})
@example(fields={"metadata": {"sim.fail": "nonsense"}, "stream": True})
@given(fields=BODIES)
def test_any_body_is_answered_by_a_response_or_by_an_error_of_the_client(
    served: Served, fields: dict[str, Any]
) -> None:
    answer = served.post(encoded(fields))
    if answer.status_code != 200:
        check_error(answer.status_code, answer.json()["error"])
    elif answer.headers["content-type"] == "application/json":
        assert orjson.loads(answer.content)["status"] in ("completed", "incomplete")
    else:
        lines = [line[6:] for line in answer.text.split("\n") if line.startswith("data: {")]
        final = [orjson.loads(line) for line in lines][-1]["response"]
        assert (final["error"] or {}).get("code") != "server_error"


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(fields=BODIES)
def test_any_frame_is_answered_by_a_response_or_by_an_error_of_the_client(
    served: Served, fields: dict[str, Any]
) -> None:
    frame = encoded(fields | {"type": "response.create"}).decode()
    last = served.send(frame)[-1]
    if last["type"] == "error":
        check_error(last["status"], last["error"])
    else:
        assert (last["response"]["error"] or {}).get("code") != "server_error"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b'{"model":"sim-max"} x',
        b"\xff",
        b'{"model":"sim-max","input":"\xff"}',
        b'{"model":"sim-max","input":"\\ud800"}',
        b'{"model":"sim-max","input":[{"type":"x","n":1e999}]}',
        b'{"model":"sim-max","input":[{"type":"x","n":%b}]}' % DEEP.encode(),
        b'{"model":"sim-max","tools":[{"type":"x","n":%b}]}' % DEEP.encode(),
        b'{"model":"sim-max","unknown":%b}' % (DEEP * 20).encode(),
        b'{"model":"sim-max","model":7}',
    ],
)
def test_what_is_hardly_json_is_a_400_or_served(served: Served, body: bytes) -> None:
    answer = served.post(body)
    if answer.status_code != 200:
        check_error(answer.status_code, answer.json()["error"])
        assert answer.status_code == 400
