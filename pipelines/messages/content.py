"""How conversations are known by their content beyond the actor they came through."""

from turnwire.pipelines.messages.base import Finish, Json, Message, TokenIds


class ContentUnknown(Message, frozen=True):
    """The input repeats a conversation this actor does not know: ask others, and prepare again.

    Answered only to a `Prepare` that `may_ask`. One hash of everything said up to each item.
    """

    said: tuple[bytes, ...]
    thought: tuple[bytes, ...]
    behind: bytes = b""
    """What was said up to where the actor knows it; empty: it knows nothing of it."""
    answers: int = 0
    """Up to the last item that a model made there are so many: who knows these knows all."""


class KnownTurn(Message, frozen=True):
    """A turn that is over, with all that rendering it again needs; found by `said`."""

    said: bytes
    thought: bytes
    before: bytes
    """`said` of the turn before it; empty: it is the first."""
    response_id: str
    input: Json
    """New items with commas between them, no brackets. `output` likewise."""
    output: Json
    model: str
    sampled: TokenIds
    finish: Finish
    generated: bool
    stored: bool
    prompt: tuple[bytes, str, bytes, int] | None
    """Key, model, head and length of the prompt as it was sent."""
    rendered: dict[str, TokenIds]
    effort: str | None = None
    behind: bytes = b""
    """Names what its prompt was sent behind: of two turns that said the same, only one."""
    findable: bool = True
    """False: its response was deleted, and it is there only for those behind it."""

    @property
    def size_bytes(self) -> int:
        kept = sum(map(len, (self.input, self.output, self.sampled)))
        return 1024 + kept + sum(map(len, self.rendered.values()))


class FindContent(Message, frozen=True):
    """From one gateway of a node to another: what do the actors of `tenant` there know of it?"""

    tenant: str
    wanted: ContentUnknown


class FoundContent(Message, frozen=True):
    """The longest known conversation, oldest turn first, without what is known to who asked."""

    turns: tuple[KnownTurn, ...]


class Collect(Message, frozen=True):
    """What turns ended since? `after`: the number of the last answer that arrived."""

    after: int = 0


class Collected(Message, frozen=True):
    """Turns that can be found by their content, oldest first."""

    turns: tuple[KnownTurn, ...]
    number: int
    checked: int = 0
    """Prompts the actor has compared with the whole rendered anew, since it began."""
    mismatched: int = 0
