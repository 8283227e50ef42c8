"""One answer from whichever worker can give it: whole prompts on demand, other workers on loss."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from turnwire.pipelines.messages import (
    EngineEvent,
    Finish,
    Generate,
    GenerationFinished,
    Model,
    PrefixMissing,
    Prepared,
    Prompt,
    Recall,
    Route,
)
from turnwire.pipelines.protocol.errors import Internal, NotFound, Overloaded, RateLimitExceeded
from turnwire.pipelines.services import Services
from turnwire.pipelines.turn_request import Memory, TurnRequest

Take = Callable[[list[EngineEvent]], Awaitable[None]]
"""Called with each batch, in order; an error it raises ends the generation."""


class Answering(Protocol):
    """What is to become of a prompt."""

    @property
    def request(self) -> TurnRequest: ...
    @property
    def model(self) -> Model: ...
    @property
    def prepared(self) -> Prepared: ...
    @property
    def output_started(self) -> bool:
        """Has anybody seen any of it? Then no other worker can begin anew."""

    def restarted(self) -> None: ...


@dataclass
class Generation:
    """A prepared turn on its way through a worker.

    A worker that is lost, or refuses, before any output was taken is replaced without anyone
    noticing; afterwards the loss is an error, since two answers must never be mixed.
    """

    services: Services
    memory: Memory
    work: Answering
    warm_up: bool = False
    sent: Callable[[], None] = lambda: None
    """Called when the worker has been told, or cannot be told yet."""
    _give_up_s: float | None = None
    _losses: int = 0
    _recalled: Prompt | None = None

    async def find_worker(self, waits: Callable[[], None]) -> None:
        """`waits` is called when there is none now. Raises RateLimitExceeded if none comes."""
        if self.memory.routes.valid(self._name) is None:
            await self._find(None, waits)

    async def run(self, take: Take) -> Finish:
        """Returns when the engine is done. Cancelling it stops the worker.

        Raises RateLimitExceeded when no worker takes the turn in time, Internal when one is lost
        after output began, and whatever the worker refuses.
        """
        route = self.memory.routes.valid(self._name)
        if route is None:
            route = await self._find(None)
        while True:
            try:
                return await self._on(route, take)
            except Overloaded as error:
                if self.work.output_started:
                    message = "The inference worker was lost in the middle of the answer."
                    raise Internal(message) from error
            self.sent()
            self.work.restarted()
            route = await self._find(route)

    @property
    def _name(self) -> str:
        """The model as the request names it."""
        return self.work.request.model or self.work.model.name

    async def _find(self, lost: Route | None, waits: Callable[[], None] | None = None) -> Route:
        clock = self.services.clock
        if self._give_up_s is None:
            self._give_up_s = clock.now_s() + self.services.limits.worker_wait_s
        self._losses += lost is not None
        route = await self.memory.routes.find(
            self._name, self._give_up_s, lost, self._losses, waits
        )
        ours, theirs = self.work.model, route.model
        if (ours.form, ours.prompt_format, ours.tokenizer) != (
            theirs.form,
            theirs.prompt_format,
            theirs.tokenizer,
        ):
            raise RateLimitExceeded("The model was just replaced. Please try again in 1s.")
        return route

    async def _on(self, route: Route, take: Take) -> Finish:
        finish = await self._attempt(route, self._recalled or self.work.prepared.prompt, take)
        if finish is None and self._recalled is None:
            self._recalled = await self._recall()
            finish = await self._attempt(route, self._recalled, take)
        if finish is None:
            raise Internal("The worker did not accept a whole prompt.")
        return finish

    async def _recall(self) -> Prompt:
        command = Recall(self.memory.connection_id, self.work.request.response_id)
        try:
            return await self.memory.connection.recall(command)
        except NotFound as error:
            message = "The conversation was lost with its process; send all of it again."
            raise Internal(message) from error

    async def _attempt(self, route: Route, prompt: Prompt, take: Take) -> Finish | None:
        """None: the worker does not hold the prompt's prefix."""
        cold = "delta" in self.memory.ablated
        command = Generate(self.work.prepared.facts, prompt, self.warm_up, cold)
        async with self.services.engine.generate(route.worker, command) as batches:
            self.sent()
            async for batch in batches:
                match batch[-1]:
                    case PrefixMissing():
                        return None
                    case GenerationFinished("cancelled"):
                        raise Overloaded("the worker gave the turn up")
                    case GenerationFinished(finish):
                        await take(batch)
                        return finish
                await take(batch)
        raise Overloaded("the worker's stream ended without an ending")
