"""What a gateway and a connection actor say to each other."""

from typing import Literal

import msgspec

from turnwire.pipelines.messages.base import Continuation, Finish, Json, Message, TokenIds
from turnwire.pipelines.messages.content import KnownTurn
from turnwire.pipelines.messages.conversations import ConversationTail
from turnwire.pipelines.messages.inference import Facts, ItemPrompt, Prompt
from turnwire.pipelines.messages.records import Chain
from turnwire.pipelines.messages.workers import Model


class Open(Message, frozen=True):
    """A lease begins: the connection's state is empty."""

    connection_id: str
    tenant: str


class Close(Message, frozen=True):
    """A lease ends: all state of the connection is dropped."""

    connection_id: str


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
    """What `ParentUnknown` named last, as loaded from storage."""
    may_ask: bool = False
    """`ContentUnknown` may be the answer."""
    known: tuple[KnownTurn, ...] = ()
    """What others knew, after a first answer of `ContentUnknown`."""
    conversation: ConversationTail | None = None
    """What was loaded of the conversation, after an answer of `ConversationAt`."""
    ablated: tuple[str, ...] = ()
    """Savings that are left out (`pipelines/ablation.py`)."""


class ParentUnknown(Message, frozen=True):
    """The parent is not in this connection's cache: load it, or refuse the turn."""

    response_id: str
    item_id: str = ""
    """Where it is no parent: a reference names this item of it."""


class AnswerRules(Message, frozen=True):
    """What an answer must keep to, beside what its engine is told."""

    allowed: tuple[str, ...] | None = None
    """Tools that may be called; None: all that were offered."""
    most_calls: int | None = None
    required: bool = False
    """Must a tool be called?"""
    schemas: dict[str, Json] = msgspec.field(default_factory=dict)
    """Of the arguments of each strict tool; `grammars`, in Lark, of the input of custom ones. Both
    are given, like `text`, for engines that hold answers to nothing."""
    grammars: dict[str, str] = msgspec.field(default_factory=dict)
    text: Json = b""
    """The JSON schema of a message; empty: any text."""


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
    """With `store` or in a conversation: the new input items, each with an id."""
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
    namespaced: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)
    """Namespace and name of each function the model is shown under another name, given when
    `echo` is."""
    custom: tuple[str, ...] = ()
    """Names of custom tools, given when `echo` is."""
    repeated_items: int = 0
    """Input items that were known by their content: the turn costs what the others cost."""
    conversation_id: str | None = None
    """The conversation that the turn is appended to, if it comes to an answer."""
    conversation_version: int = 0
    """What came before the turn was this version of it."""
    background: bool = False
    dropped_tools: tuple[str, ...] = ()
    """The kind of each tool the model is not shown."""
    rules: AnswerRules | None = None
    warnings: tuple[str, ...] = ()
    """What of the request the model does not get, in words for the client."""
    compaction: Literal["", "only", "first", "count"] = ""
    """The prompt asks for a summary, which is all of the response, or its first item; `count`: it
    does not, but must be counted, and from `compact_threshold` tokens on `Summarize` comes first.
    """
    compact_threshold: int = 0


class Commit(Message, frozen=True):
    """The turn produced a usable response; it becomes its lane's latest. Idempotent."""

    connection_id: str
    response_id: str
    items: Json
    """The output items, as sent to the client."""
    sampled: TokenIds = b""
    finish: Finish = "stop"
    sequence: int = 0
    conversation_version: int = 0
    """The version that the turn made of its conversation; 0: it is in none."""


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


class Summarize(Message, frozen=True):
    """Ask for a summary first, in a turn prepared as `count`. Errors: NotFound."""

    connection_id: str
    response_id: str


class Summarizing(Message, frozen=True):
    """How the summary is asked for."""

    facts: Facts
    prompt: Prompt


class Compact(Message, frozen=True):
    """The summary is there: the turn's conversation begins with it now. Errors: NotFound."""

    connection_id: str
    response_id: str
    item_id: str
    summary: str


class Compacted(Message, frozen=True):
    """What the compaction item carries, and how the turn goes on, if it does."""

    sealed: str
    facts: Facts | None = None
    prompt: Prompt | None = None


class CountTokens(Message, frozen=True):
    """How long would the prompt of this request be? Changes nothing. Errors: as `Prepare`."""

    connection_id: str
    frame: Json
    model: Model
    chain: Chain | None = None
    """As in `Prepare`."""
    conversation: ConversationTail | None = None
    """As in `Prepare`."""


class TokenCount(Message, frozen=True):
    """The length of a prompt; or, where only the engine can count, the whole prompt to count."""

    input_tokens: int = 0
    prompt: ItemPrompt | None = None


class Forget(Message, frozen=True):
    """A stored response was deleted: the actor lets nobody continue from it. Idempotent."""

    response_id: str
    conversation_id: str | None = None
    """Where it is not None: a conversation was deleted, and no response."""
