"""Turns that together make every event this server can send, and how a client hears them."""

from typing import Any

import orjson
from gateway_worlds import Town, heard
from scripted_ports import create

RUN = {"type": "function", "name": "run", "parameters": {"type": "object"}}
SAY = RUN | {
    "parameters": {
        "type": "object",
        "properties": {"words": {"type": "string"}},
        "required": ["words"],
    }
}
PATCH = {"type": "custom", "name": "patch"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
IMPOSSIBLE = {"type": "string", "minLength": 5, "maxLength": 1}


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}}


SCENARIOS: dict[str, dict[str, Any]] = {
    "text": {"instructions": "be brief", "tools": [RUN], "tool_choice": "none"},
    "reasoning": {"metadata": {"sim.reasoning_tokens": "6", "sim.output_tokens": "6"}},
    "calls": {
        "tools": [RUN],
        "tool_choice": {"type": "function", "name": "run"},
        "metadata": {"sim.parallel_calls": "2"},
    },
    "cut": {"max_output_tokens": 2, "metadata": {"sim.output_tokens": "6"}},
    "cut reasoning": {"max_output_tokens": 2, "metadata": {"sim.reasoning_tokens": "6"}},
    "cut call": {
        "max_output_tokens": 2,
        "tools": [SAY],
        "metadata": {"sim.output_tokens": "60"},
    },
    "failed": {"metadata": {"sim.fail": "internal@1"}},
    "refused by the engine": json_schema(IMPOSSIBLE),
    "warm-up": {"generate": False},
    "waiting": {},
    "hosted tools": {
        "tools": [RUN, {"type": "web_search"}, PATCH],
        "tool_choice": {"type": "web_search_preview"},
    },
    "custom call": {"tools": [PATCH]},
    "allowed tools": {
        "tools": [RUN, {"type": "web_search"}],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "run"}, {"type": "web_search"}],
        },
    },
    "JSON schema": json_schema(SCHEMA),
    "effort": {"reasoning": {"effort": "minimal", "summary": "auto"}},
    "sealed reasoning": {
        "include": ["reasoning.encrypted_content"],
        "metadata": {"sim.reasoning_tokens": "6"},
    },
    "compaction": {
        "input": [{"role": "user", "content": "hello"}, {"type": "compaction_trigger"}],
    },
    "unknown model": {"model": "unknown"},
    "steer": {"type": "response.steer", "previous_response_id": "resp_1"},
}
ON_SOCKETS_ONLY = {"unknown model", "steer"}
NEED_A_SCRIPT = {"waiting", "custom call"}
"""What a whole server with simulated models does not do on demand."""


def frame(scenario: str, **fields: object) -> bytes:
    return create(**{"model": "sim-max"} | SCENARIOS[scenario] | fields)


async def over_socket(town: Town, scenario: str) -> list[bytes]:
    """All events of one scenario."""
    async with town.connect() as socket:
        await socket.send(frame(scenario).decode())
        if scenario == "steer":
            return [orjson.dumps(orjson.loads(await socket.recv()))]
        return [orjson.dumps(event) for event in await heard(socket)]


async def over_http(town: Town, scenario: str) -> list[bytes]:
    async with town.httpx() as client:
        answer = await client.post("/responses", content=frame(scenario, stream=True))
    assert answer.status_code == 200, answer.text
    data = [line[6:] for line in answer.text.split("\n") if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [line.encode() for line in data]
