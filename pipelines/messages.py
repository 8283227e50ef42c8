"""What the processes of a turn say to each other: one frozen message a method.

Commands are imperative, replies are facts. Messages travel as MessagePack arrays (`array_like`),
so a field is only ever appended, and with a default. Token ids travel as the bytes of
`array("I")`; JSON that nobody between needs to read travels as `bytes`.
"""

import hashlib
from typing import Literal

import msgspec

TokenIds = bytes
"""Little-endian uint32 token ids, as `array("I").tobytes()`."""

Json = bytes
"""A JSON document, kept as the bytes it arrived or was built as."""

Form = Literal["tokens", "items"]
Finish = Literal["stop", "length", "tool_calls", "cancelled", "content_filter"]
Continuation = Literal["new", "incremental", "full", "full_cached", "full_after_error"]
"""How a turn came: as a new conversation, with a parent and what is new, or with all of it again:
to a connection that does not know it, though its parent was there, or after an error."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all that travels on a channel."""


class Done(Message, frozen=True):
    """The command was carried out."""


class Failure(Message, frozen=True):
    """A typed refusal: `name` is a class of `protocol.errors`, rebuilt at the caller."""

    name: str
    message: str
    param: str | None = None


# --- models and workers (routing) -------------------------------------------------------------


class Model(Message, frozen=True):
    """What the rest of the system must know of a model to prepare a turn for it."""

    name: str
    form: Form
    prompt_format: str = ""
    tokenizer: str = ""
    """Path of its tokenizer.json on every node; empty for the form `items`."""
    context_window: int = 1_000_000
    default_output_tokens: int = 4096
    aliases: tuple[str, ...] = ()


class Endpoint(Message, frozen=True):
    """Where a process listens. Empty means: not reachable that way. Carries no secret."""

    id: str
    node: str
    unix: str = ""
    tcp: str = ""
    fingerprint: str = ""
    """SHA-256 of the TLS certificate behind `tcp`, hex."""


class Worker(Message, frozen=True):
    """One live process of a pool."""

    endpoint: Endpoint
    pool: Literal["inference", "safety", "billing", "storage"]
    models: tuple[Model, ...] = ()
    max_ongoing: int = 16
    draining: bool = False


class Attach(Message, frozen=True):
    """A registered worker says on its channel that it lives; the channel's end says it died."""

    worker: Worker


class Report(Message, frozen=True):
    """A worker's load, sent when it changes, at most every 100 ms."""

    worker_id: str
    ongoing: int
    queued: int


class Watch(Message, frozen=True):
    """Stream command: the registry now, then again whenever it changes."""


class Registry(Message, frozen=True):
    """All live workers. `version` only grows within one life of the routing pool."""

    version: int
    workers: tuple[Worker, ...]


class Resolve(Message, frozen=True):
    """Which worker should serve `model`, a name or an alias? `keep`: the worker in use, if any."""

    model: str
    keep: str = ""


class Route(Message, frozen=True):
    """The answer: valid until the worker leaves the registry or drains."""

    model: Model
    worker: Endpoint


# --- gateway and connection actor --------------------------------------------------------------


class Open(Message, frozen=True):
    """A lease begins: the connection's state is empty."""

    connection_id: str
    tenant: str


class Close(Message, frozen=True):
    """A lease ends: all state of the connection is dropped."""

    connection_id: str


class StoredTurn(Message, frozen=True):
    """One stored turn of a chain: enough to rebuild its part of the prompt."""

    response_id: str
    input: Json
    """List of the new input items of that turn."""
    output: Json
    """List of its output items."""
    model: str = ""
    sampled: TokenIds = b""
    finish: Finish = "stop"


class Chain(Message, frozen=True):
    """A stored response with everything before it, oldest first."""

    turns: tuple[StoredTurn, ...]


class Prepare(Message, frozen=True):
    """Validate one request, resolve and pin its parent, render what is new.

    Serialized per connection: it sees every earlier `Commit`. Errors: any `InvalidRequest`.
    """

    connection_id: str
    response_id: str
    frame: Json
    """The request as the client sent it."""
    model: Model
    lane: str | None = None
    transport: Literal["websocket", "http"] = "websocket"
    known_echo: bytes = b""
    """`Prepared.echo_key` of an echo the gateway still holds."""
    chain: Chain | None = None
    """The parent as loaded from storage, after a first answer of `ParentUnknown`."""


class ParentUnknown(Message, frozen=True):
    """The parent is not in this connection's cache: load it, or refuse the turn."""

    response_id: str


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
    metadata: dict[str, str] = {}
    grammar: str = ""
    """For engines of the form `tokens`: what the answer may be, for llguidance; empty: anything."""
    logprobs: int | None = None
    """How many alternatives to give with the log probability of each token; None: neither."""
    calls: bool = False
    """May the answer hold calls?"""


class Prepared(Message, frozen=True):
    """The turn is valid, its parent pinned, its prompt rendered."""

    facts: Facts
    prompt: Prompt
    input_tokens: int
    """Tokens of the whole prompt; 0 where only the engine can count them (form `items`)."""
    echo_key: bytes
    echo: Json | None
    """Members of the response object that repeat the request (no braces); None: as `known_echo`."""
    new_text: tuple[str, ...] = ()
    """New text written by people or tools, for the safety pool."""
    parent_id: str | None = None
    generate: bool = True
    store: bool = True
    stream: bool = False
    include: tuple[str, ...] = ()
    stored_input: Json | None = None
    """With `store`: the new input items, each with an id."""
    stored_context: Chain | None = None
    """With `store`, when the parent is not stored: everything before this turn."""
    echo_turn: Json = b""
    """More members of the response object (no braces): those that differ from turn to turn."""
    echo_tools: Json | None = None
    """The members `instructions` and `tools` of the echo (no braces), given when `echo` is."""
    foreign_items: int = 0
    """New input items of kinds that are not understood here; the prompt leaves them out."""
    unsupported_tools: int = 0
    """Tools the model is not shown, because nothing here could carry out their calls."""
    continuation: Continuation = "new"
    namespaced: dict[str, tuple[str, str]] = {}
    """Namespace and name of each function the model is shown under another name, given when
    `echo` is."""
    custom: tuple[str, ...] = ()
    """Names of custom tools, given when `echo` is."""


class Commit(Message, frozen=True):
    """The turn produced a usable response; it becomes its lane's latest. Idempotent."""

    connection_id: str
    response_id: str
    items: Json
    """The output items, as sent to the client."""
    sampled: TokenIds = b""
    finish: Finish = "stop"
    sequence: int = 0


class Abort(Message, frozen=True):
    """The turn ended without a usable response. Idempotent.

    `evict`: also forget the parent it named. Only for a failed continuation on the parent's lane.
    """

    connection_id: str
    response_id: str
    evict: bool = False
    sequence: int = 0
    parent_id: str | None = None
    """The parent, of a turn that was refused before it was prepared; `lane`: where it came."""
    lane: str | None = None


class Recall(Message, frozen=True):
    """The whole prompt of a turn that is prepared, for a worker that lost its prefix.

    Answered with a `TokenPrompt` or `ItemPrompt` whose `prefix_key` is empty.
    """

    connection_id: str
    response_id: str


class CountTokens(Message, frozen=True):
    """How long would the prompt of this request be? Changes nothing. Errors: as `Prepare`."""

    connection_id: str
    frame: Json
    model: Model
    chain: Chain | None = None
    """As in `Prepare`."""


class TokenCount(Message, frozen=True):
    """The length of a prompt; or, where only the engine can count, the whole prompt to count."""

    input_tokens: int = 0
    prompt: ItemPrompt | None = None


class Forget(Message, frozen=True):
    """A stored response was deleted: the actor lets nobody continue from it. Idempotent."""

    response_id: str


# --- inference ----------------------------------------------------------------------------------


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


class Counts(Message, frozen=True):
    """Running token counts of one generation, so that usage survives any death."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class PromptEvaluated(Message, frozen=True):
    """Prefill is over (or the prompt was joined or cached)."""

    counts: Counts


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


# --- safety, storage, billing ---------------------------------------------------------------------


class Screen(Message, frozen=True):
    """Classify new input text."""

    response_id: str
    tenant: str
    texts: tuple[str, ...]


class Screened(Message, frozen=True):
    """The verdict. `complete` is false when a classifier could not run or did not see all text."""

    flagged: bool
    categories: tuple[str, ...] = ()
    score: float = 0.0
    complete: bool = True


class Save(Message, frozen=True):
    """Store a response. Answered after the commit. Saving the same id again changes nothing."""

    tenant: str
    response_id: str
    created_at: int
    response: Json
    turn: StoredTurn
    parent_id: str | None = None
    context: Chain | None = None
    """All that came before, when the parent itself is not stored."""


class Load(Message, frozen=True):
    """The chain that ends in a stored response: `Chain`, or PreviousResponseNotFound."""

    tenant: str
    response_id: str


class Fetch(Message, frozen=True):
    """A stored response as its client saw it: `Stored`, or NotFound."""

    tenant: str
    response_id: str


class Stored(Message, frozen=True):
    """A stored response and its own input items."""

    response: Json
    input: Json


class Delete(Message, frozen=True):
    """Remove a stored response: `Done`, or NotFound."""

    tenant: str
    response_id: str


class UsageRecord(Message, frozen=True):
    """One turn's entry in the ledger; `response_id` is unique there."""

    response_id: str
    tenant: str
    key_id: str
    model: str
    status: str
    created_at: int
    counts: Counts
    flagged: tuple[str, ...] = ()


class Settle(Message, frozen=True):
    """Write usage records. Answered after the commit; a record already there is left as it is."""

    records: tuple[UsageRecord, ...]


def root_key(tenant: str, model: str) -> bytes:
    """The key of the empty prompt: keys never cross tenants or models."""
    return hashlib.blake2b(f"{tenant}\0{model}".encode(), digest_size=16).digest()


def next_key(key: bytes, added: bytes) -> bytes:
    """The key of a prompt that is the one `key` names with `added` behind it (128 bit)."""
    return hashlib.blake2b(added, digest_size=16, key=key).digest()
