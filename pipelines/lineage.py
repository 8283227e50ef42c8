"""What a conversation is made of: immutable checkpoints, one a response, each behind its parent.

Branches share everything up to where they part, and adding a turn costs what the turn adds. What
cannot be part of a cycle is kept from the garbage collector, whose pauses grow with all it sees.
"""

from collections.abc import Iterable, Sequence

import msgspec

from turnwire.pipelines.content_index import Content
from turnwire.pipelines.messages import Chain, Finish, Json, StoredTurn, TokenIds
from turnwire.pipelines.opened_items import opened_run
from turnwire.pipelines.protocol.items import Item, asks, call_of, kept_items, role_of
from turnwire.pipelines.sealing import Sealer

_OVERHEAD_BYTES = 2048
"""Python objects of one checkpoint beside its bytes: measured, rounded up."""
_ID_BYTES = 128
"""Of an id that is kept for its own sake."""
_TOGETHER = 32
"""Additions to a set of ids that are put together."""
_FEW = 8
"""So many are found in a tuple as fast, and a set would take more than they do."""


class KnownIds(msgspec.Struct, frozen=True, gc=False):
    """An immutable set of ids that grows by sharing: what was added, behind what was there before.

    Every so many additions are put together into one, so that each id is held twice at most and
    what is looked for among n additions is found in n / 32 steps, what is new in one.
    """

    added: tuple[str, ...] | frozenset[str] = ()
    before: "KnownIds | None" = None
    steps: int = 0
    """Additions behind the last that were put together."""

    def __contains__(self, id: str) -> bool:
        known: KnownIds | None = self
        while known is not None:
            if id in known.added:
                return True
            known = known.before
        return False

    def plus(self, ids: Iterable[str]) -> "KnownIds":
        added = tuple(ids)
        if not added:
            return self
        if self.steps + 1 < _TOGETHER:
            few = len(added) < _FEW
            return KnownIds(added if few else frozenset(added), self, self.steps + 1)
        together, before = set(added), self
        while before.steps and before.before is not None:
            together.update(before.added)
            before = before.before
        return KnownIds(frozenset(together), before)


class Context(msgspec.Struct, frozen=True, gc=False):
    """What later turns must know of all items up to some point."""

    calls: KnownIds = KnownIds()
    """Every `call_id` that was opened."""
    items: KnownIds = KnownIds()
    """The id of every item."""
    leading: str = ""
    """Who speaks first; empty while nobody has."""
    json_bytes: int = 0

    def plus(self, items: Sequence[Item], json: Json) -> "Context":
        return Context(
            self.calls.plus(id for item in items if (id := call_of(item)) is not None),
            self.items.plus(item.id for item in items),
            self.leading or next((role for item in items if (role := role_of(item))), ""),
            self.json_bytes + len(json),
        )

    def renamed(self, ids: Iterable[str]) -> "Context":
        """Its items were sent again, under other ids."""
        return msgspec.structs.replace(self, items=self.items.plus(ids))


class Mark(msgspec.Struct, frozen=True, gc=False):
    """The prompt of a turn as it was sent to the engine, without any answer."""

    key: bytes
    model: str
    head: bytes
    """Names the head in front of it."""
    tokens: int
    """Its length; 0 for the form `items`."""


class Checkpoint(msgspec.Struct, frozen=True, eq=False):
    """One turn and, through `parent`, everything before it.

    Unlike the others here the collector sees it: what it does not see is freed by recursion, and
    conversations are longer than a stack is deep.
    """

    response_id: str
    parent: "Checkpoint | None"
    lane: str | None
    model: str
    stored: bool
    generated: bool
    """False for a warm-up: its prompt invited no answer."""
    context: Context
    input: Json
    """New input items with commas between them, no brackets. `output` likewise."""
    output: Json = b""
    sampled: TokenIds = b""
    finish: Finish = "stop"
    mark: Mark | None = None
    """None: restored from storage, so how its prompt was sent is not known."""
    rendered: dict[str, TokenIds] = msgspec.field(default_factory=dict)
    """Ids of its items, made when first needed, by prompt format and part."""
    asked: bool = False
    """Does a person speak in its input?"""
    effort: str | None = None
    """How much the model was asked to think."""
    content: Content | None = None
    """All that was said up to its end; None: something in it shows in nothing that is said."""
    version: int = 0
    """Of the conversation that ends with it, where it is held for one."""
    renamed: int = 0
    """Items before it that its request sent again: their ids are kept as well."""

    def __repr__(self) -> str:
        """Without what was said: that may come into a log."""
        return f"<Checkpoint {self.response_id}>"

    @property
    def size_bytes(self) -> int:
        """Without its parent."""
        kept = sum(map(len, (self.input, self.output, self.sampled)))
        kept += self.renamed * _ID_BYTES
        return _OVERHEAD_BYTES + kept + sum(map(len, self.rendered.values()))

    def ancestors(self) -> "list[Checkpoint]":
        """All turns before this one, oldest first."""
        found = []
        turn = self.parent
        while turn is not None:
            found.append(turn)
            turn = turn.parent
        found.reverse()
        return found


def context_of(parent: Checkpoint | None) -> Context:
    return Context() if parent is None else parent.context


def content_of(parent: Checkpoint | None) -> Content | None:
    return Content() if parent is None else parent.content


def content_after(before: Content | None, items: Sequence[Item], *, empty: bool) -> Content | None:
    """What was said once these items are there too. `empty`: they may say nothing."""
    if before is None:
        return None
    content = before.plus(items)
    return content if empty or content.said != before.said else None


def chain_to(last: Checkpoint) -> Chain:
    """A whole conversation, as it is stored."""
    return Chain(
        tuple(
            StoredTurn(
                response_id=turn.response_id,
                input=b"[%b]" % turn.input,
                output=b"[%b]" % turn.output,
                model=turn.model,
                sampled=turn.sampled,
                finish=turn.finish,
            )
            for turn in (*last.ancestors(), last)
        )
    )


def restored(turn: StoredTurn, parent: Checkpoint | None, sealer: Sealer) -> Checkpoint:
    """A stored turn as the next checkpoint of its conversation.

    With a compaction item in it, it begins a conversation: all before that is summed up there.
    Raises InvalidEncryptedContent when the key of what is sealed in it is gone.
    """
    given, summed_up = opened_run(unbracketed(turn.input), sealer, "input")
    if summed_up is not None:
        given, parent = joined(summed_up, given), None
    output, summed_up = opened_run(unbracketed(turn.output), sealer, "output")
    if summed_up is not None:
        given, parent = summed_up, None
    items, answer = kept_items(given), kept_items(output)
    generated = bool(turn.sampled or output)
    context = context_of(parent).plus(items, given).plus(answer, output)
    content = content_after(content_of(parent), items, empty=generated or not items)
    return Checkpoint(
        response_id=turn.response_id,
        parent=parent,
        lane=None,
        model=turn.model,
        stored=True,
        generated=generated,
        context=context,
        input=given,
        output=output,
        sampled=turn.sampled,
        finish=turn.finish,
        asked=any(map(asks, items)),
        content=content_after(content, answer, empty=not generated),
    )


def joined(*parts: Json) -> Json:
    """Runs of items, as one."""
    return b",".join(part for part in parts if part)


def unbracketed(items: Json) -> Json:
    """A JSON list as a run of items."""
    return items.strip()[1:-1].strip()
