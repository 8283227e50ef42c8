"""kill -9 of storage, of PostgreSQL and of the gateway in the middle of stored turns.

Whatever a client saw completed is there afterwards, whole and once, and no turn hangs.
"""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from postgres import PostgresServer, rows_of
from responses_client import open_socket
from running_server import RunningServer, kill, wait_until
from websockets.exceptions import WebSocketException

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TURNS = 500
CLIENTS = 10


@pytest.fixture(scope="module")
def mortal_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def url(mortal_postgres: PostgresServer) -> str:
    return mortal_postgres.database()


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[RunningServer]:
    settings = {
        "TURNWIRE_STORAGE__URL": url,
        "TURNWIRE_STORAGE__REPLICAS": "2",
        "TURNWIRE_BILLING__URL": url,
    }
    with RunningServer(settings) as running:
        yield running


class Turns:
    """What the clients saw, and what is to be done when they have seen so many."""

    def __init__(self, deaths: dict[int, Callable[[], object]]) -> None:
        self.completed: dict[str, dict[str, Any]] = {}
        self.refused: set[str] = set()
        self._deaths = deaths
        self._lock = threading.Lock()

    @property
    def enough(self) -> bool:
        return len(self.completed) >= TURNS

    def see(self, event: dict[str, Any]) -> None:
        response = event.get("response", {})
        if event["type"] != "response.completed":
            error = event.get("error") or response["error"]
            self.refused.add(error["code"])
            return
        with self._lock:
            assert response["id"] not in self.completed
            self.completed[response["id"]] = response
            death = self._deaths.pop(len(self.completed), None)
        if death is not None:
            death()


def talk(server: RunningServer, turns: Turns) -> None:
    """One client: conversations over one socket after another, until all have seen enough."""
    while not turns.enough:
        try:
            with open_socket(server.url) as socket:
                parent = None
                while not turns.enough:
                    ended = socket.turn("sim-max", "go", parent, store=True)
                    turns.see(ended.event)
                    parent = ended if ended.type == "response.completed" else None
        except (OSError, WebSocketException):
            continue


def test_what_was_seen_completed_is_stored_whole_and_once(
    server: RunningServer, mortal_postgres: PostgresServer, url: str
) -> None:
    def restart_postgres() -> None:
        mortal_postgres.kill()
        mortal_postgres.start()

    turns = Turns(
        {
            100: lambda: kill(server, "ServeReplica:storage"),
            200: restart_postgres,
            300: lambda: kill(server, "ServeReplica:gateway"),
        }
    )
    with ThreadPoolExecutor(CLIENTS) as clients:
        for client in [clients.submit(talk, server, turns) for _ in range(CLIENTS)]:
            client.result()
    assert turns.refused <= {
        "server_is_overloaded",
        "rate_limit_exceeded",
        "previous_response_not_found",
    }
    rows = rows_of(url, "select response_id, response from responses")
    kept = {id: json.loads(response) for id, response in rows}
    assert len(kept) == len(rows)
    assert {id: kept.get(id) for id in turns.completed} == turns.completed

    def settled() -> set[str]:
        return {str(id) for (id,) in rows_of(url, "select response_id from usage_records")}

    # What the gateway still held when it was killed is lost with it; nothing of its successor is.
    last = set(list(turns.completed)[-100:])
    wait_until(lambda: last <= settled())
