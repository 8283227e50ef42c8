"""The sampled check of prompts in a connection actor: in a thread, when the turn is over."""

import asyncio
import logging
import os

from turnwire.actors.owned_tasks import OwnedTasks
from turnwire.pipelines.prompts.check import PromptCheck

_log = logging.getLogger(__name__)


class PromptChecks:
    """Every so many turns one is checked; none while another is. `close` waits for it."""

    def __init__(self, every: int) -> None:
        self._every = every
        # Actors that serve few turns are sampled as often as others, all together.
        self._left = int.from_bytes(os.urandom(4), "big") % every + 1 if every else 0
        self._tasks = OwnedTasks("prompt checks")
        self._checking = False
        self.checked = 0
        self.mismatched = 0

    def over(self, check: PromptCheck) -> None:
        """A turn is over."""
        self._left -= 1
        if self._left == 0 and self._every:
            self._left = self._every
            if not self._checking:
                self._checking = True
                self._tasks.start(self._check(check))

    async def close(self) -> None:
        await self._tasks.close()

    async def _check(self, check: PromptCheck) -> None:
        try:
            matches = await asyncio.to_thread(check.matches)
        finally:
            self._checking = False
        self.checked += 1
        if not matches:
            self.mismatched += 1
            # Nothing of what it says.
            mark = check.turn.mark
            tokens = mark.tokens if mark is not None else 0
            _log.error(
                "connection.prompt_mismatch response_id=%s model=%s tokens=%d",
                check.turn.response_id,
                check.turn.model,
                tokens,
            )
