"""What a turn does anew when its savings are left out, and that its client sees none of it."""

from scripted_ports import World, create
from turn_worlds import Player, check_events

from turnwire.pipelines.services import TurnLimits


async def two_turns(*leaves_out: str) -> tuple[Player, list[str]]:
    """The types of all events."""
    player = Player(World(), TurnLimits(policy="score"))
    player.memory.ablated = leaves_out
    first = await player.play(create(input="one"))
    parent = first.decoded[-1]["response"]["id"]
    second = await player.play(create(input="two", previous_response_id=parent))
    check_events(second.decoded)
    return player, [*first.types, *second.types]


async def test_the_worker_is_looked_up_with_each_turn() -> None:
    usual, events = await two_turns()
    again, same = await two_turns("route")
    assert same == events
    assert usual.world.steps.count("resolve") == 1
    assert again.world.steps.count("resolve") == 2


async def test_the_worker_uses_nothing_it_holds() -> None:
    usual, events = await two_turns()
    again, same = await two_turns("delta")
    assert same == events
    assert [command.cold for command in usual.world.generated] == [False, False]
    assert [command.cold for command in again.world.generated] == [True, True]


async def test_all_text_is_screened_however_long_it_is() -> None:
    again, same = await two_turns("screening")
    assert same == (await two_turns())[1]
    assert [command.texts for command in again.world.screened] == [("one",), ("one", "two")]
    assert all(command.whole for command in again.world.screened)


async def test_a_turn_ends_when_everybody_knows_of_its_end() -> None:
    usual, events = await two_turns()
    again, same = await two_turns("settlement")
    assert same == events
    assert not {"told", "settled"} & {*usual.world.steps}
    steps = again.world.steps
    assert steps.count("told") == steps.count("settled") == 2
    assert steps.index("settled") < len(steps) - 1 - steps[::-1].index("prepare")
    assert len(again.world.records) == 2
