"""Turns on one leased connection, checked against what was really said, whatever breaks below."""

import asyncio
from dataclasses import dataclass, field

import pytest
from faulty_actors import EchoEngine, Fault
from scripted_ports import FakeLedger, FakeRouter, FakeSafety, FakeStore, World, create
from turn_worlds import Heard, ManualClock, check_events

from turnwire.actors.leased_connection import LeasedConnection
from turnwire.pipelines.limits import Settlements
from turnwire.pipelines.protocol.errors import PreviousResponseNotFound
from turnwire.pipelines.routes import Routes
from turnwire.pipelines.services import Services, TurnLimits
from turnwire.pipelines.turn import Turn
from turnwire.pipelines.turn_request import Memory, TurnRequest


@dataclass
class LeasedTurns:
    """Every turn ends once, and no answer is ever made of another conversation than its own.

    Only a dead actor may cost a parent, and only one that is not stored.
    """

    connection: LeasedConnection
    world: World
    engine: EchoEngine
    fault: Fault
    conversations: dict[str | None, list[str]] = field(default_factory=lambda: {None: []})
    """All that was said up to a completed response."""
    stored: set[str] = field(default_factory=set)
    made: int = 0

    def __post_init__(self) -> None:
        router, clock = FakeRouter(self.world), ManualClock()
        self._services = Services(
            router,
            self.engine,
            FakeSafety(self.world),
            FakeStore(self.world),
            Settlements(FakeLedger(self.world)),
            clock,
            TurnLimits(policy="off"),
        )
        self._memory = Memory(self.connection, self.connection.id, Routes(router, clock))

    def turn(
        self, text: str, parent: str | None, lane: str | None, *, store: bool = False
    ) -> tuple[Turn, Heard]:
        self.made += 1
        response_id = f"resp_{self.made:04x}"
        named = {} if parent is None else {"previous_response_id": parent}
        frame = create(input=text, store=store, **named)
        request = TurnRequest(response_id, frame, "local", "key_1", "scripted", lane)
        heard = Heard()
        return Turn(request, self._memory, self._services, heard), heard

    async def say(
        self, text: str, parent: str | None, lane: str | None = None, *, store: bool = False
    ) -> str | None:
        """The id of the response; None when its parent was lost with a dead actor."""
        turn, heard = self.turn(text, parent, lane, store=store)
        try:
            await turn.run()
        except PreviousResponseNotFound:
            assert self.fault == "kill"
            assert parent not in self.stored
            assert not heard.frames
            return None
        check_events(heard.decoded)
        assert heard.types[-1] == "response.completed"
        said = [*self.conversations[parent], text]
        assert self.engine.read[turn.id] == said
        self.conversations[turn.id] = [*said, f"answer to {text}"]
        if store:
            self.stored.add(turn.id)
        return turn.id

    async def is_refused(self, text: str, parent: str, lane: str | None = None) -> None:
        turn, heard = self.turn(text, parent, lane)
        with pytest.raises(PreviousResponseNotFound):
            await turn.run()
        assert not heard.frames


async def one_lane(turns: LeasedTurns) -> None:
    first = await turns.say("one", None)
    second = await turns.say("two", first)
    await turns.say("three", second)


async def two_lanes(turns: LeasedTurns) -> None:
    async def lane(name: str) -> None:
        first = await turns.say(f"{name}1", None, name)
        await turns.say(f"{name}2", first, name)

    await asyncio.gather(lane("a"), lane("b"))


async def fork(turns: LeasedTurns) -> None:
    source = await turns.say("source", None, "a")
    forked, went_on = await asyncio.gather(
        turns.say("fork", source, "b"), turns.say("on", source, "a")
    )
    await turns.say("fork on", forked, "b")
    await turns.say("on and on", went_on, "a")
