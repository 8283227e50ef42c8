"""The terminal client, against a server that plays a script."""

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import pytest
from rich.console import Console
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from turnwire.cluster.chat import ChatFailed, converse, list_models

Event = dict[str, Any]


@contextmanager
def scripted(*turns: list[Event]) -> Iterator[tuple[str, list[Event]]]:
    """A server that answers each request with the next list; its URL and what it was sent."""
    received: list[Event] = []

    def play(socket: ServerConnection) -> None:
        for turn in turns:
            received.append(json.loads(socket.recv()))
            for event in turn:
                socket.send(json.dumps(event))
        socket.close(1012, "going")

    with running(serve(play, "127.0.0.1", 0)) as url:
        yield url, received


@contextmanager
def running(server: Server) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}/v1"
    finally:
        server.shutdown()
        thread.join()


def completed(response_id: str) -> Event:
    return {"type": "response.completed", "response": {"id": response_id}}


def talk(url: str, words: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.stdin", io.StringIO(words))
    console = Console(file=io.StringIO())
    converse(url, "m", None, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_second_line_continues_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    delta = {"type": "response.output_text.delta", "delta": "[bold]hi"}
    with scripted([delta, completed("resp_1")], [completed("resp_2")]) as (url, received):
        said = talk(url, "one\ntwo\n\n", monkeypatch)
    assert "[bold]hi" in said
    assert "previous_response_id" not in received[0]
    assert received[1]["previous_response_id"] == "resp_1"
    assert [request["input"] for request in received] == ["one", "two"]


def test_a_refusal_is_shown_and_the_next_line_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = {"type": "error", "status": 400, "error": {"code": "c", "message": "not so"}}
    with scripted([refusal], [completed("resp_2")]) as (url, received):
        said = talk(url, "one\ntwo\n\n", monkeypatch)
    assert "c: not so" in said
    assert "previous_response_id" not in received[1]


def test_a_server_that_goes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        scripted([completed("resp_1")]) as (url, _),
        pytest.raises(ChatFailed, match="closed the connection: going"),
    ):
        talk(url, "one\ntwo\n\n", monkeypatch)


def test_a_wrong_key_is_said() -> None:
    def refuse(connection: ServerConnection, _request: Request) -> Response:
        return connection.respond(HTTPStatus.UNAUTHORIZED, "no")

    with running(serve(lambda _: None, "127.0.0.1", 0, process_request=refuse)) as url:
        with pytest.raises(ChatFailed, match="wants an API key"):
            converse(url, "m", "wrong", Console(file=io.StringIO()))
        with pytest.raises(ChatFailed, match="wants an API key"):
            list_models(url, "wrong")


def test_no_server_is_said() -> None:
    with pytest.raises(ChatFailed, match=r"no server at .*start one with `turnwire serve`"):
        converse("http://127.0.0.1:9/v1", "m", None, Console(file=io.StringIO()))
    with pytest.raises(ChatFailed, match="no server at "):
        list_models("http://127.0.0.1:9/v1", None)
