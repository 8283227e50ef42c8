"""Clients that come all at once, leave without a word, or do not read."""

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from responses_client import DELTA, Socket, open_socket
from running_server import RunningServer, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CROWD = 50
FLOOD = 900_000
"""Tokens of four characters, whose events are four times as long: more than may wait."""
LONG = "word " * 3000
"""Some 3000 tokens: half a minute of prefill on one core."""
STEPS = 12
"""Steps of the worker a cancel may take to be felt, counted by the tokens of another stream. The
long prompt alone would take near a hundred."""

Leave = Callable[[], None]


def test_fifty_sockets_opened_at_once_are_all_served(server: RunningServer) -> None:
    """More than there are warm actors: they share actors, and nobody is refused."""
    for _ in range(2):
        with ExitStack() as stack:
            sockets = opened_together(server, stack)
            for number, each in enumerate(sockets):
                each.create("sim-1000", f"remember:N={number}")
            firsts = [each.end().succeeded() for each in sockets]
            for each, first in zip(sockets, firsts, strict=True):
                each.create("sim-1000", "recall:N", first)
            assert [each.end().text for each in sockets] == [str(n) for n in range(CROWD)]
    assert len(server.pids("PlacedConnectionActor")) < CROWD
    (gateway,) = map(psutil.Process, server.pids("ServeReplica:gateway"))
    port = urlsplit(server.url).port
    wait_until(
        lambda: (
            not [
                one
                for one in gateway.net_connections("tcp")
                if one.raddr and one.laddr.port == port
            ]
        )
    )


def opened_together(server: RunningServer, stack: ExitStack) -> list[Socket]:
    barrier = threading.Barrier(CROWD)

    def come(_: int) -> Socket:
        barrier.wait()
        return stack.enter_context(open_socket(server.url))

    with ThreadPoolExecutor(CROWD) as threads:
        return list(threads.map(come, range(CROWD)))


@contextmanager
def over_websocket(server: RunningServer) -> Iterator[Leave]:
    with open_socket(server.url) as client:
        client.create("smollm2", LONG)
        client.wait_for("response.in_progress")
        yield client.drop


@contextmanager
def over_http(server: RunningServer, *, stream: bool) -> Iterator[Leave]:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    body = {"model": "smollm2", "input": LONG, "store": False, "stream": stream}
    connection.request("POST", "/v1/responses", json.dumps(body))
    assert connection.sock is not None
    if stream:
        assert b"response.in_progress" in until(connection.sock, b"in_progress")
    try:
        yield connection.close
    finally:
        connection.close()


def until(connection: socket.socket, word: bytes) -> bytes:
    seen = b""
    while word not in seen:
        seen += connection.recv(65536)
    return seen


@contextmanager
def over_http_stream(server: RunningServer) -> Iterator[Leave]:
    with over_http(server, stream=True) as leave:
        yield leave


@contextmanager
def over_http_json(server: RunningServer) -> Iterator[Leave]:
    with over_http(server, stream=False) as leave:
        yield leave


@pytest.mark.parametrize("transport", [over_websocket, over_http_stream, over_http_json])
def test_a_client_that_goes_in_its_prefill_gives_its_slot_to_the_next(
    server: RunningServer,
    transport: Callable[[RunningServer], AbstractContextManager[Leave]],
) -> None:
    """The model has two slots: `story` runs in one, the client that goes holds the other."""
    talk: dict[str, Any] = {"temperature": 0.0, "max_output_tokens": 1000}
    with open_socket(server.url) as observer, transport(server) as leave:
        observer.create("smollm2", "Repeat the word hello for ever.", stream_id="story", **talk)
        steps_until(observer, DELTA, "story")
        observer.create("smollm2", "Say hello.", stream_id="next", **talk)
        steps_until(observer, "response.in_progress", "next")
        for _ in range(3):
            assert observer.wait_for(DELTA)["stream_id"] == "story"
        leave()
        assert steps_until(observer, DELTA, "next") <= STEPS


def steps_until(observer: Socket, type: str, lane: str) -> int:
    """Pieces of the story told before that event."""
    steps = 0
    while True:
        event = observer.next()
        assert event["type"] not in ("error", "response.failed"), event
        if (event["type"], event["stream_id"]) == (type, lane):
            return steps
        steps += event["type"] == DELTA


def test_a_client_that_stops_reading_is_cut_off_while_others_are_served(
    server: RunningServer,
) -> None:
    log = server.log_folder / "gateway-0.log"
    with open_socket(server.url) as other, StuckClient(server) as stuck:
        other.create("sim-250", "x", stream_id="story", **tokens(100_000))
        other.wait_for(DELTA)
        for number in range(16):
            stuck.create({"input": "x", "stream_id": f"lane{number}"} | tokens(FLOOD))
        while "connection.cut_off" not in log.read_text():
            other.wait_for(DELTA)
        other.wait_for(DELTA)
        assert b"response.completed" not in stuck.rest()


def test_an_answer_larger_than_may_wait_reaches_a_client_that_reads(
    server: RunningServer,
) -> None:
    with open_socket(server.url) as socket:
        whole = socket.turn("sim-max", "x", **tokens(FLOOD)).succeeded()
    assert (whole.output_tokens, len(whole.text)) == (FLOOD, 4 * FLOOD)


def tokens(count: int) -> dict[str, Any]:
    return {"max_output_tokens": count, "metadata": {"sim.output_tokens": str(count)}}


class StuckClient:
    """A WebSocket on a bare socket: it sends, and reads nothing after the handshake."""

    def __init__(self, server: RunningServer) -> None:
        address = urlsplit(server.url)
        self._socket = socket.create_connection((address.hostname, address.port), timeout=60)
        self._socket.sendall(
            b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert b"101" in until(self._socket, b"\r\n\r\n")

    def create(self, request: dict[str, object]) -> None:
        every = {"type": "response.create", "model": "sim-max", "store": False}
        payload = json.dumps(every | request).encode()
        # A masked text frame; the mask of zeros leaves the payload as it is.
        head = b"\x81" + bytes((0x80 | 126,)) + len(payload).to_bytes(2, "big") + bytes(4)
        self._socket.sendall(head + payload)

    def rest(self) -> bytes:
        """All that still comes, to the end of the connection."""
        seen = b""
        try:
            while data := self._socket.recv(1 << 20):
                seen += data
        except ConnectionResetError:
            pass
        return seen

    def __enter__(self) -> "StuckClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
