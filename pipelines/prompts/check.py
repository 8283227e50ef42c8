"""Is a prompt that was put together over many turns the one that rendering all of it gives? Pure.

The ids that were sent are not kept, but their key is: it was made of the prefix's key and of what
followed. So the conversation is rendered anew, from its items and sampled ids alone, and the keys
are made again of what came out.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from turnwire.pipelines.lineage import Checkpoint
from turnwire.pipelines.messages import TokenIds, TokenPrompt, next_key, root_key
from turnwire.pipelines.prompts.rendered import Head, Prompts

_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class PromptCheck:
    """A turn that is over, with what made its prompt."""

    tenant: str
    turn: Checkpoint
    prompts: Prompts
    head: Head

    def matches(self) -> bool:
        """Costs as much as the conversation is long. True for prompts of items: not rendered."""
        turn = self.turn
        anew: Checkpoint | None = None
        for past in (*turn.ancestors(), turn):
            anew = replace(past, parent=anew, rendered={})
        assert anew is not None, "the turn itself, if nothing else"
        whole = self.prompts.whole(anew, self.head)
        return not isinstance(whole, TokenPrompt) or self._was_sent(whole.ids)

    def _was_sent(self, ids: TokenIds) -> bool:
        """Follows the prompt down: each part is named by the key of what it was sent behind."""
        turn = self.turn
        while turn.mark is not None and turn.mark.tokens * _ID_BYTES == len(ids):
            if turn.mark.key == next_key(root_key(self.tenant, turn.mark.model), ids):
                return True
            before = self._prefix(turn, ids)
            if before is None or before.mark is None:
                return False
            turn, ids = before, ids[: before.mark.tokens * _ID_BYTES]
        return False

    def _prefix(self, turn: Checkpoint, ids: TokenIds) -> Checkpoint | None:
        assert turn.mark is not None, "the caller has looked"
        before = turn.parent
        while before is not None:
            mark = before.mark
            if mark is not None:
                behind = ids[mark.tokens * _ID_BYTES :]
                if next_key(mark.key, behind) == turn.mark.key:
                    return before
            before = before.parent
        return None
