"""How often a prompt is checked, and what is said of one that does not match."""

import asyncio
import logging

import pytest

from turnwire.actors.prompt_checks import PromptChecks
from turnwire.pipelines.lineage import Checkpoint, Context
from turnwire.pipelines.prompts.check import PromptCheck
from turnwire.pipelines.prompts.rendered import Head, ItemPrompts

SECRET = b'{"type":"message","id":"m","role":"user","content":"secret"}'


class Judged(PromptCheck):
    """A check whose outcome is known."""

    __slots__ = ("done", "outcome")

    def matches(self) -> bool:
        return self.outcome


def judged(*, outcome: bool) -> Judged:
    turn = Checkpoint("resp_1", None, None, "m", False, True, Context(), SECRET)
    check = Judged("acme", turn, ItemPrompts("acme", "m"), Head(b"", b""))
    object.__setattr__(check, "outcome", outcome)
    return check


async def over(checks: PromptChecks, check: PromptCheck) -> None:
    checks.over(check)
    await asyncio.gather(*checks._tasks._tasks)


async def test_one_turn_in_so_many_is_checked() -> None:
    checks = PromptChecks(10)
    for _ in range(100):
        await over(checks, judged(outcome=True))
    assert (checks.checked, checks.mismatched) == (10, 0)
    await checks.close()


async def test_none_is_checked_when_it_is_switched_off() -> None:
    checks = PromptChecks(0)
    for _ in range(100):
        await over(checks, judged(outcome=False))
    assert (checks.checked, checks.mismatched) == (0, 0)


async def test_a_mismatch_is_counted_and_logged_without_what_it_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    checks = PromptChecks(1)
    with caplog.at_level(logging.ERROR):
        await over(checks, judged(outcome=False))
    assert (checks.checked, checks.mismatched) == (1, 1)
    assert "connection.prompt_mismatch response_id=resp_1" in caplog.text
    assert "secret" not in caplog.text
