"""Real connection actors on real sockets, in this process, and a fault at a chosen step of a turn.

A step is taken wherever something could break: before each call a turn makes, and when a command
arrives at the actor or was just carried out there. Exactly one fault strikes, at step `at`.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import orjson
from scripted_ports import Batch, World, counts

from turnwire.actors.channel import Caller, Listener, UnaryHandler
from turnwire.actors.connection import ConnectionCore
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, ConnectionSettings
from turnwire.pipelines.protocol.errors import Internal, Overloaded

NODE = "here"
CHANNEL = ChannelSettings(connect_s=5)
Fault = Literal["cut", "kill"]


@dataclass
class Faults:
    """`cut`: the channel breaks, the actor lives. `kill`: the actor is gone, its state with it."""

    fault: Fault = "cut"
    at: int | None = None
    steps: list[str] = field(default_factory=list)
    actors: "dict[str, CoreActor]" = field(default_factory=dict)

    def step(self, name: str) -> None:
        self.steps.append(name)
        if len(self.steps) - 1 == self.at:
            for actor in tuple(self.actors.values()):
                if len(actor.core):
                    actor.strike(self.fault)


class CoreActor:
    """What `ConnectionActor` is, without a process."""

    def __init__(self, id: str, folder: Path, faults: Faults) -> None:
        numbers = itertools.count(1)
        self.core = ConnectionCore(
            ConnectionSettings(), lambda size: next(numbers).to_bytes(size, "big")
        )
        self._faults = faults
        self._folder = folder
        handlers = {kind: self._watched(kind, do) for kind, do in self.core.handlers().items()}
        self._listener = Listener(id, NODE, handlers, {}, CHANNEL)
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> m.Endpoint:
        return await self._listener.start(folder=self._folder)

    def strike(self, fault: Fault) -> None:
        for connection in tuple(self._listener._service.connections):
            connection.link.lose("cut by the test")
        if fault == "kill":
            self.kill()

    def kill(self) -> None:
        self.core.drop_all()
        if self._closing is None:
            self._closing = asyncio.create_task(self._listener.close())

    async def gone(self) -> None:
        self.kill()
        assert self._closing is not None
        await self._closing

    def _watched(self, kind: type[m.Message], handle: UnaryHandler) -> UnaryHandler:
        def watched(command: m.Message, caller: Caller) -> m.Message:
            taken = len(self._faults.steps)
            self._faults.step(f"{kind.__name__} arrives")
            if taken == self._faults.at:
                raise Overloaded("it was lost on the way")
            reply = handle(command, caller)
            assert isinstance(reply, m.Message), "a connection's handlers do not wait"
            self._faults.step(f"{kind.__name__} is done")
            return reply

        return watched


@dataclass
class CoreFactory:
    folder: Path
    faults: Faults
    everybody: list[CoreActor] = field(default_factory=list)

    async def start(self, actor_id: str) -> m.Endpoint:
        actor = CoreActor(actor_id, self.folder, self.faults)
        self.faults.actors[actor_id] = actor
        self.everybody.append(actor)
        return await actor.start()

    def kill(self, actor_id: str) -> None:
        if (actor := self.faults.actors.pop(actor_id, None)) is not None:
            actor.kill()


class FaultyWorld(World):
    """The rest of a turn's outside: its calls are steps too, and none of them fails."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    async def step(self, name: str) -> None:
        self._faults.step(name)
        await asyncio.sleep(0)


class EchoEngine:
    """Holds prompts by their keys, as engines do, and keeps what each response was made of.

    An input of `fail` fails, one of `hang` begins an answer and never ends it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: dict[bytes, list[str]] = {}
        self.read: dict[str, list[str]] = {}
        self.forgetful = False
        """Does it lose every prefix?"""
        self.hanging = asyncio.Event()

    @asynccontextmanager
    async def generate(
        self, worker: m.Endpoint, command: m.Generate
    ) -> AsyncIterator[AsyncIterator[Batch]]:
        await self._world.step("generate")
        self._world.open_streams += 1
        try:
            yield self._batches(command)
        finally:
            self._world.open_streams -= 1

    async def _batches(self, command: m.Generate) -> AsyncIterator[Batch]:
        prompt = command.prompt
        assert isinstance(prompt, m.ItemPrompt)
        before = [] if not prompt.prefix_key else self._held.get(prompt.prefix_key)
        if before is None or (prompt.prefix_key and self.forgetful):
            yield [m.PrefixMissing()]
            return
        texts = before + [_text(item) for item in orjson.loads(prompt.items)]
        self._held[prompt.key] = texts
        self.read[command.facts.response_id] = texts
        await self._world.step("batch")
        yield [m.TextProduced(f"answer to {texts[-1]}", counts(1))]
        if texts[-1] == "fail":
            raise Internal("The worker had an internal error.")
        if texts[-1] == "hang":
            self.hanging.set()
            await asyncio.Event().wait()
        await self._world.step("batch")
        yield [m.GenerationFinished("stop", counts(1))]


def _text(item: dict[str, object]) -> str:
    content = item["content"]
    assert isinstance(content, list)
    text: str = content[0]["text"]
    return text
