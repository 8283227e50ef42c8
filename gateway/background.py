"""Turns that run on without their client. This gateway owns them by a lease that it renews."""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Mapping

from turnwire.actors.owned_tasks import OwnedTasks
from turnwire.gateway.background_turn import BackgroundTurn
from turnwire.gateway.observation import ObservedTurn
from turnwire.gateway.turns import Serving
from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import ApiError, Overloaded, RateLimitExceeded
from turnwire.pipelines.turn_request import TurnRequest

logger = logging.getLogger("turnwire.gateway")


class BackgroundTurns:
    """All of one gateway. `start`, and in the end `close`, which stops what still runs."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._settings = serving.settings.background
        self._owner = f"gateway_{secrets.token_hex(12)}"
        self._running: dict[str, BackgroundTurn] = {}
        self._tasks = OwnedTasks("background")

    def start(self) -> None:
        self._tasks.start(self._renew())

    async def close(self) -> None:
        await self._tasks.close()

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._running

    async def create(
        self, request: TurnRequest, observed: ObservedTurn, headers: Mapping[str, str]
    ) -> BackgroundTurn:
        """Returns when its record is committed; it goes on whatever becomes of the caller.

        Raises the ApiError of a request that is refused. The frame's bytes are given back to
        `inbound` by the turn.
        """
        try:
            self._admit(request.tenant)
        except ApiError:
            self._serving.inbound.give_back(len(request.frame))
            raise
        turn = BackgroundTurn(self._serving, request, self._owner, observed)
        self._running[turn.id] = turn
        turn.task = self._tasks.start(self._run(turn, request.tenant, headers))
        # Also of one that is cancelled before it ran at all.
        turn.task.add_done_callback(lambda _: self._over(turn))
        await asyncio.shield(turn.begun)
        return turn

    def stop(self, response_id: str) -> None:
        """It was ended by somebody else: stop its turn, if it runs here."""
        turn = self._running.get(response_id)
        if turn is not None and not turn.recorder.ending:
            turn.stop()

    def _admit(self, tenant: str) -> None:
        settings = self._settings
        if len(self._running) >= settings.max_running:
            raise Overloaded(
                f"{settings.max_running} background responses run at this gateway already; "
                "try again in a moment."
            )
        if Counter(turn.tenant for turn in self._running.values())[tenant] >= (
            settings.max_running_per_tenant
        ):
            # Those at other gateways are counted where the record is made.
            raise RateLimitExceeded(
                f"{settings.max_running_per_tenant} background responses run already; "
                "wait for one to end."
            )

    async def _run(self, turn: BackgroundTurn, tenant: str, headers: Mapping[str, str]) -> None:
        serving = self._serving
        try:
            serving.clients.enter(turn)
            async with serving.ports.leases.shared(tenant) as leased:
                await turn.run(serving.memory(leased, headers))
        except ApiError as error:
            turn.refuse(error)
        finally:
            serving.clients.leave(turn)

    def _over(self, turn: BackgroundTurn) -> None:
        turn.close()
        del self._running[turn.id]

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._settings.renew_s)
            ours = tuple(id for id, turn in self._running.items() if turn.recorder.leased)
            if not ours:
                continue
            command = m.RenewBackground(self._owner, ours, self._settings.lease_s)
            try:
                async with asyncio.timeout(self._settings.lease_s):
                    still = await self._serving.ports.background.renew(command)
            except (ApiError, TimeoutError) as error:
                logger.warning("background.not_renewed: %s", error or "no answer")
                continue
            for response_id in set(ours).difference(still.response_ids):
                self.stop(response_id)
