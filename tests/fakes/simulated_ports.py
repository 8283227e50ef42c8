"""The simulated models in this process: the real engine, as router and engine of turns."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from turnwire.actors.engines.simulated import SimulatedEngine
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ModelSettings
from turnwire.pipelines.protocol.errors import ModelNotFound, Overloaded

ALL = ModelSettings(name="simulated", engine="simulated", default_output_tokens=256)


class SimulatedPorts:
    """`start` before use, `close` afterwards."""

    def __init__(self) -> None:
        self.engine = SimulatedEngine(ALL)
        self.leaves = False
        """The worker goes away after the next route to it, and is back when it is missed."""
        self.instead: list[list[m.EngineEvent]] | None = None
        """What is generated in place of the models' own answers."""
        self._away = False
        self._models = {n: model for model in self.models for n in (model.name, *model.aliases)}

    @property
    def models(self) -> tuple[m.Model, ...]:
        return self.engine.models

    async def start(self) -> None:
        await self.engine.start()

    async def close(self) -> None:
        assert self.engine.load() == (0, 0)
        await self.engine.close()

    async def resolve(self, command: m.Resolve) -> m.Route:
        if self._away:
            self._away = False
            raise Overloaded("no worker")
        model = self._models.get(command.model)
        if model is None:
            raise ModelNotFound(f"the model {command.model!r} is not served here", "model")
        self._away, self.leaves = self.leaves, False
        return m.Route(model, m.Endpoint("w1", "here"))

    def valid(self, route: m.Route) -> bool:
        return not self._away

    @asynccontextmanager
    async def generate(
        self, worker: m.Endpoint, command: m.Generate
    ) -> AsyncIterator[AsyncIterator[list[m.EngineEvent]]]:
        if self.instead is not None:
            yield _in_turn(self.instead)
            return
        async with aclosing(self.engine.generate(command)) as batches:
            yield batches

    async def count(self, worker: m.Endpoint, command: m.CountPrompt) -> m.TokenCount:
        return m.TokenCount(self.engine.count(command))


async def _in_turn(batches: list[list[m.EngineEvent]]) -> AsyncIterator[list[m.EngineEvent]]:
    for batch in batches:
        yield batch
