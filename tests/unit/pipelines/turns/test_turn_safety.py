"""Screening beside generation: when it holds output, and what it may and may not delay."""

import asyncio

import pytest
from scripted_ports import World, create, says
from turn_worlds import Player, check_events

from turnwire.pipelines import messages as m
from turnwire.pipelines.services import TurnLimits
from turnwire.pipelines.turn import MAX_AFTERMATHS

SCORE = TurnLimits(policy="score")
BLOCK = TurnLimits(policy="block")
FLAGGED = m.Screened(flagged=True, categories=("injection",), score=0.9)


async def test_score_lets_output_out_before_the_verdict_and_the_next_turn_begin() -> None:
    world = World(screen_gate=asyncio.Event(), verdict=FLAGGED)
    player = Player(world, SCORE)
    turn, heard = player.turn(create())
    running = asyncio.create_task(turn.run())
    await heard.over.wait()
    check_events(heard.decoded)
    assert world.records == []
    assert player.memory.aftermaths == 1
    parent = heard.decoded[-1]["response"]["id"]
    second, heard_second = player.turn(create(previous_response_id=parent, input=[]))
    await second.run()
    assert heard_second.types[-1] == "response.completed"
    assert world.screen_gate is not None
    world.screen_gate.set()
    await running
    assert [record.flagged for record in world.records] == [(), ("injection",)]
    assert player.held == (0, 0, 0)


async def test_score_goes_on_without_a_verdict_and_marks_the_record() -> None:
    world = World(screen_gate=asyncio.Event())
    player = Player(world, TurnLimits(policy="score", screen_s=0.01))
    heard = await player.play(create())
    assert heard.types[-1] == "response.completed"
    assert world.records[0].flagged == ("unscreened",)


async def test_block_holds_output_until_the_verdict() -> None:
    world = World(screen_gate=asyncio.Event())
    player = Player(world, BLOCK)
    turn, heard = player.turn(create())
    running = asyncio.create_task(turn.run())
    await world.reached("batch")
    for _ in range(20):
        await asyncio.sleep(0)
    assert heard.types == ["response.created", "response.in_progress"]
    assert world.screen_gate is not None
    world.screen_gate.set()
    await running
    check_events(heard.decoded)
    assert heard.types[-1] == "response.completed"


@pytest.mark.parametrize("generate", [True, False], ids=["answer", "warm-up"])
@pytest.mark.parametrize(
    "verdict", [FLAGGED, m.Screened(flagged=False, complete=False)], ids=["flagged", "incomplete"]
)
async def test_block_refuses_what_is_flagged_or_was_not_wholly_seen(
    verdict: m.Screened, generate: bool
) -> None:
    world = World(verdict=verdict)
    player = Player(world, BLOCK)
    heard = await player.play(create(generate=generate))
    check_events(heard.decoded)
    assert heard.types[-1] == "response.failed"
    assert heard.decoded[-1]["response"]["error"]["code"] == "invalid_prompt"
    assert heard.decoded[-1]["response"]["output"] == []
    assert world.commits == []
    assert world.aborts[-1].evict is True
    assert player.held == (0, 0, 0)


async def test_a_refusal_does_not_wait_for_the_prompt_to_be_evaluated() -> None:
    gate = asyncio.Event()
    world = World(verdict=FLAGGED, screen_gate=gate, hang_at=3)
    player = Player(world, BLOCK)
    turn, heard = player.turn(create())
    running = asyncio.create_task(turn.run())
    await world.hanging.wait()
    gate.set()
    await running
    check_events(heard.decoded)
    assert world.steps == ["resolve", "prepare", "generate", "batch", "screen"]
    assert heard.decoded[-1]["response"]["error"]["code"] == "invalid_prompt"
    assert player.held == (0, 0, 0)


async def test_off_asks_nobody() -> None:
    world = World()
    await Player(world, TurnLimits(policy="off")).play(create())
    assert "screen" not in world.steps


async def test_a_warm_up_is_over_at_once_and_evaluates_its_prompt_afterwards() -> None:
    world = World(script=lambda command: says() if command.warm_up else says("Hi"))
    player = Player(world, SCORE)
    heard = await player.play(create(generate=False))
    check_events(heard.decoded)
    assert heard.types == ["response.created", "response.completed"]
    assert heard.decoded[-1]["response"]["output"] == []
    assert world.generated[0].warm_up
    assert world.records[0].status == "warm_up"
    assert world.records[0].counts.input_tokens == 20
    parent = heard.decoded[-1]["response"]["id"]
    second = await player.play(create(previous_response_id=parent, input=[]))
    assert second.types[-1] == "response.completed"


async def test_a_warm_ups_prefill_does_not_hold_its_lane_and_stops_with_its_client() -> None:
    world = World(script=lambda _: says(), hang_at=3)
    player = Player(world, TurnLimits(policy="off"))
    turn, heard = player.turn(create(generate=False))
    running = asyncio.create_task(turn.run())
    await world.hanging.wait()
    assert heard.over.is_set()
    assert world.open_streams == 1
    turn.left()
    await running
    assert player.held == (0, 0, 0)
    assert len(world.records) == 1


async def test_a_prefill_that_fails_hurts_nobody() -> None:
    world = World(fail_at=3)
    player = Player(world, TurnLimits(policy="off", worker_wait_s=0.1))
    heard = await player.play(create(generate=False))
    assert heard.types == ["response.created", "response.completed"]
    assert player.held == (0, 0, 0)


async def test_turns_left_behind_are_bounded() -> None:
    world = World(screen_gate=asyncio.Event())
    player = Player(world, SCORE)
    made = [
        player.turn(create(generate=False, input=f"hi {number}"))
        for number in range(MAX_AFTERMATHS + 1)
    ]
    tasks = [asyncio.create_task(turn.run()) for turn, _ in made]
    for _, heard in made[:-1]:
        await heard.over.wait()
    assert player.memory.aftermaths == MAX_AFTERMATHS
    assert not made[-1][1].over.is_set()
    assert world.screen_gate is not None
    world.screen_gate.set()
    await asyncio.gather(*tasks)
    assert made[-1][1].over.is_set()
    assert player.held == (0, 0, 0)
