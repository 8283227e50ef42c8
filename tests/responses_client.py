"""A client of the Responses API for tests: frames out, events in, nothing hidden."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

Event = dict[str, Any]

TERMINALS = ("response.completed", "response.incomplete", "response.failed", "error")
RUNNING = ("queued", "in_progress")
"""States of a response in the background that is not over."""
DELTA = "response.output_text.delta"
PATIENCE_S = 120.0
"""A test that waits so long for one event has failed."""


@dataclass(frozen=True)
class Ended:
    """How a turn ended: its last event."""

    event: Event

    @property
    def type(self) -> str:
        found: str = self.event["type"]
        return found

    @property
    def response(self) -> Event:
        found: Event = self.event["response"]
        return found

    @property
    def id(self) -> str:
        found: str = self.response["id"]
        return found

    @property
    def error(self) -> Event:
        """Of a turn that failed, or was refused before it had an id."""
        holder = self.event if self.type == "error" else self.response
        found: Event = holder["error"]
        return found

    @property
    def text(self) -> str:
        messages = (item for item in self.response["output"] if item["type"] == "message")
        return "".join(part["text"] for item in messages for part in item["content"])

    @property
    def input_tokens(self) -> int:
        return int(self.response["usage"]["input_tokens"])

    @property
    def cached_tokens(self) -> int:
        return int(self.response["usage"]["input_tokens_details"]["cached_tokens"])

    @property
    def output_tokens(self) -> int:
        return int(self.response["usage"]["output_tokens"])

    def succeeded(self) -> Self:
        assert self.type in ("response.completed", "response.incomplete"), self.event
        return self


@dataclass(frozen=True)
class Socket:
    """One WebSocket."""

    connection: ClientConnection

    def create(
        self, model: str, input: object, parent: Ended | None = None, **body: object
    ) -> None:
        """Ask for a response and do not wait; `store` is false unless it is given."""
        request = {"type": "response.create", "model": model, "input": input, "store": False}
        if parent is not None:
            request["previous_response_id"] = parent.id
        self.connection.send(json.dumps(request | body))

    def next(self) -> Event:
        event: Event = json.loads(self.connection.recv(timeout=PATIENCE_S))
        return event

    def wait_for(self, *types: str) -> Event:
        while True:
            event = self.next()
            if event["type"] in types:
                return event
            assert event["type"] not in TERMINALS, event

    def end(self) -> Ended:
        """The end of the turn that runs."""
        return Ended(self.wait_for(*TERMINALS))

    def turn(self, model: str, input: object, parent: Ended | None = None, **body: object) -> Ended:
        self.create(model, input, parent, **body)
        return self.end()

    def drop(self) -> None:
        """As when a cable is cut: the connection ends without a word."""
        self.connection.socket.shutdown(socket.SHUT_RDWR)


@contextmanager
def open_socket(url: str, key: str | None = None) -> Iterator[Socket]:
    """`url`: the base URL, with `/v1`."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    address = f"ws{url.removeprefix('http')}/responses"
    # Nothing is limited or pinged on this side: tests look at what the server does.
    with connect(
        address,
        additional_headers=headers,
        max_size=None,
        ping_interval=None,
        close_timeout=2,
        open_timeout=PATIENCE_S,
    ) as connection:
        yield Socket(connection)
