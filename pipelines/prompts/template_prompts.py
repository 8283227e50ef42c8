"""Prompts through a chat template, which can only render a conversation as a whole.

Whether what was sent stands is not known beforehand, so it is compared: the turn before, rendered
the same way, is either a prefix of the new prompt or it is not. Costs grow with the conversation.
"""

from turnwire.pipelines.lineage import Checkpoint, Mark
from turnwire.pipelines.messages import TokenIds, TokenPrompt, next_key, root_key
from turnwire.pipelines.prompts.rendered import Head
from turnwire.pipelines.prompts.template import ChatTemplate, Run
from turnwire.pipelines.protocol.codec import fingerprint
from turnwire.pipelines.protocol.items import Item, kept_items
from turnwire.pipelines.protocol.tools import Instructions, Tools

_ID_BYTES = 4
_LOOKED_AT = 4
"""Earlier turns compared at most: each costs one more rendering."""


class TemplatePrompts:
    """Implements `rendered.Prompts`."""

    def __init__(self, tenant: str, model: str, form: ChatTemplate) -> None:
        self._model = model
        self._root = root_key(tenant, model)
        self._form = form

    def head(
        self, instructions: Instructions, tools: Tools, leading: str, effort: str | None = None
    ) -> Head:
        effort = effort if self._form.heeds_effort else None
        given = b"%b\0%b\0%b" % (instructions.json, tools.shown, (effort or "").encode())
        return Head(fingerprint(given), b"", instructions.text, tools, effort)

    def continued(
        self, turn: Checkpoint, items: tuple[Item, ...], head: Head
    ) -> tuple[TokenPrompt, Mark]:
        ids = self._all(turn, head)
        tokens = len(ids) // _ID_BYTES
        thinking = turn.generated and self._form.ends_in_thought(ids)
        kept = self._kept(turn, ids, head)
        if kept is None:
            prompt = TokenPrompt(next_key(self._root, ids), b"", ids, thinking)
        else:
            added = ids[kept.tokens * _ID_BYTES :]
            prompt = TokenPrompt(next_key(kept.key, added), kept.key, added, thinking)
        return prompt, Mark(prompt.key, self._model, head.key, tokens)

    def whole(self, turn: Checkpoint, head: Head) -> TokenPrompt:
        assert turn.mark is not None, "only a turn that was prepared has a prompt"
        return TokenPrompt(turn.mark.key, b"", self._all(turn, head))

    def _kept(self, turn: Checkpoint, ids: TokenIds, head: Head) -> Mark | None:
        """The latest turn before this one whose prompt is a prefix of this one's."""
        before = turn.parent
        for _ in range(_LOOKED_AT):
            if before is None or before.mark is None:
                return None
            if (before.mark.model, before.mark.head) != (self._model, head.key):
                return None
            if ids.startswith(self._all(before, head)):
                return before.mark
            before = before.parent
        return None

    def _all(self, turn: Checkpoint, head: Head) -> TokenIds:
        assert head.tools is not None, "made by `head`"
        runs = [self._run(before) for before in turn.ancestors()]
        runs.append(Run(kept_items(turn.input), None))
        return self._form.whole(
            head.instructions, head.tools, runs, generate=turn.generated, effort=head.effort
        )

    def _run(self, turn: Checkpoint) -> Run:
        """A turn that is over: its answer as sampled by this model, else from its items."""
        items = kept_items(turn.input)
        if not turn.generated:
            return Run(items, None)
        if turn.output and not (turn.sampled and turn.model == self._model):
            return Run((*items, *kept_items(turn.output)), None)
        return Run(items, turn.sampled if turn.model == self._model else b"")
