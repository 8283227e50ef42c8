"""kill -9 of storage, of PostgreSQL and of the gateway in the middle of stored turns, and of others
that run in the background.

Whatever a client saw completed is there afterwards, whole and once, and no turn hangs.
"""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI
from postgres import PostgresServer, rows_of
from responses_client import RUNNING, open_socket
from running_server import RunningServer, kill, wait_until
from websockets.exceptions import WebSocketException

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TURNS = 500
TURNS_AFTER = 100
"""All deaths."""
CLIENTS = 10
BACKGROUND_A_DEATH = 34


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
        self._to_come = len(deaths)
        self.before_last_death = 0
        self._lock = threading.Lock()

    @property
    def enough(self) -> bool:
        wanted = max(TURNS, self.before_last_death + TURNS_AFTER)
        return self._to_come == 0 and len(self.completed) >= wanted

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
            with self._lock:
                self.before_last_death = len(self.completed)
                self._to_come -= 1


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


class Background:
    """Responses that run when something dies, and how they ended."""

    def __init__(self, url: str) -> None:
        self.ended: dict[str, dict[str, Any]] = {}
        self._client = OpenAI(base_url=url, api_key="none", max_retries=0)
        self._running: list[str] = []

    def before(self, death: Callable[[], object]) -> None:
        """Let responses run, which would take 2 s, and then let it come."""
        for _ in range(BACKGROUND_A_DEATH):
            wait_until(self._one_more)
        death()

    def _one_more(self) -> bool:
        """Has one begun? The death before may have it refused for a while."""
        try:
            response = self._client.responses.create(
                model="sim-250",
                input="go",
                background=True,
                metadata={"sim.output_tokens": "500"},
                max_output_tokens=500,
            )
        except (openai.APIConnectionError, openai.InternalServerError):
            return False
        self._running.append(response.id)
        return True

    def is_over(self) -> bool:
        for id in self._running.copy():
            try:
                response = self._client.responses.with_raw_response.retrieve(id).http_response
            except (openai.APIConnectionError, openai.InternalServerError):
                return False
            found = response.json()
            if found["status"] in RUNNING:
                return False
            self.ended[id] = found
            self._running.remove(id)
        return True


def test_what_was_seen_completed_is_stored_whole_and_once(
    server: RunningServer, mortal_postgres: PostgresServer, url: str
) -> None:
    def restart_postgres() -> None:
        mortal_postgres.kill()
        mortal_postgres.start()

    background = Background(server.url)
    turns = Turns(
        {
            100: lambda: background.before(lambda: kill(server, "ServeReplica:storage")),
            200: lambda: background.before(restart_postgres),
            300: lambda: background.before(lambda: kill(server, "ServeReplica:gateway")),
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
    wait_until(background.is_over)
    assert len(background.ended) == 3 * BACKGROUND_A_DEATH
    assert {one["status"] for one in background.ended.values()} <= {"completed", "failed"}
    seen = turns.completed | {
        id: one for id, one in background.ended.items() if one["status"] == "completed"
    }
    rows = rows_of(url, "select response_id, response from responses")
    kept = {id: json.loads(response) for id, response in rows}
    assert len(kept) == len(rows)
    assert {id: kept.get(id) for id in seen} == seen

    def settled() -> set[str]:
        return {str(id) for (id,) in rows_of(url, "select response_id from usage_records")}

    # What the gateway still held when it was killed is lost with it; nothing of its successor is.
    last = set(list(turns.completed)[turns.before_last_death + CLIENTS :])
    wait_until(lambda: last <= settled())
