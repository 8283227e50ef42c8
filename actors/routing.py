"""The routing pool: who is there, who serves what. One process; its state is the workers' word.

A worker registers by a Ray call, then attaches on a channel; the channel's end is its end. After a
restart of this process the workers notice their lost channels and register again.
"""

import asyncio
import random
import secrets
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from turnwire.actors.channel import Caller, Listener, UnaryHandler
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings
from turnwire.pipelines.protocol.errors import Forbidden, NotFound, Overloaded
from turnwire.pipelines.routing import RoutingTable

MAX_REGISTERED = 4096
"""Workers whose secrets are kept, live or not yet attached."""


@dataclass
class _Registered:
    """What a worker said by Ray call: only such a worker may attach."""

    secret: bytes
    caller: Caller | None = None
    """Its channel, once attached."""


class RoutingActor:
    """`start`, then Ray calls of workers and gateways and channel calls, then `close`."""

    def __init__(
        self,
        id: str,
        node: str,
        channel: ChannelSettings,
        known_models: Iterable[str] = (),
        rng: random.Random | None = None,
    ) -> None:
        self._table = RoutingTable(rng or random.Random(secrets.randbits(64)))
        self._table.know(known_models)
        self._registered: dict[str, _Registered] = {}
        self._keys = b""
        self._changed = asyncio.Event()
        self._endpoint: m.Endpoint | None = None
        unary: dict[type[m.Message], UnaryHandler] = {
            m.Attach: self._attach,
            m.Report: self._report,
            m.Resolve: self._resolve,
        }
        self._listener = Listener(
            id, node, unary, {m.Watch: self._watch}, channel, on_lost=self._lost
        )

    async def start(self, folder: Path, tcp_host: str | None = None) -> m.Endpoint:
        endpoint = await self._listener.start(folder=folder, tcp_host=tcp_host)
        self._endpoint = endpoint
        return endpoint

    async def close(self) -> None:
        await self._listener.close()

    # --- Ray calls: the control plane, where secrets may travel ---------------------------------

    async def register(self, worker: bytes, secret: bytes) -> tuple[bytes, bytes]:
        """Announce a worker and its channel's secret; answered as `door`, where it attaches."""
        told = msgspec.msgpack.decode(worker, type=m.Worker)
        kept = self._registered.pop(told.endpoint.id, None)
        if kept is None and len(self._registered) >= MAX_REGISTERED:
            self._forget_one_unattached()
        caller = None if kept is None else kept.caller
        self._registered[told.endpoint.id] = _Registered(secret, caller)
        return await self.door()

    async def door(self) -> tuple[bytes, bytes]:
        """Our own endpoint (MessagePack) and secret. Raises Overloaded before `start`."""
        if self._endpoint is None:
            raise Overloaded("routing is starting")
        return msgspec.msgpack.encode(self._endpoint), self._listener.secret

    async def secret_of(self, worker_id: str) -> bytes:
        """What a peer on another node must prove to dial the worker. Raises NotFound."""
        registered = self._registered.get(worker_id)
        if registered is None:
            raise NotFound(f"no worker {worker_id!r} is registered")
        return registered.secret

    async def keys(self) -> bytes:
        """What seals are made with. Raises Overloaded until somebody brought it."""
        if not self._keys:
            raise Overloaded("the keys that seals are made with have not arrived yet")
        return self._keys

    async def keep_keys(self, keys: bytes, *, anew: bool = False) -> None:
        """`anew`: in place of those that are here."""
        if anew or not self._keys:
            self._keys = keys

    # --- channel calls --------------------------------------------------------------------------

    def _attach(self, command: m.Attach, caller: Caller) -> m.Done:
        worker = command.worker
        registered = self._registered.get(worker.endpoint.id)
        if registered is None:
            raise Forbidden(f"the worker {worker.endpoint.id!r} has not registered")
        registered.caller = caller
        self._publish(self._table.attach(worker))
        return m.Done()

    def _report(self, command: m.Report, _caller: Caller) -> m.Done:
        self._table.report(command)
        return m.Done()

    def _resolve(self, command: m.Resolve, _caller: Caller) -> m.Route:
        return self._table.resolve(command.model, command.keep)

    async def _watch(self, _command: m.Watch, _caller: Caller) -> AsyncGenerator[m.Registry, None]:
        """A slow watcher skips registries that were replaced meanwhile; it never queues them."""
        while True:
            changed = self._changed
            yield self._table.registry()
            await changed.wait()

    def _lost(self, caller: Caller) -> None:
        """Its workers are gone, except one that has attached anew on another channel."""
        gone = [id for id, worker in self._registered.items() if worker.caller is caller]
        for worker_id in gone:
            del self._registered[worker_id]
            self._publish(self._table.lost(worker_id))

    def _publish(self, changed: bool) -> None:
        if changed:
            self._changed.set()
            self._changed = asyncio.Event()

    def _forget_one_unattached(self) -> None:
        for worker_id, registered in self._registered.items():
            if registered.caller is None:
                del self._registered[worker_id]
                return
        raise Overloaded(f"{MAX_REGISTERED} workers are registered")
