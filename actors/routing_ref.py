"""The typed door to the routing pool over Ray: what may not travel on a channel goes this way."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from ray.exceptions import RayError, RayTaskError

from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import ApiError, Internal, Overloaded

CALL_S = 10.0
"""A Ray call that takes longer finds the pool gone; callers try again."""


class RoutingDoor(Protocol):
    """The control plane as workers and gateways need it. Every failure is an ApiError."""

    async def register(self, worker: m.Worker, secret: bytes) -> tuple[m.Endpoint, bytes]:
        """Announce a worker; the answer is where it attaches, and that channel's secret."""

    async def door(self) -> tuple[m.Endpoint, bytes]:
        """Where routing listens, and that channel's secret."""

    async def secret_of(self, worker_id: str) -> bytes:
        """What a worker's listener asks of peers on other nodes."""

    async def keys(self) -> bytes:
        """The keys of the deployment's `Keyring`. Overloaded while routing has none."""

    async def keep_keys(self, keys: bytes) -> None:
        """For whoever asks next; nothing changes where there are some already."""


class RoutingRef:
    """RoutingDoor over a Ray actor handle or a Serve handle of a `RoutingActor`.

    `resolve` finds the handle; it may block, and is asked anew for every call, so that a restarted
    pool is found.
    """

    # Any: Ray's handles have no static type.
    def __init__(self, resolve: Callable[[], Any]) -> None:
        self._resolve = resolve

    async def register(self, worker: m.Worker, secret: bytes) -> tuple[m.Endpoint, bytes]:
        return _door(await self._ask("register", msgspec.msgpack.encode(worker), secret))

    async def door(self) -> tuple[m.Endpoint, bytes]:
        return _door(await self._ask("door"))

    async def secret_of(self, worker_id: str) -> bytes:
        secret: bytes = await self._ask("secret_of", worker_id)
        return secret

    async def keys(self) -> bytes:
        keys: bytes = await self._ask("keys")
        return keys

    async def keep_keys(self, keys: bytes) -> None:
        await self._ask("keep_keys", keys)

    async def _ask(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 -- Ray's answer
        try:
            async with asyncio.timeout(CALL_S):
                handle = await asyncio.to_thread(self._resolve)
                return await getattr(handle, method).remote(*arguments)
        except TimeoutError as error:
            raise Overloaded(f"routing did not answer within {CALL_S:g} s") from error
        except Exception as error:
            raise _unwrap(error) from error


def _door(answer: tuple[bytes, bytes]) -> tuple[m.Endpoint, bytes]:
    endpoint, secret = answer
    return msgspec.msgpack.decode(endpoint, type=m.Endpoint), secret


def _unwrap(error: Exception) -> ApiError:
    """The error as the actor raised it; anything of Ray's own means that routing is away."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, ApiError):
        return cause
    if isinstance(error, RayTaskError):
        return Internal("routing failed")
    if isinstance(error, RayError):
        return Overloaded("routing went away")
    return Overloaded(f"routing cannot be found: {type(error).__name__}")
