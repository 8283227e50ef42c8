"""How clients continue their conversations: with what is new, or with all of it once more. Pure.

The difference changes no answer, only what a turn costs, so it goes wrong unnoticed unless counted.
"""

from collections import OrderedDict

from turnwire.pipelines.messages import Continuation
from turnwire.pipelines.protocol.items import CallOutput, Item, Reasoning, Reference, role_of


def continuation(
    continued: bool, items: tuple[Item | Reference, ...], *, parent_here: bool
) -> Continuation:
    """`continued`: the request names what is before it. `parent_here`: this connection still
    knows the response that came last on the lane."""
    if continued:
        return "incremental"
    if not any(map(_answers, items)):
        return "new"
    return "full_cached" if parent_here else "full"


def _answers(item: Item | Reference) -> bool:
    """Did a model make this item, or a tool on its behalf? Then a conversation is repeated."""
    if isinstance(item, Reference):
        return False
    return isinstance(item, CallOutput | Reasoning) or role_of(item) == "assistant"


def made_by_model(item: Item | Reference) -> bool:
    return isinstance(item, Reasoning) or (
        not isinstance(item, Reference) and role_of(item) == "assistant"
    )


class Setbacks:
    """Conversations whose last turn was refused or failed: their next full history has a reason.

    They are known by a name that outlives a socket where clients send one, since many clients
    leave the socket on which something failed.
    """

    def __init__(self, max_conversations: int = 4096) -> None:
        self._max_conversations = max_conversations
        self._names: OrderedDict[tuple[str, str], None] = OrderedDict()

    def add(self, tenant: str, conversation: str) -> None:
        """The least recent is forgotten when there are too many."""
        self._names[tenant, conversation] = None
        self._names.move_to_end((tenant, conversation))
        if len(self._names) > self._max_conversations:
            self._names.popitem(last=False)

    def explain(self, tenant: str, conversation: str, seen: Continuation) -> Continuation:
        """`seen`, or that it is a full history after an error. The setback is over then."""
        known = (tenant, conversation) in self._names
        if not known or seen == "new":
            return seen
        del self._names[tenant, conversation]
        return seen if seen == "incremental" else "full_after_error"

    def __len__(self) -> int:
        return len(self._names)
