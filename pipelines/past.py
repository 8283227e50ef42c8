"""What a request continues: from memory, by what is said in it, or as storage had it. Pure."""

from msgspec import structs

from turnwire.pipelines import conversations
from turnwire.pipelines import messages as m
from turnwire.pipelines.history import Entry, History
from turnwire.pipelines.lineage import joined, restored
from turnwire.pipelines.opened_items import opened
from turnwire.pipelines.protocol.errors import Internal
from turnwire.pipelines.protocol.ids import RandomBytes
from turnwire.pipelines.protocol.items import Item, Reference
from turnwire.pipelines.protocol.requests import Request, RequestParser
from turnwire.pipelines.remembered import Remembered
from turnwire.pipelines.sealing import Sealer
from turnwire.pipelines.stored_references import resolved


class Past:
    """Of one connection. What it finds comes pinned."""

    def __init__(
        self,
        history: History,
        remembered: Remembered,
        sealer: Sealer,
        random_bytes: RandomBytes,
        max_input_characters: int,
    ) -> None:
        self._history = history
        self._remembered = remembered
        self._sealer = sealer
        self._random_bytes = random_bytes
        self._max_input_characters = max_input_characters
        self._parser = self._new_parser()

    def parsed(self, command: m.Prepare | m.CountTokens) -> Request | m.ParentUnknown:
        """With what is sealed in its input opened: all that follows knows plain items only."""
        transport = command.transport if isinstance(command, m.Prepare) else "http"
        parser = self._new_parser() if "validation" in _left_out(command) else self._parser
        request = parser.parse(command.frame, transport)
        items = self._resolved(request, command.chain)
        if isinstance(items, m.ParentUnknown):
            return items
        read, window = opened(items, self._sealer)
        if read is items:
            return request if items is request.input else structs.replace(request, input=items)
        sent = joined(*(item.json for item in items if not isinstance(item, Reference)))
        return structs.replace(request, input=read, sent=sent, window=window)

    def _resolved(
        self, request: Request, chain: m.Chain | None
    ) -> tuple[Item | Reference, ...] | m.ParentUnknown:
        if request.names_what_is_before:
            return request.input
        loaded = self._find(chain.turns[-1].response_id, chain) if chain and chain.turns else None
        items = resolved(request.input, self._history)
        if loaded is not None:
            self._history.unpin(loaded)
        return items

    def before(
        self, request: Request, command: m.Prepare | m.CountTokens
    ) -> tuple[Entry | None, int] | m.ParentUnknown | m.ConversationAt | m.ContentUnknown:
        """What the turn continues, pinned, and how much of its input that is already; or what must
        be loaded first."""
        if request.conversation_id is not None:
            end = conversations.found(
                self._history, request.conversation_id, command.conversation, self._sealer
            )
            return end if isinstance(end, m.ConversationAt) else (end, 0)
        if request.previous_response_id is not None:
            parent = self._find(request.previous_response_id, command.chain)
            return m.ParentUnknown(request.previous_response_id) if parent is None else (parent, 0)
        if "token_cache" in _left_out(command):
            return None, 0
        known = self._remembered.find(request.input)
        if isinstance(command, m.Prepare) and command.may_ask and known.wanted is not None:
            return known.wanted
        return None if known.turn is None else self._history.adopt(known.turn), known.count

    def _find(self, response_id: str, chain: m.Chain | None) -> Entry | None:
        """The parent, pinned: from memory, else from what storage had of it."""
        entry = self._history.pin(response_id)
        if entry is not None or chain is None or not chain.turns:
            return entry
        if chain.turns[-1].response_id != response_id:
            raise Internal("storage answered with another conversation")
        for turn in chain.turns:
            before: Entry | None = entry
            entry = self._history.pin(turn.response_id)
            if entry is None:
                checkpoint = restored(turn, before.checkpoint if before else None, self._sealer)
                parent = None if checkpoint.parent is None else before
                entry = self._history.add(checkpoint, parent, latest=False)
                self._remembered.add(checkpoint)
            if before is not None:
                self._history.unpin(before)
        return entry

    def _new_parser(self) -> RequestParser:
        return RequestParser(self._random_bytes, self._max_input_characters)

    def evict(self, response_id: str, lane: str | None) -> None:
        """It is no parent any more, if it came on that lane."""
        entry = self._history.pin(response_id)
        if entry is None:
            return
        if entry.checkpoint.lane == lane:
            self._history.evict(response_id)
        self._history.unpin(entry)


def _left_out(command: m.Prepare | m.CountTokens) -> tuple[str, ...]:
    return command.ablated if isinstance(command, m.Prepare) else ()
