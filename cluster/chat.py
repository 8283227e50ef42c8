"""A small client of the WebSocket mode: what `turnwire chat` and `turnwire models` do."""

import json
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from rich.console import Console
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

TIMEOUT_S = 10.0


class ChatFailed(Exception):
    """The server cannot be talked to; the message is one line for a person."""


def list_models(url: str, key: str | None) -> list[str]:
    request = Request(f"{url.rstrip('/')}/models", headers=_headers(key))
    try:
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            return [row["id"] for row in json.load(answer)["data"]]
    except HTTPError as error:
        raise ChatFailed(_refused(url, error.code)) from None
    except (URLError, OSError) as error:
        raise ChatFailed(_unreachable(url, error)) from None
    except (ValueError, KeyError):
        raise ChatFailed(f"{url} is not a Responses API server") from None


def converse(url: str, model: str, key: str | None, console: Console) -> None:
    """Read lines, stream the answers, until an empty line, end of input or Ctrl-C."""
    try:
        with _connected(url, key) as socket:
            console.print(f"{model} at {url}; an empty line ends", style="dim", markup=False)
            parent: str | None = None
            while line := console.input("[bold]> [/bold]").strip():
                parent = _turn(socket, model, line, parent, console)
    except (EOFError, KeyboardInterrupt):
        console.print()
    except ConnectionClosed as error:
        reason = (error.rcvd and error.rcvd.reason) or str(error)
        raise ChatFailed(f"the server closed the connection: {reason}") from None


def _connected(url: str, key: str | None) -> ClientConnection:
    address = f"ws{url.removeprefix('http').rstrip('/')}/responses"
    try:
        return connect(
            address, additional_headers=_headers(key), open_timeout=TIMEOUT_S, max_size=None
        )
    except InvalidStatus as error:
        raise ChatFailed(_refused(url, error.response.status_code)) from None
    except (OSError, WebSocketException) as error:
        raise ChatFailed(_unreachable(url, error)) from None


def _turn(
    socket: ClientConnection, model: str, text: str, parent: str | None, console: Console
) -> str | None:
    """One turn; returns the parent of the next."""
    request = {"type": "response.create", "model": model, "input": text, "store": False}
    socket.send(json.dumps(request | ({"previous_response_id": parent} if parent else {})))
    while True:
        event = json.loads(socket.recv())
        match event["type"]:
            case "response.output_text.delta":
                console.print(event["delta"], end="", markup=False, soft_wrap=True)
            case "response.completed" | "response.incomplete":
                console.print()
                response_id: str = event["response"]["id"]
                return response_id
            case "response.failed":
                _complain(console.print, event["response"]["error"])
                return None
            case "error":
                _complain(console.print, event["error"])
                return None


def _complain(show: Callable[..., None], error: dict[str, Any]) -> None:
    show(f"\n{error.get('code')}: {error.get('message')}", style="red", markup=False)


def _headers(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _refused(url: str, status: int) -> str:
    if status == 401:
        return f"{url} wants an API key: --key KEY"
    return f"{url} answered HTTP {status}; is it a turnwire server, and does the URL end in /v1?"


def _unreachable(url: str, error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return f"no server at {url}: {reason}; start one with `turnwire serve`"
