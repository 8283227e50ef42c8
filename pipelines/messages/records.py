"""What outlives a turn, or judges it: safety, storage and billing."""

from turnwire.pipelines.messages.base import Finish, Json, Message, TokenIds
from turnwire.pipelines.messages.inference import Counts


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
    conversation_id: str | None = None
    """Before `turns` comes what was in this conversation before the turn they lead to."""


class Screen(Message, frozen=True):
    """Classify new input text."""

    response_id: str
    tenant: str
    texts: tuple[str, ...]
    whole: bool = False
    """However long it is: only to see what it costs."""


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


class WatchDeletes(Message, frozen=True):
    """Stream command to a storage worker: what it has deleted lately, then all it deletes."""


class Deleted(Message, frozen=True):
    """This response can be continued no more; heard twice, it changes nothing the second time."""

    tenant: str
    response_id: str
    conversation_id: str | None = None
    """Where it is not None: a conversation was deleted, and no response."""


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
