"""Turns without a gateway: runs one over a `World` and keeps what its client was sent."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, get_args

import orjson
from openai.types.responses.responses_server_event import ResponsesServerEvent
from pydantic import BaseModel
from scripted_ports import (
    KEYRING,
    MODEL,
    FakeLedger,
    FakeRouter,
    FakeSafety,
    FakeStore,
    LocalConnection,
    ScriptedEngine,
    World,
)

from turnwire.pipelines import messages as m
from turnwire.pipelines.limits import Settlements
from turnwire.pipelines.protocol.errors import ApiError
from turnwire.pipelines.routes import Routes
from turnwire.pipelines.services import Services, TurnLimits
from turnwire.pipelines.turn import Turn
from turnwire.pipelines.turn_request import Memory, TurnRequest

TERMINAL = {"response.completed", "response.failed", "response.incomplete"}
_EVENTS: dict[str, list[type[BaseModel]]] = {}
for _model in get_args(get_args(ResponsesServerEvent)[0]):
    _EVENTS.setdefault(get_args(_model.model_fields["type"].annotation)[0], []).append(_model)


def check_event(event: dict[str, Any]) -> None:
    """Strictly one of OpenAI's types; only error codes may be others than those it lists."""
    response = event.get("response")
    if response is not None and response["error"] is not None:
        error = {**response["error"], "code": "server_error"}
        event = {**event, "response": {**response, "error": error}}
    for model in _EVENTS[event["type"]]:
        model.model_validate(event, strict=True)


def check_events(events: list[dict[str, Any]], *, ended: bool = True) -> None:
    """Each event is one OpenAI's types know; numbers have no gap; there is one terminal."""
    for event in events:
        check_event(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    terminals = [event["type"] in TERMINAL for event in events]
    assert terminals.count(True) == (1 if ended else 0)
    if ended:
        assert terminals[-1]
    check_items(events)


def check_items(events: list[dict[str, Any]]) -> None:
    """What was announced is what was finished, and what the final response lists."""
    added: dict[int, dict[str, Any]] = {}
    done: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(added)
            added[event["output_index"]] = event["item"]
        elif event["type"] == "response.output_item.done":
            done[event["output_index"]] = event["item"]
        elif "item_id" in event:
            assert event["item_id"] == added[event["output_index"]]["id"]
            assert event["output_index"] not in done
    for index, item in done.items():
        assert (item["id"], item["type"]) == (added[index]["id"], added[index]["type"])
    if events and events[-1]["type"] in TERMINAL:
        assert events[-1]["response"]["output"] == [done[index] for index in sorted(done)]
        if events[-1]["type"] != "response.failed":
            assert set(added) == set(done)


@dataclass
class ManualClock:
    """Time that passes only in `sleep` and by hand."""

    at_s: float = 1000.0

    def now_s(self) -> float:
        return self.at_s

    def today_s(self) -> int:
        return 1_800_000_000

    async def sleep(self, delay_s: float) -> None:
        self.at_s += delay_s
        await asyncio.sleep(0)


@dataclass
class Heard:
    """What the client of a turn heard."""

    frames: list[bytes] = field(default_factory=list)
    was_prepared: bool = False
    ends: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def events(self, events: list[bytes], *, now: bool = True) -> None:
        self.frames += events

    def prepared(self, prepared: m.Prepared) -> None:
        self.was_prepared = True

    def ended(self) -> None:
        self.ends += 1
        self.over.set()

    @property
    def decoded(self) -> list[dict[str, Any]]:
        return [orjson.loads(frame) for frame in self.frames]

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.decoded]


@dataclass
class Player:
    """Runs turns of one connection, one after the other or side by side."""

    world: World
    limits: TurnLimits = field(default_factory=lambda: TurnLimits(policy="off"))
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.connection = LocalConnection(self.world)
        router = FakeRouter(self.world)
        self.settlements = Settlements(FakeLedger(self.world))
        self.services = Services(
            router,
            ScriptedEngine(self.world),
            FakeSafety(self.world),
            FakeStore(self.world),
            self.settlements,
            self.clock,
            self.limits,
            keyring=KEYRING,
        )
        self.memory = Memory(self.connection, self.connection.id, Routes(router, self.clock))
        self._made = 0

    def turn(
        self,
        frame: bytes,
        *,
        lane: str | None = None,
        model: str | None = MODEL.name,
        timings: bool = False,
    ) -> tuple[Turn, Heard]:
        self._made += 1
        heard = Heard()
        request = TurnRequest(
            f"resp_{self._made:04x}",
            frame,
            "local",
            "key_1",
            model,
            lane,
            timings=timings,
            received_s=1.0,
        )
        return Turn(request, self.memory, self.services, heard), heard

    async def play(self, frame: bytes, **options: Any) -> Heard:  # noqa: ANN401 -- as `turn`
        """A whole turn; its refusal is raised."""
        turn, heard = self.turn(frame, **options)
        await turn.run()
        return heard

    @property
    def held(self) -> tuple[int, int, int]:
        """Open engine streams, pinned turns, turns left behind: all zero when nothing runs."""
        running = len(self.connection.state._running)
        return self.world.open_streams, running, self.memory.aftermaths


async def refusal(turn: Turn) -> ApiError:
    """The error a turn raises before its response exists."""
    try:
        await turn.run()
    except ApiError as error:
        assert not turn.created
        return error
    raise AssertionError("the turn was not refused")
