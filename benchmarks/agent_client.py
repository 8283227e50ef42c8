"""A client as light as it can be: a coding agent's frames over one WebSocket, timed."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

WAIT_S = 120.0
TERMINALS = tuple(
    b'"type":"%b"' % name
    for name in (b"response.completed", b"response.failed", b"response.incomplete", b"error")
)
_OUTPUT = b'"type":"response.output_'
_NEAR = 160
"""The type of an event stands among its first bytes."""

INSTRUCTIONS = "Work in small steps and say what you did. " * 400


def tool(name: str, sentences: int) -> dict[str, Any]:
    """A function with a description of so many sentences of 52 characters."""
    return {
        "type": "function",
        "name": name,
        "description": "Runs in the working folder and returns what came out. " * sentences,
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {"cmd": {"type": "string"}, "workdir": {"type": "string"}},
            "required": ["cmd"],
            "additionalProperties": False,
        },
    }


TOOLS = [
    tool("exec_command", 30),
    *(tool(f"tool_{n}", 25) for n in range(6)),
    {
        "type": "namespace",
        "name": "agents",
        "description": "Tools that spawn other agents and wait for them.",
        "tools": [tool(f"agent_{n}", 23) for n in range(5)],
    },
    {"type": "web_search", "external_web_access": False},
]
OUTPUT = ("def step(self, key): return table[key] if key in table else None\n" * 40)[:2048]
_THREAD = "01a22b88-8e73-7811-930e-3800218ebc21"


def codex_frame(
    input: list[dict[str, Any]],
    parent: str | None,
    model: str = "sim-max",
    instructions: str | None = None,
    **metadata: str,
) -> bytes:
    """A turn as Codex 0.171.0 sends it: 19 KB of tools, 1 KB about itself, and what is new.

    `instructions` are what other agents send with every frame.
    """
    now_ms = str(int(time.time() * 1000))
    about = {"thread_id": _THREAD, "window_number": 0, "sandbox": "seccomp", "model": model}
    request = {
        "type": "response.create",
        "model": model,
        "input": input,
        "tools": TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": _THREAD,
        "client_metadata": {
            "thread_id": _THREAD,
            "x-codex-turn-metadata": orjson.dumps(about | {"agent": "." * 600}).decode(),
            "x-codex-ws-stream-request-start-ms": now_ms,
        },
        "metadata": {"sim.tool_turns": "10000"} | metadata,
    }
    if parent is not None:
        request["previous_response_id"] = parent
    if instructions is not None:
        request["instructions"] = instructions
    return orjson.dumps(request)


def first_input(text: str = OUTPUT, base: str | None = INSTRUCTIONS) -> list[dict[str, Any]]:
    """A user's message behind `base`, what the agent is: 17 KB that Codex sends as an item."""
    items = [("developer", base), ("user", text)]
    return [
        {"type": "message", "role": role, "content": [{"type": "input_text", "text": content}]}
        for role, content in items
        if content is not None
    ]


def next_input(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of the calls a response made."""
    return [
        {
            "type": "function_call_output",
            "id": f"fco_{item['id'][-32:]}",
            "call_id": item["call_id"],
            "output": OUTPUT,
        }
        for item in response["output"]
        if item["type"] == "function_call"
    ]


@dataclass
class Turn:
    """One turn as the client saw it, in seconds since it was sent."""

    first_s: float = 0.0
    """When there was output."""
    ended_s: float = 0.0
    response: dict[str, Any] = field(default_factory=dict)
    deltas: list[tuple[float, int]] = field(default_factory=list)
    """When each delta of text came, and its characters."""


class Connection(WSListener):
    """One turn at a time."""

    def __init__(self, keep_deltas: bool, terminals: tuple[bytes, ...]) -> None:
        self._keep_deltas = keep_deltas
        self._terminals = terminals
        self._turn = Turn()
        self._begin_s = 0.0
        self._ended: asyncio.Future[bytes] | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(ConnectionError("the server closed the connection"))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        now_s = time.perf_counter() - self._begin_s
        payload = frame.get_payload_as_bytes()
        near = payload[:_NEAR]
        if not self._turn.first_s and _OUTPUT in near:
            self._turn.first_s = now_s
        if self._keep_deltas and b"output_text.delta" in near:
            self._turn.deltas.append((now_s, len(orjson.loads(payload)["delta"])))
        elif any(name in near for name in self._terminals):
            self._turn.ended_s = now_s
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(payload)

    async def turn(self, frame: bytes) -> Turn:
        """Send it and wait for its end. Raises ConnectionError when it does not complete."""
        event = orjson.loads(await self._last_frame(frame))
        if event["type"] != "response.completed":
            raise ConnectionError(orjson.dumps(event).decode()[:500])
        self._turn.response = event["response"]
        return self._turn

    async def echo(self, frame: bytes) -> Turn:
        """Send it and wait for an echo server's answer."""
        await self._last_frame(frame)
        return self._turn

    async def _last_frame(self, frame: bytes) -> bytes:
        self._turn = Turn()
        self._ended = asyncio.get_running_loop().create_future()
        self._begin_s = time.perf_counter()
        self._transport.send(WSMsgType.TEXT, frame)
        async with asyncio.timeout(WAIT_S):
            return await self._ended

    def close(self) -> None:
        self._transport.disconnect()


@asynccontextmanager
async def connected(
    url: str,
    key: str | None = None,
    *,
    keep_deltas: bool = False,
    terminals: tuple[bytes, ...] = TERMINALS,
    headers: dict[str, str] | None = None,
) -> AsyncIterator[Connection]:
    headers = (headers or {}) | ({"Authorization": f"Bearer {key}"} if key else {})
    secure = ssl.create_default_context() if url.startswith("wss:") else None
    connection = Connection(keep_deltas, terminals)
    await ws_connect(
        lambda: connection,
        url,
        ssl_context=secure,
        extra_headers=headers,
        max_frame_size=256 << 20,
    )
    try:
        yield connection
    finally:
        connection.close()
