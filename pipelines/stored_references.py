"""References, in a conversation that is sent in full, to answers that were stored. Pure.

Some clients name an earlier answer by its id alone, where it was stored. Its id says whose it is.
"""

from turnwire.pipelines.history import History
from turnwire.pipelines.messages import ParentUnknown
from turnwire.pipelines.protocol.ids import response_of
from turnwire.pipelines.protocol.items import Item, Reference, kept_items

Given = tuple[Item | Reference, ...]


def resolved(given: Given, history: History) -> Given | ParentUnknown:
    """With the items themselves in the place of references, or the first response that is not here.

    What refers to an item before it, or to nothing that is stored, stays a reference.
    """
    if not any(isinstance(item, Reference) for item in given):
        return given
    items: list[Item | Reference] = []
    ids: set[str] = set()
    for item in given:
        found = item
        if isinstance(item, Reference) and item.id not in ids:
            answer = _answered(item, history)
            if isinstance(answer, ParentUnknown):
                return answer
            found = answer
        items.append(found)
        ids.add(item.id)
    return tuple(items)


def _answered(reference: Reference, history: History) -> Item | Reference | ParentUnknown:
    response_id = response_of(reference.id)
    if response_id is None:
        return reference
    entry = history.pin(response_id)
    if entry is None:
        return ParentUnknown(response_id, reference.id)
    turn = entry.checkpoint
    history.unpin(entry)
    items = kept_items(turn.output) if turn.stored else ()
    return next((item for item in items if item.id == reference.id), reference)
