"""Prompts as token ids. Nothing is encoded twice, and the sampled ids of answers are kept.

A format that rewrites history keeps as much as it leaves unchanged: the prompt of the last turn
before the change is named as the prefix, and everything after it is sent again.
"""

import sys
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from turnwire.pipelines.lineage import Checkpoint, Mark
from turnwire.pipelines.messages import TokenIds, TokenPrompt, next_key, root_key
from turnwire.pipelines.prompts.format import AnyFormat, Format
from turnwire.pipelines.prompts.rendered import Head, Prompts
from turnwire.pipelines.prompts.template import ChatTemplate
from turnwire.pipelines.prompts.template_prompts import TemplatePrompts
from turnwire.pipelines.protocol.codec import fingerprint
from turnwire.pipelines.protocol.items import Call, CallOutput, Item, kept_items
from turnwire.pipelines.protocol.tools import Instructions, Tools

Charge = Callable[[Checkpoint, int], None]
"""Told when ids were made for a checkpoint and kept with it."""

_ID_BYTES = 4


def token_prompts(tenant: str, model: str, form: AnyFormat, charge: Charge) -> Prompts:
    """What makes the prompts of a model of the form `tokens`."""
    if isinstance(form, ChatTemplate):
        return TemplatePrompts(tenant, model, form)
    return TokenPrompts(tenant, model, form, charge)


class TokenPrompts:
    """Implements `rendered.Prompts`."""

    def __init__(self, tenant: str, model: str, form: Format, charge: Charge) -> None:
        self._model = model
        self._root = root_key(tenant, model)
        self._form = form
        self._charge = charge

    def head(
        self, instructions: Instructions, tools: Tools, leading: str, effort: str | None = None
    ) -> Head:
        ids = self._form.begin(instructions.text, tools, (), effort=effort)
        # Without instructions a leading system message takes their place, with empty ones not.
        given = b"" if instructions.text is None else b"given"
        return Head(fingerprint(ids + given), ids, instructions.text, tools, effort)

    def continued(
        self, turn: Checkpoint, items: tuple[Item, ...], head: Head
    ) -> tuple[TokenPrompt, Mark]:
        if not _begins(turn):
            turn.rendered[self._name("input", settled=False)] = self._form.items(
                self._named(turn, items)
            )
        prompt, tokens = None, 0
        for base, mark in self._kept(turn, head):
            ids = self._following(turn, head, base)
            if ids is not None:
                prompt, tokens = TokenPrompt(next_key(mark.key, ids), mark.key, ids), mark.tokens
                break
        if prompt is None:
            ids = self._all(turn, head)
            prompt = TokenPrompt(next_key(self._root, ids), b"", ids)
        tokens += len(prompt.ids) // _ID_BYTES
        return prompt, Mark(prompt.key, self._model, head.key, tokens)

    def whole(self, turn: Checkpoint, head: Head) -> TokenPrompt:
        assert turn.mark is not None, "only a turn that was prepared has a prompt"
        return TokenPrompt(turn.mark.key, b"", self._all(turn, head))

    def _kept(self, turn: Checkpoint, head: Head) -> Iterator[tuple[Checkpoint, Mark]]:
        """Turns before this one whose prompts still stand as they were sent, the latest first."""
        asked, base = turn.asked, turn.parent
        while base is not None:
            # Without a mark it came from storage, behind turns that may have been sent from here.
            if base.mark is not None:
                if (base.mark.model, base.mark.head) != (self._model, head.key):
                    return
                if base.mark.tokens and self._stands(base, asked):
                    yield base, base.mark
            asked = asked or base.asked
            base = base.parent

    def _stands(self, base: Checkpoint, asked: bool) -> bool:
        """Is the prompt of `base` the same when a person speaks after it?"""
        if self._form.append_only or not asked:
            return True
        if self._input(base, settled=False) != self._input(base, settled=True):
            return False
        before = base
        while not before.asked and before.parent is not None:
            before = before.parent
            if self._reply(before, settled=False) != self._reply(before, settled=True):
                return False
            if self._input(before, settled=False) != self._input(before, settled=True):
                return False
        return True

    def _all(self, turn: Checkpoint, head: Head) -> TokenIds:
        ids = self._following(turn, head, None)
        assert ids is not None, "the whole follows nothing"
        return ids

    def _following(self, turn: Checkpoint, head: Head, base: Checkpoint | None) -> TokenIds | None:
        """The prompt of `turn` behind that of `base`, or all of it.

        None: the prompt of `base` is no prefix of it after all.
        """
        parts = [self._header(turn)]
        asked, at = False, turn
        while at.parent is not None and not _begins(at):
            parts.append(self._input(at, settled=asked))
            asked = asked or at.asked
            at = at.parent
            reply = self._reply(at, settled=asked)
            if at is base:
                header = self._header(at)
                # Rendered from text, an answer may merge with the header's last token.
                parts.append(reply[len(header) :])
                parts.reverse()
                return b"".join(parts) if reply.startswith(header) else None
            parts.append(reply)
        beginning = self._beginning(at, head, settled=asked)
        parts.append(beginning if base is None else beginning[len(head.content) :])
        parts.reverse()
        return b"".join(parts) if base is None or beginning.startswith(head.content) else None

    def _beginning(self, turn: Checkpoint, head: Head, *, settled: bool) -> TokenIds:
        assert head.tools is not None, "made by `head`"
        items = self._named(turn, kept_items(turn.input))
        return self._form.begin(
            head.instructions, head.tools, items, settled=settled, effort=head.effort
        )

    def _header(self, turn: Checkpoint) -> TokenIds:
        return self._form.header + self._form.opening(turn.effort) if turn.generated else b""

    def _input(self, turn: Checkpoint, *, settled: bool) -> TokenIds:
        return self._rendered(turn, "input", settled=settled)

    def _reply(self, turn: Checkpoint, *, settled: bool) -> TokenIds:
        """A turn's header and answer: as sampled by this model, else rendered from its items."""
        if not turn.generated:
            return b""
        if turn.output and not (turn.sampled and turn.model == self._model):
            return self._rendered(turn, "output", settled=settled)
        ours = turn.model == self._model
        settled = settled and not self._form.append_only
        begun = self._form.opening(turn.effort) if ours and not settled else b""
        said = self._form.answer(turn.sampled if ours else b"", turn.finish, settled=settled)
        return self._form.header + begun + said

    def _rendered(self, turn: Checkpoint, part: str, *, settled: bool) -> TokenIds:
        name = self._name(part, settled=settled)
        ids = turn.rendered.get(name)
        if ids is None:
            items = kept_items(turn.input if part == "input" else turn.output)
            ids = self._form.items(self._named(turn, items), settled=settled)
            twin = turn.rendered.get(self._name(part, settled=not settled))
            if twin == ids:
                turn.rendered[name] = twin
                return twin
            turn.rendered[name] = ids
            self._charge(turn, len(ids))
        return ids

    def _name(self, part: str, *, settled: bool) -> str:
        differs = settled and not self._form.append_only
        return sys.intern(f"{self._form.key} {part}{' settled' if differs else ''}")

    def _named(self, turn: Checkpoint, items: Sequence[Item]) -> Sequence[Item]:
        """The outputs among `items` with the names of their functions, if the format wants them."""
        if not self._form.names_outputs:
            return items
        wanted = {item.call_id for item in items if isinstance(item, CallOutput)}
        names = _calls(items)
        before = turn.parent
        while before is not None and not wanted <= names.keys():
            names = _calls((*kept_items(before.input), *kept_items(before.output))) | names
            before = before.parent
        return [
            replace(item, name=names.get(item.call_id, ""))
            if isinstance(item, CallOutput)
            else item
            for item in items
        ]


def _calls(items: Sequence[Item]) -> dict[str, str]:
    return {item.call_id: item.name for item in items if isinstance(item, Call)}


def _begins(turn: Checkpoint) -> bool:
    """Does the conversation begin with this turn, all before it being empty?"""
    before = turn.parent
    while before is not None:
        if before.generated or before.context.json_bytes:
            return False
        before = before.parent
    return True
