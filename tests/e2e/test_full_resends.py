"""Clients that send everything again: what was said before is not evaluated anew."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any

import pytest
from openai import OpenAI
from responses_client import Ended, Socket, open_socket
from running_server import RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

_numbers = count(1)

Where = Callable[[RunningServer, "Talk"], AbstractContextManager[tuple[Socket, Ended]]]


class Talk:
    """A conversation whose client keeps all of it, as Codex does: without ids and statuses."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {"temperature": 0.0, "max_output_tokens": 12}
        self.options["instructions"] = f"You are clerk number {next(_numbers)}."
        self.items: list[dict[str, Any]] = []

    def ask(self, text: str) -> list[dict[str, Any]]:
        part = {"type": "input_text", "text": text}
        self.items.append({"type": "message", "role": "user", "content": [part]})
        return self.items

    def heard(self, ended: Ended) -> Ended:
        part = {"type": "output_text", "text": ended.succeeded().text}
        self.items.append({"type": "message", "role": "assistant", "content": [part]})
        return ended


def continued(socket: Socket, talk: Talk) -> Ended:
    """Two turns, the second with only what is new."""
    first = talk.heard(socket.turn("smollm2", talk.ask("Name a river."), **talk.options))
    new = talk.ask("And a city on it?")[-1:]
    return talk.heard(socket.turn("smollm2", new, first, **talk.options))


@contextmanager
def same_socket(server: RunningServer, talk: Talk) -> Iterator[tuple[Socket, Ended]]:
    with open_socket(server.url) as socket:
        yield socket, continued(socket, talk)


@contextmanager
def second_socket(server: RunningServer, talk: Talk) -> Iterator[tuple[Socket, Ended]]:
    with open_socket(server.url) as first, open_socket(server.url) as second:
        yield second, continued(first, talk)


@contextmanager
def other_actor(server: RunningServer, talk: Talk) -> Iterator[tuple[Socket, Ended]]:
    """The first socket is closed; others came before the client is back, and took its actor."""
    with open_socket(server.url) as first:
        before = continued(first, talk)
    with (
        open_socket(server.url) as other,
        open_socket(server.url) as another,
        open_socket(server.url) as again,
    ):
        for socket in (other, another):
            socket.turn("sim-max", "hi").succeeded()
        yield again, before


@pytest.mark.parametrize("where", [same_socket, second_socket, other_actor])
def test_a_history_in_full_is_evaluated_no_further_than_its_continuation(
    server: RunningServer, where: Where
) -> None:
    talk = Talk()
    with where(server, talk) as (socket, before):
        again = socket.turn("smollm2", talk.ask("And another one?"), **talk.options).succeeded()
    assert again.cached_tokens == before.input_tokens + before.output_tokens - 1


def test_the_same_holds_over_http(server: RunningServer) -> None:
    talk = Talk()
    with OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        before = None
        for text in ("Name a river.", "And a city on it?", "And another one?"):
            items: Any = talk.ask(text)
            answer = client.responses.create(model="smollm2", input=items, **talk.options)
            ended = Ended({"type": "response.completed", "response": answer.to_dict()})
            talk.heard(ended)
            if before is not None:
                assert ended.cached_tokens == before.input_tokens + before.output_tokens - 1
            before = ended


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_the_simulated_worker_holds_what_is_sent_again(
    server: RunningServer, transport: str
) -> None:
    talk = Talk()
    talk.options = {"instructions": talk.options["instructions"]}
    with open_socket(server.url) as socket, OpenAI(base_url=server.url, api_key="none") as client:
        before = None
        for number in range(4):
            items: Any = talk.ask(f"remember:K{number}={number} and recall:K0")
            if transport == "websocket":
                ended = socket.turn("sim-max", items, **talk.options)
            else:
                answer = client.responses.create(model="sim-max", input=items, **talk.options)
                ended = Ended({"type": "response.completed", "response": answer.to_dict()})
            talk.heard(ended)
            assert ended.text == "0"
            if before is not None:
                assert ended.cached_tokens == before.input_tokens
            before = ended
