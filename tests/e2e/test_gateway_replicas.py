"""Several gateways listen on one port; what one of them stored the others continue. At last their
server is killed, and leaves no worker behind.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psutil
import pytest
from responses_client import Socket, open_socket
from running_server import RunningServer, command_of, wait_until
from served import free_port

from turnwire.cluster import local_ray

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

REPLICAS = 2
MOST_TRIES = 64
"""The kernel deals connections out at random: so many all with one are 1 in 2 ** 63."""
Connected = TypeVar("Connected")


@pytest.fixture(scope="module")
def replicated() -> Iterator[RunningServer]:
    settings = {
        "TURNWIRE_GATEWAY__REPLICAS": str(REPLICAS),
        "TURNWIRE_GATEWAY__PORT": str(free_port()),
    }
    running = RunningServer(settings)
    try:
        running.spawn()
        running.wait_until_ready()
        yield running
    finally:
        running.discard()  # it was killed


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def one_a_gateway(
    server: RunningServer, open_one: Callable[[], tuple[int, Connected]]
) -> dict[int, Connected]:
    """A connection to each gateway, by its process. `open_one`: with the port on our side."""
    found: dict[int, Connected] = {}
    gateways = [psutil.Process(pid) for pid in server.pids("ServeReplica:gateway")]
    assert len(gateways) == REPLICAS
    for _ in range(MOST_TRIES):
        port, connected = open_one()
        for gateway in gateways:
            peers = {one.raddr.port for one in gateway.net_connections("tcp") if one.raddr}
            if port in peers:
                found.setdefault(gateway.pid, connected)
        if len(found) == REPLICAS:
            return found
    raise AssertionError(f"{MOST_TRIES} connections went to {len(found)} gateways")


def one_socket_a_gateway(server: RunningServer, stack: ExitStack) -> dict[int, Socket]:
    def socket() -> tuple[int, Socket]:
        opened = stack.enter_context(open_socket(server.url))
        return opened.connection.local_address[1], opened

    return one_a_gateway(server, socket)


def get(connection: HTTPConnection, path: str) -> tuple[int, Any]:
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_a_stored_response_is_retrieved_and_continued_through_another_gateway(
    replicated: RunningServer, stack: ExitStack
) -> None:
    def http() -> tuple[int, HTTPConnection]:
        opened = HTTPConnection(urlsplit(replicated.url).netloc, timeout=60)
        stack.callback(opened.close)
        opened.connect()
        return opened.sock.getsockname()[1], opened

    sockets, clients = one_socket_a_gateway(replicated, stack), one_a_gateway(replicated, http)
    here, there = sockets
    kept = sockets[here].turn("sim-max", "remember:COLOUR=teal", store=True).succeeded()
    unkept = sockets[here].turn("sim-max", "hi").succeeded()
    for client in (clients[here], clients[there]):
        status, body = get(client, f"/v1/responses/{kept.id}")
        assert (status, body["id"]) == (200, kept.id)
    assert sockets[there].turn("sim-max", "recall:COLOUR", parent=kept).text == "teal"
    refused = sockets[there].turn("sim-max", "hi", parent=unkept)
    assert refused.error["code"] == "previous_response_not_found"


def test_a_history_in_full_is_known_through_whichever_gateway_it_came(
    replicated: RunningServer, stack: ExitStack
) -> None:
    here, there = one_socket_a_gateway(replicated, stack).values()

    def know_each_other() -> bool:
        """They find each other in the registry, which no client waits for."""
        items = [{"role": "user", "content": "hi"}]
        said = here.turn("sim-max", items, instructions="Who is there?").succeeded()
        items += [{"role": "assistant", "content": said.text}, {"role": "user", "content": "ho"}]
        again = there.turn("sim-max", items, instructions="Who is there?")
        return again.succeeded().cached_tokens > 0

    wait_until(know_each_other)
    items: list[dict[str, Any]] = []
    before = 0
    for number, socket in enumerate((here, there, there, here, there)):
        text = f"remember:K{number}={number} and recall:K0"
        items.append({"type": "message", "role": "user", "content": text})
        ended = socket.turn("sim-max", items, instructions="Be quick.").succeeded()
        assert (ended.text, ended.cached_tokens) == ("0", before)
        before = ended.input_tokens
        part = {"type": "output_text", "text": ended.text}
        items.append({"type": "message", "role": "assistant", "content": [part]})


def test_a_gateway_that_is_lost_leaves_the_port_to_the_other(
    replicated: RunningServer, stack: ExitStack
) -> None:
    victim = psutil.Process(replicated.pids("ServeReplica:gateway")[0])
    victim.kill()
    victim.wait(timeout=60)
    # Sockets that wait to be accepted die with it; new ones go to who still listens.
    socket = stack.enter_context(open_socket(replicated.url))
    assert socket.turn("sim-max", "recall:COLOUR").succeeded().text == "unknown"


def test_workers_end_with_a_server_that_is_killed_and_the_next_one_sweeps_up(
    replicated: RunningServer,
) -> None:
    ours = [*replicated.pids("ServeReplica"), *replicated.pids("PlacedConnectionActor")]
    assert len(ours) >= 7
    replicated.process.kill()
    replicated.wait_for_end()
    wait_until(lambda: not any(command_of(pid) for pid in ours))
    (left,) = (replicated.root / "r").iterdir()
    folder = local_ray.make_folder(str(replicated.root / "r"))
    assert not left.exists()
    folder.remove()
