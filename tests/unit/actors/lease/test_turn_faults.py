"""Whole turns over leased actors, with a broken channel or a dead actor at every step of them.

Whatever strikes: each turn ends once, never with another conversation than its own, and nothing is
held afterwards. Only a dead actor may cost a parent, and only one that is not stored.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from faulty_actors import CHANNEL, NODE, CoreFactory, EchoEngine, Fault, Faults, FaultyWorld
from leased_turns import LeasedTurns, fork, one_lane, two_lanes
from turn_worlds import check_events

from turnwire.actors.lease import ConnectionPool
from turnwire.pipelines.config import ConnectionSettings
from turnwire.pipelines.protocol.errors import ApiError, PreviousResponseNotFound


async def stored_parent(turns: LeasedTurns) -> None:
    first = await turns.say("one", None, store=True)
    assert first is not None
    second = await turns.say("two", first, store=True)
    assert second is not None


async def lost_prefixes(turns: LeasedTurns) -> None:
    turns.engine.forgetful = True
    first = await turns.say("one", None, store=True)
    turn, heard = turns.turn("two", first, None)
    await turn.run()
    check_events(heard.decoded)
    if heard.types[-1] == "response.completed":
        assert turns.engine.read[turn.id] == ["one", "answer to one", "two"]
    else:  # the worker lost the prompt and the actor died: nobody knows it any more
        assert turns.fault == "kill"
        assert heard.decoded[-1]["response"]["error"]["code"] == "server_error"


async def failed_continuation(turns: LeasedTurns) -> None:
    parent = await turns.say("one", None)
    turn, heard = turns.turn("fail", parent, None)
    try:
        await turn.run()
    except PreviousResponseNotFound:
        assert turns.fault == "kill"
    else:
        check_events(heard.decoded)
        assert heard.types[-1] == "response.failed"
    if parent is not None:
        await turns.is_refused("again", parent)
    await turns.say("from the start", None)


async def cancelled_continuation(turns: LeasedTurns) -> None:
    parent = await turns.say("one", None)
    turn, heard = turns.turn("hang", parent, None)
    running = asyncio.create_task(turn.run())
    hanging = asyncio.create_task(turns.engine.hanging.wait())
    await asyncio.wait((running, hanging), return_when=asyncio.FIRST_COMPLETED)
    hanging.cancel()
    running.cancel()
    (outcome,) = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError | ApiError)
    if heard.frames:
        check_events(heard.decoded, ended=False)
    await turns.say("two", parent)


Scenario = Callable[[LeasedTurns], Awaitable[None]]
SCENARIOS: tuple[Scenario, ...] = (
    one_lane,
    two_lanes,
    fork,
    stored_parent,
    lost_prefixes,
    failed_continuation,
    cancelled_continuation,
)


async def played(scenario: Scenario, faults: Faults, folder: Path) -> None:
    async with opened(faults, folder) as turns:
        await scenario(turns)
        made = {record.response_id for record in turns.world.records}
        assert len(turns.world.records) == len(made)
        assert turns.world.open_streams == 0
        await all_told(turns)
        for actor in faults.actors.values():
            for state in actor.core._connections.values():
                assert state._running == {}
                assert all(not entry.pins for entry in state.history._alive.values())


async def all_told(turns: LeasedTurns) -> None:
    """Every commit and abort is acknowledged."""
    async with asyncio.timeout(10):
        while turns.connection._unacknowledged:  # noqa: ASYNC110 -- its end sets no event
            await asyncio.sleep(0)


@asynccontextmanager
async def opened(faults: Faults, folder: Path) -> AsyncIterator[LeasedTurns]:
    factory = CoreFactory(folder, faults)
    settings = ConnectionSettings(warm=1, refill_per_s=100, lease_s=5, collect_s=600)
    try:
        async with (
            ConnectionPool(factory, NODE, settings, CHANNEL) as pool,
            pool.lease("local") as connection,
        ):
            world = FaultyWorld(faults)
            yield LeasedTurns(connection, world, EchoEngine(world), faults.fault)
    finally:
        await asyncio.gather(*(actor.gone() for actor in factory.everybody))


@pytest.fixture
def private() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "private"


async def test_the_steps_are_all_that_goes_between_a_turn_and_its_actor(private: Path) -> None:
    taken: set[str] = set()
    for scenario in SCENARIOS:
        faults = Faults()
        await played(scenario, faults, private)
        taken |= {*faults.steps}
    commands = {"Open", "Prepare", "Recall", "Commit", "Abort", "Close"}
    assert taken == {
        *(f"{command} {when}" for command in commands for when in ("arrives", "is done")),
        *("resolve", "generate", "batch", "save", "load"),
    }


@pytest.mark.parametrize("fault", ["cut", "kill"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a_fault_at_any_step_costs_no_more_than_it_must(
    scenario: Scenario, fault: Fault, private: Path
) -> None:
    whole = Faults()
    await played(scenario, whole, private)

    async def struck(at: int) -> None:
        faults = Faults(fault, at)
        try:
            await played(scenario, faults, private / str(at))
        except Exception as error:
            error.add_note(f"{fault} at step {at}: {faults.steps[: at + 1]}")
            raise

    async with asyncio.TaskGroup() as runs:
        for at in range(len(whole.steps)):
            runs.create_task(struck(at))
