"""The one interface of all engines: what a worker hosts, whatever generates its tokens."""

from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

from turnwire.pipelines.messages import CountPrompt, EngineEvent, Form, Generate, Model


class Engine(Protocol):
    """Generates answers for one or more models, all prompted in the same form.

    Lifetime: `start`, then any number of `generate` at the same time, then `close`. All methods are
    called on one event loop and none of them blocks it.
    """

    @property
    def form(self) -> Form:
        """Which of the two prompts `generate` takes."""

    @property
    def models(self) -> tuple[Model, ...]:
        """What this engine serves. Complete after `start`."""

    async def start(self) -> None:
        """Load what is needed. Raises `Internal` when the engine cannot run here."""

    async def close(self) -> None:
        """End all streams with `Overloaded` and release everything. Again: does nothing."""

    def generate(self, command: Generate) -> AsyncGenerator[list[EngineEvent], None]:
        """One generation as batches of events: the first at once, then whatever is ready.

        A stream is either the single event `PrefixMissing`, when the prompt's `prefix_key` is not
        held, or: `PromptEvaluated`, then any number of produced pieces, then one
        `GenerationFinished`. Counts never shrink. A warm-up produces no pieces.

        Errors are raised by the first or a later step of the iteration: `ContextLengthExceeded` for
        a prompt the model cannot hold, `Overloaded` when the engine's queue is full or the engine
        closes, `InvalidRequest` for a prompt of the other form or a model not served here,
        `Internal` for a fault of the engine.

        Closing the generator (`aclosing`) cancels: within one step of the engine nothing more is
        computed for it. A warm-up may be allowed to finish its evaluation.
        """

    def load(self) -> tuple[int, int]:
        """Generations running and generations waiting, now."""

    def check(self) -> None:
        """Raises `Internal` when this engine can no longer generate, say because a thread died."""


@runtime_checkable
class CountsPrompts(Protocol):
    """An engine that can say how long a prompt of items is before it generates."""

    def count(self, command: CountPrompt) -> int:
        """The tokens a turn with this prompt would report. Raises `InvalidRequest`."""
