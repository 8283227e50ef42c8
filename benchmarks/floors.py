"""What a turn cannot do without, as servers that do nothing else: a benchmark measures them beside.

`echo`: a WebSocket that sends each frame back; one process. `hops`: a WebSocket behind which two
more processes are asked one after the other over Unix sockets, as a turn asks its connection's
actor and its worker, with as many bytes each way as a Codex-sized continuation has.
"""

import asyncio
import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

ANSWER = b"{" + b"." * 59_900 + b"}"
"""Three events that repeat 19 KB of tools, and some short ones."""
WAYS = {"actor": (23_000, 4_900), "worker": (2_650, 220)}
"""Bytes there and back."""
START_S = 30.0


class Asked(asyncio.Protocol):
    """One who is asked: so many bytes are a question, and get so many back."""

    def __init__(self, question: int, answer: int) -> None:
        self._question, self._answer = question, b"." * answer
        self._came = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._came += len(data)
        while self._came >= self._question:
            self._came -= self._question
            self._transport.write(self._answer)


class Asking(asyncio.Protocol):
    """One who asks."""

    def __init__(self, question: int, answer: int) -> None:
        self._question, self._answer = b"." * question, answer
        self._came = 0
        self._answered: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._came += len(data)
        if self._came >= self._answer and self._answered is not None:
            self._came -= self._answer
            self._answered.set_result(None)

    def ask(self) -> asyncio.Future[None]:
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(self._question)
        return self._answered


def serve_asked(path: str, question: int, answer: int, pipe: Pipe) -> None:
    """A process that is asked, until it is killed."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Asked(question, answer), path)
        pipe.send(0)
        await server.serve_forever()

    uvloop.run(main())


def serve_websocket(ways: dict[str, tuple[str, int, int]], pipe: Pipe) -> None:
    """A WebSocket whose process asks them in turn; with nobody to ask it sends frames back."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        asking = [
            (await loop.create_unix_connection(lambda q=q, a=a: Asking(q, a), path))[1]
            for path, q, a in ways.values()
        ]

        async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 -- ASGI
            await receive()
            await send({"type": "websocket.accept"})
            while (message := await receive())["type"] == "websocket.receive":
                for one in asking:
                    await one.ask()
                answer = ANSWER.decode() if asking else message["text"]
                await send({"type": "websocket.send", "text": answer})

        config = uvicorn.Config(
            app,
            port=0,
            ws="websockets-sansio",
            ws_max_size=128 << 20,
            ws_per_message_deflate=False,
            lifespan="off",
            log_level="warning",
        )
        server = uvicorn.Server(config)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110 -- uvicorn has no event for it
                await asyncio.sleep(0.01)
            pipe.send(server.servers[0].sockets[0].getsockname()[1])

    uvloop.run(main())


@contextmanager
def floors() -> Iterator[dict[str, str]]:
    """The WebSocket URL of each; their processes are killed at the end."""
    context = multiprocessing.get_context("spawn")
    started = []

    def start(serve: Any, *args: object) -> int:  # noqa: ANN401 -- a function for a process
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(*args, there))
        process.start()
        started.append(process)
        if not here.poll(START_S):
            raise SystemExit("a floor's process did not start")
        said: int = here.recv()
        return said

    with tempfile.TemporaryDirectory() as folder:
        try:
            ways = {
                name: (str(Path(folder) / name), there, back)
                for name, (there, back) in WAYS.items()
            }
            for way in ways.values():
                start(serve_asked, *way)
            ports = {"echo": start(serve_websocket, {}), "hops": start(serve_websocket, ways)}
            yield {name: f"ws://127.0.0.1:{port}/" for name, port in ports.items()}
        finally:
            for process in started:
                process.kill()
                process.join()
