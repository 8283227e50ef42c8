"""Who may listen on a port, alone or together."""

import socket
from collections.abc import Iterator

import pytest

from turnwire.gateway.port import Port, bind


@pytest.fixture
def number() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found: int = server.getsockname()[1]
        return found


@pytest.fixture
def first(number: int) -> Iterator[Port]:
    port = bind("127.0.0.1", number, "server-a")
    yield port
    port.close()


def test_gateways_of_one_server_listen_together(first: Port, number: int) -> None:
    second = bind("127.0.0.1", number, "server-a")
    assert second.listener.getsockname() == first.listener.getsockname()
    second.close()


@pytest.mark.parametrize("sharers", ["", "server-b"], ids=["alone", "another server"])
def test_nobody_else_listens_where_gateways_share(first: Port, number: int, sharers: str) -> None:
    with pytest.raises(OSError, match="already taken by another server"):
        bind("127.0.0.1", number, sharers)


@pytest.mark.parametrize("sharers", ["", "server-b"], ids=["alone", "shared"])
def test_a_port_that_one_has_alone_is_not_shared(number: int, sharers: str) -> None:
    alone = bind("127.0.0.1", number)
    with pytest.raises(OSError, match=f"port {number}: already taken by another server"):
        bind("127.0.0.1", number, sharers)
    alone.close()


def test_a_closed_port_can_be_had_by_another_server(first: Port, number: int) -> None:
    first.close()
    bind("127.0.0.1", number, "server-b").close()


def test_the_last_gateway_of_a_server_keeps_the_port_for_it(first: Port, number: int) -> None:
    second = bind("127.0.0.1", number, "server-a")
    first.close()
    with pytest.raises(OSError, match="already taken"):
        bind("127.0.0.1", number, "server-b")
    second.close()
