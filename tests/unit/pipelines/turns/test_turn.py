"""A turn over the ports: what its client hears, and what everybody else is told."""

import asyncio
from typing import Any, Literal

import orjson
import pytest
from scripted_ports import Batch, World, calls, counts, create, says
from turn_worlds import Player, check_events, refusal

from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PreviousResponseNotFound,
    RateLimitExceeded,
)
from turnwire.pipelines.services import TurnLimits
from turnwire.pipelines.stages import STAGES

OFF = TurnLimits(policy="off")


async def test_a_turn_answers_commits_and_settles() -> None:
    player = Player(World())
    heard = await player.play(create())
    check_events(heard.decoded)
    assert heard.types[-1] == "response.completed"
    assert heard.decoded[-1]["response"]["output"][0]["content"][0]["text"] == "Hello world"
    (commit,) = player.world.commits
    assert orjson.loads(commit.items) == heard.decoded[-1]["response"]["output"]
    (record,) = player.world.records
    assert (record.status, record.counts.output_tokens, record.flagged) == ("completed", 2, ())
    assert (record.tenant, record.key_id, record.model) == ("local", "key_1", "scripted")
    assert heard.ends == 1
    assert player.held == (0, 0, 0)
    assert player.world.aborts == []


async def test_a_second_turn_asks_for_no_route_and_no_echo_and_knows_its_parent() -> None:
    player = Player(World())
    first = await player.play(create(instructions="be brief"))
    player.world.steps.clear()
    parent = first.decoded[-1]["response"]["id"]
    second = await player.play(
        create(instructions="be brief", previous_response_id=parent, input="and now?")
    )
    check_events(second.decoded)
    assert "resolve" not in player.world.steps
    assert second.decoded[-1]["response"]["instructions"] == "be brief"
    assert second.decoded[-1]["response"]["previous_response_id"] == parent
    prompt = player.world.generated[-1].prompt
    assert isinstance(prompt, m.ItemPrompt)
    assert prompt.prefix_key
    assert prompt.head is None


async def test_the_worker_is_told_before_the_client_is_written_to() -> None:
    class Watched(World):
        async def step(self, name: str) -> None:
            if name in ("generate", "batch"):
                heard_then.append((name, len(heard.frames)))
            await super().step(name)

    heard_then: list[tuple[str, int]] = []
    turn, heard = Player(Watched()).turn(create())
    await turn.run()
    assert heard_then[:2] == [("generate", 0), ("batch", 2)]
    check_events(heard.decoded)


async def test_two_lanes_prepared_at_once_each_get_their_own_echo() -> None:
    player = Player(World())
    await player.play(create(instructions="one"))
    (a, heard_a), (b, heard_b) = (
        player.turn(create(instructions=text), lane=text) for text in ("one", "two")
    )
    await asyncio.gather(a.run(), b.run())
    assert heard_a.decoded[-1]["response"]["instructions"] == "one"
    assert heard_b.decoded[-1]["response"]["instructions"] == "two"


async def test_a_call_is_answered_and_its_output_continues_the_chain() -> None:
    player = Player(World(script=lambda _: calls("run", '{"a"', ":1}")))
    first = await player.play(create())
    check_events(first.decoded)
    assert first.decoded[-1]["response"]["output"][0]["arguments"] == '{"a":1}'
    player.world.script = lambda _: says("done")
    output = {"type": "function_call_output", "call_id": "call_1", "output": "2"}
    parent = first.decoded[-1]["response"]["id"]
    second = await player.play(create(previous_response_id=parent, input=[output]))
    assert second.types[-1] == "response.completed"


@pytest.mark.parametrize("model", [None, "", "unknown"])
async def test_a_missing_or_unknown_model_is_refused_before_anything_exists(
    model: str | None,
) -> None:
    player = Player(World())
    turn, heard = player.turn(create(), model=model)
    error = await refusal(turn)
    assert isinstance(error, ModelNotFound if model else InvalidRequest)
    assert error.param == "model"
    assert (heard.frames, player.world.records) == ([], [])


async def test_an_unknown_parent_is_looked_up_and_refused_with_its_name() -> None:
    player = Player(World())
    turn, heard = player.turn(create(previous_response_id="resp_gone"))
    error = await refusal(turn)
    assert isinstance(error, PreviousResponseNotFound)
    assert "resp_gone" in error.message
    assert error.param == "previous_response_id"
    assert player.world.steps == ["resolve", "prepare", "load"]
    assert heard.frames == []


async def test_a_stored_parent_is_loaded_on_another_connection() -> None:
    world = World()
    first = await Player(world).play(create(store=True, input="remember"))
    parent = first.decoded[-1]["response"]["id"]
    assert orjson.loads(world.saved[parent].response) == first.decoded[-1]["response"]
    heard = await Player(world).play(create(previous_response_id=parent))
    assert heard.types[-1] == "response.completed"
    prompt = world.generated[-1].prompt
    assert isinstance(prompt, m.ItemPrompt)
    assert b"remember" in prompt.items


async def test_a_store_that_fails_ends_the_response_as_failed_and_claims_nothing() -> None:
    world = World(error=Overloaded("away"))
    player = Player(world)
    await player.play(create(store=True))
    world.fail_at = len(world.steps) + world.steps.index("save") - 1
    heard = await player.play(create(store=True))
    check_events(heard.decoded)
    assert world.steps[-1] == "save"
    assert heard.types[-1] == "response.failed"
    assert len(world.commits) == 1
    assert world.aborts[-1].evict is False
    assert world.records[-1].status == "failed"


async def test_a_worker_that_lost_its_prefix_is_sent_the_whole_prompt() -> None:
    def script(command: m.Generate) -> list[Batch]:
        return [[m.PrefixMissing()]] if command.prompt.prefix_key else says("whole")

    player = Player(World(script=script))
    first = await player.play(create(input="one"))
    parent = first.decoded[-1]["response"]["id"]
    second = await player.play(create(previous_response_id=parent, input="two"))
    check_events(second.decoded)
    assert second.types[-1] == "response.completed"
    assert player.world.steps.count("recall") == 1
    prompt = player.world.generated[-1].prompt
    assert isinstance(prompt, m.ItemPrompt)
    assert b"one" in prompt.items
    assert b"two" in prompt.items


async def test_a_worker_that_refuses_even_a_whole_prompt_fails_the_response() -> None:
    player = Player(World(script=lambda _: [[m.PrefixMissing()]]))
    heard = await player.play(create())
    check_events(heard.decoded)
    assert heard.decoded[-1]["response"]["error"]["code"] == "server_error"
    assert player.world.steps.count("generate") == 2


async def test_a_worker_lost_before_any_output_is_replaced_unnoticed() -> None:
    world = World(workers=["w1", "w2"], lost_workers={"w1"})
    player = Player(world)
    world.workers = ["w1"]
    turn, heard = player.turn(create())
    running = asyncio.create_task(turn.run())
    await world.reached("generate", 2)
    world.workers = ["w2"]
    await running
    check_events(heard.decoded)
    assert heard.types[-1] == "response.completed"
    assert player.held == (0, 0, 0)


async def test_a_worker_that_gives_the_turn_up_before_output_counts_as_lost() -> None:
    world = World(workers=["w1", "w2"])
    answers = iter([[[m.GenerationFinished("cancelled", counts())]], says("second")])
    world.script = lambda _: next(answers)
    heard = await Player(world).play(create())
    check_events(heard.decoded)
    assert heard.decoded[-1]["response"]["output"][0]["content"][0]["text"] == "second"


async def test_with_no_worker_left_the_client_is_told_when_to_try_again() -> None:
    world = World(lost_workers={"w1"})
    player = Player(world, TurnLimits(policy="off", worker_wait_s=10))
    start_s = player.clock.at_s
    heard = await player.play(create())
    check_events(heard.decoded)
    error = heard.decoded[-1]["response"]["error"]
    assert error["code"] == "rate_limit_exceeded"
    assert "try again in 5s" in error["message"]
    assert player.clock.at_s - start_s <= 10
    assert len(world.generated) < 20
    assert world.aborts[-1].evict is False


async def test_a_known_model_whose_worker_went_away_fails_after_it_was_created() -> None:
    world = World()
    player = Player(world)
    await player.play(create())
    world.workers = []
    heard = await player.play(create())
    assert heard.types == ["response.created", "response.queued", "response.failed"]
    assert heard.decoded[-1]["response"]["error"]["code"] == "rate_limit_exceeded"


async def test_a_model_without_any_worker_yet_is_refused_with_one_error() -> None:
    player = Player(World(workers=[]))
    turn, heard = player.turn(create())
    assert isinstance(await refusal(turn), RateLimitExceeded)
    assert heard.frames == []


async def test_a_worker_lost_after_output_fails_the_response_and_its_parent() -> None:
    world = World(workers=["w1", "w2"], script=lambda _: says("half")[:-1])
    heard = await Player(world).play(create())
    check_events(heard.decoded)
    assert heard.types[-1] == "response.failed"
    assert heard.decoded[-1]["response"]["error"]["code"] == "server_error"
    assert len(world.generated) == 1
    assert world.aborts[-1].evict is True
    assert world.records[-1].counts.output_tokens == 1


async def test_what_the_engine_refuses_keeps_its_code() -> None:
    def script(command: m.Generate) -> list[Batch]:
        raise ContextLengthExceeded("too long")

    heard = await Player(World(script=script)).play(create())
    check_events(heard.decoded)
    assert heard.decoded[-1]["response"]["error"]["code"] == "context_length_exceeded"


async def test_a_full_ledger_stops_new_turns_and_loses_no_record() -> None:
    world = World(ledger_room=1)
    player = Player(world)
    await player.play(create())
    await player.play(create())
    assert player.settlements.owed == 1
    turn, _ = player.turn(create())
    assert isinstance(await refusal(turn), Overloaded)
    world.ledger_room = 10
    await player.play(create())
    assert [record.response_id for record in world.records] == [
        "resp_0001",
        "resp_0002",
        "resp_0004",
    ]


async def test_a_turn_over_its_deadline_is_ended_as_failed() -> None:
    world = World(hang_at=3)
    player = Player(world, TurnLimits(policy="off", turn_s=0.01))
    heard = await player.play(create())
    check_events(heard.decoded)
    assert world.steps == ["resolve", "prepare", "generate", "batch"]
    assert "longer" in heard.decoded[-1]["response"]["error"]["message"]
    assert player.held == (0, 0, 0)


async def test_a_turn_can_be_ended_from_outside_with_a_reason() -> None:
    world = World(hang_at=3)
    player = Player(world)
    turn, heard = player.turn(create())
    running = asyncio.create_task(turn.run())
    await world.hanging.wait()
    turn.end(RateLimitExceeded("Please try again in 1s."))
    await running
    check_events(heard.decoded)
    assert heard.decoded[-1]["response"]["error"]["code"] == "rate_limit_exceeded"


async def test_a_turn_that_is_just_ending_can_be_ended_again() -> None:
    world = World(hang_at=3)
    turn, heard = Player(world).turn(create())
    running = asyncio.create_task(turn.run())
    await world.hanging.wait()
    turn.end(RateLimitExceeded("first"))
    await asyncio.sleep(0)  # its deadline has passed, and it does not know yet
    turn.end(RateLimitExceeded("second"))
    await running
    check_events(heard.decoded)
    assert heard.types[-1] == "response.failed"


async def test_a_silent_turn_repeats_its_state() -> None:
    world = World(hang_at=3)
    player = Player(world, TurnLimits(policy="off", heartbeat_s=15))
    turn, heard = player.turn(create())
    running = asyncio.create_task(turn.run())
    await world.hanging.wait()
    for after_s in (14, 15, 16, 30):
        player.clock.at_s = 1000.0 + after_s
        turn.beat(player.clock.at_s)
    assert heard.types == ["response.created", *["response.in_progress"] * 3]
    running.cancel()
    await asyncio.wait((running,))
    check_events(heard.decoded, ended=False)


@pytest.mark.parametrize("asked", ["header", "metadata"])
async def test_timings_come_with_the_terminal_event_when_asked_for(asked: str) -> None:
    player = Player(World())
    fields: dict[str, Any] = {"metadata": {"turnwire.timings": "1"}} if asked == "metadata" else {}
    turn, heard = player.turn(create(**fields), timings=asked == "header")
    await turn.run()
    check_events(heard.decoded)
    timings = orjson.loads(heard.decoded[-1]["response"]["metadata"]["turnwire.timings"])
    assert timings.keys() - {"total"} == set(STAGES) - {"commit", "settle", "screen"}
    assert min(timings.values()) >= 0


@pytest.mark.parametrize("policy", ["off", "score"])
async def test_a_turn_passes_every_stage(policy: Literal["off", "score"]) -> None:
    turn, _ = Player(World(), TurnLimits(policy=policy)).turn(create())
    await turn.run()
    unwanted = {"screen"} if policy == "off" else set[str]()
    assert turn.stages.spent_us.keys() == set(STAGES) - unwanted


async def test_workers_that_are_all_full_are_not_asked_in_a_tight_loop() -> None:
    world = World(workers=["w1", "w2"], lost_workers={"w1", "w2"})
    player = Player(world, TurnLimits(policy="off", worker_wait_s=10))
    heard = await player.play(create())
    assert heard.types[-1] == "response.failed"
    assert len(world.generated) < 20
