"""An inference pool's process: one engine behind a channel, one hop from the gateways.

It keeps nothing that outlives it: killed at any moment, its callers see their channel end, and the
next worker is sent whole prompts.
"""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import assert_never, cast

from msgspec.structs import replace

from turnwire.actors.channel import Caller, Listener
from turnwire.actors.channel_producer import Produced
from turnwire.actors.engines.engine import CountsPrompts, Engine
from turnwire.pipelines.config import ChannelSettings, ModelSettings
from turnwire.pipelines.messages import CountPrompt, Generate, Model, TokenCount, Worker
from turnwire.pipelines.protocol.errors import InvalidRequest


class InferenceWorker:
    """`start`, then any number of `Generate` streams on its channel, then `drain` or `close`.

    What waits is bounded by the engine and refused with `Overloaded`. A stream ends at once when
    its caller cancels or is lost.
    """

    def __init__(
        self,
        id: str,
        node: str,
        settings: ModelSettings,
        channel: ChannelSettings,
        engine: Engine | None = None,
    ) -> None:
        """`engine`: None means the one that `settings` name, built by `start`."""
        self._settings = settings
        self._engine = engine
        self._listener = Listener(
            id, node, {CountPrompt: self._count}, {Generate: self._generate}, channel
        )
        self._blocks = AsyncExitStack()

    async def start(self, folder: Path, tcp_host: str | None = None) -> Worker:
        """Load the engine, then listen. Raises Internal when the engine cannot run here."""
        if self._engine is None:
            self._engine = build_engine(self._settings, folder)
        self._blocks.push_async_callback(self._engine.close)
        try:
            await self._engine.start()
            endpoint = await self._listener.start(folder=folder, tcp_host=tcp_host)
        except BaseException:
            await self._blocks.aclose()
            raise
        self._blocks.push_async_callback(self._listener.close)
        return Worker(
            endpoint,
            "inference",
            models=self._engine.models,
            max_ongoing=max_ongoing(self._settings),
        )

    async def close(self) -> None:
        """Stop at once: callers see their channel end. Calling it again does nothing."""
        await self._blocks.aclose()

    async def drain(self, deadline_s: float) -> None:
        """Refuse new streams, let those that run end for so long, then close.

        Routing should have been told before, so that no new turn is sent here.
        """
        await self._listener.close(deadline_s)
        await self.close()

    @property
    def secret(self) -> bytes:
        """What callers over TCP must hold."""
        return self._listener.secret

    def load(self) -> tuple[int, int]:
        """Generations running and generations waiting, now."""
        return (0, 0) if self._engine is None else self._engine.load()

    def check_health(self) -> None:
        """Raises Internal when the engine has died.

        To be called on the worker's own loop: one that is wedged does not answer in time.
        """
        if self._engine is not None:
            self._engine.check()

    def _count(self, command: CountPrompt, _caller: Caller) -> TokenCount:
        if not isinstance(self._engine, CountsPrompts):
            raise InvalidRequest(f"The tokens of {command.model!r} cannot be counted.", "model")
        return TokenCount(self._engine.count(command))

    def _generate(self, command: Generate, _caller: Caller) -> Produced:
        assert self._engine is not None, "the listener opens after the engine has started"
        # A list of events is a list of messages to whoever only reads it.
        return cast(Produced, self._engine.generate(command))


def build_engine(settings: ModelSettings, folder: Path) -> Engine:
    """The engine of a model, its libraries loaded only when it needs them.

    `folder`: for files that other processes of this node read. Raises Internal for a model that
    the engine does not know.
    """
    match settings.engine:
        case "llama":
            from turnwire.actors.engines.llama import LlamaEngine

            return LlamaEngine(token_model(settings), settings.llama, folder)
        case "simulated":
            from turnwire.actors.engines.simulated import SimulatedEngine

            return SimulatedEngine(settings)
        case _:
            assert_never(settings.engine)


def token_model(settings: ModelSettings) -> Model:
    """A model of token ids, as far as its row of the model table says."""
    described = Model(
        settings.name,
        "tokens",
        prompt_format=settings.prompt_format,
        tokenizer=settings.tokenizer,
        default_output_tokens=settings.default_output_tokens,
        aliases=settings.aliases,
    )
    if settings.context_window is None:
        return described
    return replace(described, context_window=settings.context_window)


def max_ongoing(settings: ModelSettings) -> int:
    """How many generations run at once."""
    match settings.engine:
        case "llama":
            return settings.llama.slots
        case "simulated":
            return settings.simulated.max_ongoing
        case _:
            assert_never(settings.engine)
