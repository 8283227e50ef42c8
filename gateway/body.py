"""The body of a request, charged to the budget of all that the gateway holds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from turnwire.gateway.turns import Serving
from turnwire.pipelines.protocol.errors import InvalidRequest


async def read_body(request: Request, serving: Serving) -> bytes:
    """Raises before it is too big. Whoever is done with it gives its bytes back to `inbound`."""
    inbound, limit = serving.inbound, serving.settings.max_message_bytes
    chunks: list[bytes] = []
    taken = 0
    try:
        async for chunk in request.stream():
            if taken + len(chunk) > limit:
                raise InvalidRequest(f"The request is bigger than the limit of {limit} bytes.")
            inbound.take(len(chunk))
            taken += len(chunk)
            chunks.append(chunk)
    except BaseException:
        inbound.give_back(taken)
        raise
    return b"".join(chunks)


@asynccontextmanager
async def held_body(request: Request, serving: Serving) -> AsyncIterator[bytes]:
    """The body, held for the length of the block. Raises as `read_body`."""
    body = await read_body(request, serving)
    try:
        yield body
    finally:
        serving.inbound.give_back(len(body))
