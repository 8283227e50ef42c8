"""What is said of conversations: between gateways and storage, and what their actors know of them.

The version of a conversation grows by one with every change of its items.
"""

from turnwire.pipelines.messages.base import Json, Message
from turnwire.pipelines.messages.records import Save, StoredTurn


class CreateConversation(Message, frozen=True):
    """Answered with `Conversation`. Creating the same id again changes nothing."""

    tenant: str
    conversation_id: str
    created_at: int
    metadata: dict[str, str]
    items: tuple[Json, ...] = ()
    """Each with an id."""


class FetchConversation(Message, frozen=True):
    """`Conversation`, or NotFound; as all commands below for an unknown one."""

    tenant: str
    conversation_id: str


class UpdateConversation(Message, frozen=True):
    """Replace the metadata. Answered with `Conversation`."""

    tenant: str
    conversation_id: str
    metadata: dict[str, str]


class DeleteConversation(Message, frozen=True):
    """Remove a conversation with its items: `Done`. Responses made in it stay."""

    tenant: str
    conversation_id: str


class Conversation(Message, frozen=True):
    """A conversation as its clients see it, without its items."""

    conversation_id: str
    created_at: int
    metadata: dict[str, str]


class AddItems(Message, frozen=True):
    """Append items, all or none: `Done`. The same `addition_id` again changes nothing."""

    tenant: str
    conversation_id: str
    addition_id: str
    items: tuple[Json, ...]
    """Each with an id that the conversation does not have yet."""


class ListItems(Message, frozen=True):
    """`ItemPage`; InvalidRequest for an `after` that is no item of the conversation."""

    tenant: str
    conversation_id: str
    limit: int
    descending: bool = True
    after: str | None = None


class FetchItem(Message, frozen=True):
    """`ItemPage` of that one item."""

    tenant: str
    conversation_id: str
    item_id: str


class DeleteItem(Message, frozen=True):
    """Answered with `Conversation`."""

    tenant: str
    conversation_id: str
    item_id: str


class ItemPage(Message, frozen=True):
    """Items in the order asked for. `more`: others follow them."""

    items: tuple[Json, ...]
    more: bool = False


class LoadConversation(Message, frozen=True):
    """What came after version `known` (0: everything), to make a turn behind it.

    Answered with `ConversationTail`; InvalidRequest for a conversation that is full.
    """

    tenant: str
    conversation_id: str
    known: int = 0


class ConversationTail(Message, frozen=True):
    """The turns of a conversation after version `since`, oldest first; together they make
    `version`. `since` is 0, and all of it is here, where items were removed meanwhile."""

    conversation_id: str
    version: int
    since: int = 0
    turns: tuple[StoredTurn, ...] = ()


class AppendTurn(Message, frozen=True):
    """Append a turn made behind `version`, and store its response if `save` is there: all or none.

    Answered with `Appended`; ConversationLocked when the conversation has changed since. The same
    response again changes nothing.
    """

    tenant: str
    conversation_id: str
    version: int
    turn: StoredTurn
    save: Save | None = None


class Appended(Message, frozen=True):
    """The version that the conversation has now."""

    version: int


class ConversationAt(Message, frozen=True):
    """A connection's answer to a request in a conversation: load what is after `version`."""

    conversation_id: str
    version: int = 0
