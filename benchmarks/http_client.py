"""The same agent over HTTP: one kept connection, whole histories, answers as server-sent events."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import orjson
from agent_client import WAIT_S, Turn

_COMPLETED = b"event: response.completed\n"
_MAX_LINE_BYTES = 64 << 20


class HttpConnection:
    """One request at a time."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        path: str,
        headers: Mapping[str, str],
    ) -> None:
        self._reader = reader
        self._writer = writer
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{lines}"
        )

    async def turn(self, body: bytes) -> Turn:
        """Send it and wait for its end. Raises ConnectionError when it does not complete."""
        begin_s = time.perf_counter()
        self._writer.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(WAIT_S):
            status = await self._reader.readline()
            while (await self._reader.readline()).strip():
                pass
            if b" 200 " not in status:
                raise ConnectionError(status.decode())
            events = await self._events()
        turn = Turn(ended_s=time.perf_counter() - begin_s)
        at = events.rfind(_COMPLETED)
        if at < 0:
            raise ConnectionError(events[-500:].decode())
        data = events[at + len(_COMPLETED + b"data: ") :].split(b"\n", 1)[0]
        turn.response = orjson.loads(data)["response"]
        return turn

    async def _events(self) -> bytes:
        chunks: list[bytes] = []
        while size := int(await self._reader.readline(), 16):
            chunks.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readline()
        return b"".join(chunks)

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def http_connected(url: str, headers: Mapping[str, str]) -> AsyncIterator[HttpConnection]:
    """`url`: the server's, with `/v1`."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port, limit=_MAX_LINE_BYTES
    )
    connection = HttpConnection(reader, writer, f"{parts.path}/responses", headers)
    try:
        yield connection
    finally:
        connection.close()
