"""How the keys that seals are made with reach a gateway, and outlive the routing pool.

Whoever serves reads them from a file and gives them to routing; gateways ask there when they
start, and remind a routing that was replaced meanwhile. All of it by Ray call.
"""

import asyncio
import logging
from types import TracebackType
from typing import Self

from turnwire.actors.backoff import Backoff
from turnwire.actors.owned_tasks import OwnedTasks
from turnwire.actors.routing_ref import RoutingDoor
from turnwire.pipelines.protocol.errors import ApiError
from turnwire.pipelines.sealing import Keyring

_log = logging.getLogger(__name__)

REMIND_S = 30.0


class DeploymentKeys:
    """A block: at its beginning `keyring` is filled, as soon as routing has the keys."""

    def __init__(self, routing: RoutingDoor, keyring: Keyring, remind_s: float = REMIND_S) -> None:
        self._routing = routing
        self._keyring = keyring
        self._remind_s = remind_s
        self._tasks = OwnedTasks("keys")

    async def __aenter__(self) -> Self:
        backoff = Backoff()
        while True:
            try:
                self._keyring.fill(await self._routing.keys())
                break
            except ApiError as error:
                _log.info("keys.awaited: %s", error)
                await asyncio.sleep(backoff.next_s())
        self._tasks.start(self._remind())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._tasks.close()

    async def _remind(self) -> None:
        while True:
            await asyncio.sleep(self._remind_s)
            try:
                await self._routing.keep_keys(self._keyring.packed())
            except ApiError as error:
                _log.warning("keys.not_kept: %s", error)
