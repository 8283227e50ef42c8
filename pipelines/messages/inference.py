"""What a gateway and an inference worker say to each other."""

import msgspec

from turnwire.pipelines.messages.base import Finish, Json, Message, TokenIds


class Sampling(Message, frozen=True):
    """How to choose tokens. None: the engine's default."""

    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None


class TokenPrompt(Message, frozen=True):
    """A prompt as token ids: `ids` follow the prompt that `prefix_key` names (empty: nothing)."""

    key: bytes
    prefix_key: bytes
    ids: TokenIds
    thinking: bool = False
    """It ends inside of a thought, which the answer goes on with."""


class ItemPrompt(Message, frozen=True):
    """A prompt as items: `items` follow the prompt that `prefix_key` names (empty: nothing)."""

    key: bytes
    prefix_key: bytes
    items: Json
    head: Json | None = None
    """Object with `instructions` and `tools`; None: as in the prefix."""


Prompt = TokenPrompt | ItemPrompt


class Facts(Message, frozen=True):
    """What an engine must know of a turn beside its prompt."""

    response_id: str
    tenant: str
    model: str
    max_output_tokens: int
    sampling: Sampling = Sampling()
    tool_choice: Json = b'"auto"'
    text_format: Json = b'{"type":"text"}'
    parallel_tool_calls: bool = True
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    grammar: str = ""
    """For engines of the form `tokens`: what the answer may be, for llguidance; empty: anything."""
    logprobs: int | None = None
    """How many alternatives to give with the log probability of each token; None: neither."""
    calls: bool = False
    """May the answer hold calls?"""
    max_tool_calls: int | None = None
    effort: str | None = None
    """`reasoning.effort`; `verbosity` likewise: for engines of the form `items`."""
    verbosity: str | None = None


class CountPrompt(Message, frozen=True):
    """How long is this whole prompt for `model`? Answered with a `TokenCount`."""

    model: str
    tenant: str
    prompt: ItemPrompt


class Generate(Message, frozen=True):
    """Stream command. The answers are `EngineEvent`s; the last is one of the two endings."""

    facts: Facts
    prompt: Prompt
    warm_up: bool = False
    """Evaluate the prompt and keep it; produce nothing."""
    cold: bool = False
    """Use nothing that is held: only to see what that buys."""


class Counts(Message, frozen=True):
    """Running token counts of one generation, so that usage survives any death."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class PromptEvaluated(Message, frozen=True):
    """Prefill is over (or the prompt was joined or cached)."""

    counts: Counts
    waited_us: int = 0
    """How long before that all places of the worker were taken."""


class TextProduced(Message, frozen=True):
    """Text of the answer, whole characters only; from token engines in the model's own format."""

    text: str
    counts: Counts
    ids: TokenIds = b""
    """The sampled ids since the last event, every one of them, also those without text yet."""
    logprobs: Json = b""
    """Where asked for: the API's entries of the tokens, as the members of a list (no brackets)."""


class ReasoningProduced(Message, frozen=True):
    """Text of the model's reasoning, where the engine tells it apart."""

    text: str
    counts: Counts


class CallProduced(Message, frozen=True):
    """Part of a function call, where the engine tells calls apart. `index` counts calls from 0."""

    index: int
    call_id: str
    name: str
    arguments: str
    """The next piece of the JSON text."""
    counts: Counts
    finished: bool = False


class GenerationFinished(Message, frozen=True):
    """Ending: the engine is done. `ids`: sampled ids not yet reported, the terminal one too."""

    finish: Finish
    counts: Counts
    ids: TokenIds = b""


class PrefixMissing(Message, frozen=True):
    """Ending: the worker does not hold `prefix_key`; send the whole prompt (`Recall`)."""


EngineEvent = (
    PromptEvaluated
    | TextProduced
    | ReasoningProduced
    | CallProduced
    | GenerationFinished
    | PrefixMissing
)
