"""A fault and a cancel at every step of a turn: it ends once, holds nothing, keeps secrets."""

import asyncio

import pytest
from scripted_ports import Batch, World, create, says
from turn_worlds import Heard, Player, check_events

from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import ApiError, Internal, Overloaded
from turnwire.pipelines.services import TurnLimits

LIMITS = {policy: TurnLimits(policy=policy) for policy in ("score", "block")}
STEPS = 9
"""resolve, prepare, screen, generate, four batches, save: in the order in which they come."""


def script(command: m.Generate) -> list[Batch]:
    return says("Hello", " world")


def frame(kind: str) -> bytes:
    return create(store=True, generate=kind != "warm-up")


async def ended(player: Player, kind: str) -> tuple[Heard, BaseException | None]:
    turn, heard = player.turn(frame(kind))
    (error,) = await asyncio.gather(turn.run(), return_exceptions=True)
    assert not (turn.created and isinstance(error, ApiError))
    return heard, error


async def test_the_steps_of_a_turn_are_those_that_are_put_to_the_test() -> None:
    world = World(script=script)
    await ended(Player(world, LIMITS["score"]), "answer")
    assert sorted(set(world.steps)) == ["batch", "generate", "prepare", "resolve", "save", "screen"]
    assert len(world.steps) == STEPS


@pytest.mark.parametrize("kind", ["answer", "warm-up"])
@pytest.mark.parametrize("policy", ["score", "block"])
@pytest.mark.parametrize(
    "error",
    [Overloaded("busy"), Internal("broken"), ValueError("secret")],
    ids=["gone", "refused", "bug"],
)
@pytest.mark.parametrize("at", range(STEPS))
async def test_a_fault_at_any_step_ends_the_turn_once(
    at: int, error: Exception, policy: str, kind: str
) -> None:
    world = World(script=script, fail_at=at, error=error, workers=["w1", "w2"])
    player = Player(world, LIMITS[policy])
    heard, raised = await ended(player, kind)
    if heard.frames:
        check_events(heard.decoded)
        assert heard.ends == 1
        assert len(world.records) == 1
    else:
        assert raised is not None
        assert world.records == []
    assert b"secret" not in b"".join(heard.frames)
    assert player.held == (0, 0, 0)
    assert len(world.commits) + len(world.aborts) <= 1
    world.fail_at = None
    assert (await player.play(create())).types[-1] == "response.completed"


@pytest.mark.parametrize("kind", ["answer", "warm-up"])
@pytest.mark.parametrize("policy", ["score", "block"])
@pytest.mark.parametrize("at", range(STEPS))
async def test_a_cancel_at_any_step_stops_everything_and_settles_what_was_used(
    at: int, policy: str, kind: str
) -> None:
    world = World(script=script, hang_at=at)
    player = Player(world, LIMITS[policy])
    turn, heard = player.turn(frame(kind))
    running = asyncio.create_task(turn.run())
    hanging = asyncio.create_task(world.hanging.wait())
    await asyncio.wait((running, hanging), return_when=asyncio.FIRST_COMPLETED)
    hanging.cancel()
    running.cancel()
    await asyncio.wait((running,))
    ended = any(kind in ("response.completed", "response.failed") for kind in heard.types)
    check_events(heard.decoded, ended=ended)
    assert player.held == (0, 0, 0)
    if turn.created:
        (record,) = world.records
        assert (record.status == "cancelled") == (not ended)
    if not ended and "prepare" in world.steps:
        (abort,) = world.aborts
        assert abort.evict is False
    world.hang_at = None
    assert (await player.play(create())).types[-1] == "response.completed"


async def test_a_bug_is_logged_under_the_response_and_hidden(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(script=script, fail_at=4, error=ValueError("secret"))
    heard = await Player(world).play(create())
    check_events(heard.decoded)
    assert b"secret" not in b"".join(heard.frames)
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "resp_0001" in record.getMessage()
    assert record.exc_info is not None
