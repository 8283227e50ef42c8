"""The verdict on a turn's new text, formed while the worker already evaluates the prompt."""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Literal

from turnwire.pipelines.messages import Screen, Screened
from turnwire.pipelines.ports import Safety
from turnwire.pipelines.protocol.errors import ApiError, ContentRefused
from turnwire.pipelines.stages import Stages

UNSCREENED = "unscreened"
"""Marks a usage record whose text was not, or not wholly, classified."""

_UNKNOWN = Screened(flagged=False, complete=False)

logger = logging.getLogger("turnwire.screening")


class Screening:
    """Owns the one `Screen` of a turn: started by entering the block, gone when it is left.

    Policy `score` fails open and marks, `block` fails closed, and neither ever waits longer than
    `deadline_s`.
    """

    def __init__(
        self,
        safety: Safety,
        command: Screen,
        policy: Literal["off", "score", "block"],
        deadline_s: float,
        stages: Stages,
        refused: Callable[[ApiError], None],
    ) -> None:
        """`refused` is called under `block` as soon as the text is known not to pass."""
        self._safety = safety
        self._command = command
        self._wanted = policy != "off" and bool(command.texts)
        self.holds_output = self._wanted and policy == "block"
        """Must `passed` be awaited before anything is sent?"""
        self._deadline_s = deadline_s
        self._stages = stages
        self._refused = refused
        self._task: asyncio.Task[Screened] | None = None
        self._verdict: Screened | None = None

    async def __aenter__(self) -> "Screening":
        if self._wanted:
            self._task = asyncio.create_task(self._screen())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))

    @property
    def pending(self) -> bool:
        return self._task is not None and not self._task.done()

    async def verdict(self) -> None:
        """Return when the verdict is there, or cannot be had any more."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def passed(self) -> None:
        """Raises ContentRefused unless all of the text was classified and found good."""
        await self.verdict()
        if (refusal := _refusal(self._verdict or _UNKNOWN)) is not None:
            raise refusal

    def marks(self) -> tuple[str, ...]:
        """What the usage record says of the verdict; nothing when there was nothing to screen."""
        if not self._wanted:
            return ()
        verdict = self._verdict or _UNKNOWN
        categories = (verdict.categories or ("flagged",)) if verdict.flagged else ()
        return categories if verdict.complete else (*categories, UNSCREENED)

    async def _screen(self) -> Screened:
        verdict = _UNKNOWN
        begin_s = self._stages.now_s()
        try:
            async with asyncio.timeout(self._deadline_s):
                verdict = await self._safety.screen(self._command)
        except (ApiError, TimeoutError) as error:
            logger.warning("screen.failed %s: %s", self._command.response_id, error)
        except Exception:
            logger.exception("screen.failed %s", self._command.response_id)
        self._stages.took("screen", round((self._stages.now_s() - begin_s) * 1e6))
        self._verdict = verdict
        if self.holds_output and (refusal := _refusal(verdict)) is not None:
            self._refused(refusal)
        return verdict


def _refusal(verdict: Screened) -> ContentRefused | None:
    if verdict.flagged:
        return ContentRefused("The input was refused by this server's safety policy.", "input")
    if not verdict.complete:
        return ContentRefused("The input could not be screened completely.", "input")
    return None
