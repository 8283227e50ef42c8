"""A relay between a client and a server that writes down what both say, turn by turn.

It may add members to requests (`steering`), since most clients have no way to ask a simulated model
for reasoning or a certain tool.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from served import free_port
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

TERMINAL = {"response.completed", "response.failed", "response.incomplete", "error"}
PASSED_ON = ("user-agent", "thread-id", "authorization", "accept")
START_S = 30

Json = dict[str, Any]
Steering = Callable[[Json], Json]
"""Members to add to a request, by what it is."""


@dataclass
class Exchange:
    """One turn as both sides wrote it."""

    request: Json
    events: list[Json] = field(default_factory=list)
    response: Json | None = None
    """Of an answer that was not streamed."""

    @property
    def input(self) -> list[Json]:
        """What the client sent, the items of a plain text too."""
        given = self.request.get("input") or []
        return [{"role": "user", "content": given}] if isinstance(given, str) else given

    @property
    def returned(self) -> list[Json]:
        """The items as `output_item.done` had them."""
        if self.response is not None:
            return list(self.response["output"])
        done = (event for event in self.events if event["type"] == "response.output_item.done")
        return [event["item"] for event in done]

    @property
    def response_id(self) -> str:
        last = self.response or self.events[-1]["response"]
        return str(last["id"])


class Recorder:
    """`exchanges` in the order of their requests."""

    def __init__(self, server_url: str, steering: Steering) -> None:
        self.exchanges: list[Exchange] = []
        self._server_url = server_url
        self._steering = steering
        self.app = Starlette(
            routes=[
                WebSocketRoute("/v1/responses", self._socket),
                Route("/v1/{path:path}", self._http, methods=["GET", "POST", "DELETE"]),
            ]
        )

    def begin(self, request: Json) -> tuple[Exchange, Json]:
        self.exchanges.append(Exchange(request))
        return self.exchanges[-1], request | self._steering(request)

    async def _socket(self, client: WebSocket) -> None:
        headers = {name: client.headers[name] for name in PASSED_ON if name in client.headers}
        agent = headers.pop("user-agent", None)
        url = f"ws{self._server_url.removeprefix('http')}/responses"
        await client.accept()
        async with connect(
            url, additional_headers=headers, user_agent_header=agent, max_size=None
        ) as server:
            waiting: dict[str | None, list[Exchange]] = {}
            forward = asyncio.create_task(self._forward(client, server, waiting))
            try:
                async for frame in server:
                    _note(json.loads(frame), waiting)
                    await client.send_text(str(frame))
            finally:
                forward.cancel()

    async def _forward(
        self,
        client: WebSocket,
        server: ClientConnection,
        waiting: dict[str | None, list[Exchange]],
    ) -> None:
        try:
            while True:
                exchange, request = self.begin(json.loads(await client.receive_text()))
                waiting.setdefault(request.get("stream_id"), []).append(exchange)
                await server.send(json.dumps(request))
        except (WebSocketDisconnect, ConnectionClosed):
            await server.close()

    async def _http(self, request: Request) -> Response:
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        url = f"{self._server_url}/{request.path_params['path']}"
        http = httpx.AsyncClient(timeout=None)
        if request.method != "POST":
            async with http:
                given = await http.request(request.method, url, headers=headers)
            return Response(given.content, given.status_code, media_type="application/json")
        exchange, body = self.begin(json.loads(await request.body()))
        if not body.get("stream"):
            async with http:
                given = await http.post(url, json=body, headers=headers)
            exchange.response = given.json()
            return Response(given.content, given.status_code, media_type="application/json")

        async def lines() -> AsyncIterator[str]:
            async with http, http.stream("POST", url, json=body, headers=headers) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        exchange.events.append(json.loads(line.removeprefix("data: ")))
                    yield f"{line}\n"

        return StreamingResponse(lines(), media_type="text/event-stream")


def _note(event: Json, waiting: dict[str | None, list[Exchange]]) -> None:
    """An event belongs to the first turn of its lane that has not ended."""
    turns = waiting[event.get("stream_id")]
    turns[0].events.append(event)
    if event["type"] in TERMINAL:
        turns.pop(0)


@contextmanager
def recorded(
    server_url: str, steering: Steering = lambda request: {}
) -> Iterator[tuple[str, Recorder]]:
    """The base URL of a relay to the server, and what it has heard."""
    recorder, port = Recorder(server_url, steering), free_port()
    config = uvicorn.Config(
        recorder.app,
        port=port,
        log_config=None,
        ws="websockets-sansio",
        ws_max_size=1 << 28,
        timeout_graceful_shutdown=5,
    )
    relay = uvicorn.Server(config)
    thread = threading.Thread(target=relay.run, daemon=True)
    thread.start()
    deadline = threading.Event()
    while not relay.started and thread.is_alive():
        deadline.wait(0.01)
    try:
        yield f"http://127.0.0.1:{port}/v1", recorder
    finally:
        relay.should_exit = True
        thread.join(START_S)
