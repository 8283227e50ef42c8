"""What an actor remembers of its tenant's conversations beyond the connection they came on. Pure.

The gateways of a node collect it now and then, so that it is known there when this actor is gone,
and hand it to another actor whose client repeats it.
"""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from turnwire.pipelines.content_index import Content, ContentIndex, contents
from turnwire.pipelines.continuity import made_by_model
from turnwire.pipelines.lineage import Checkpoint, Mark, content_of, context_of
from turnwire.pipelines.messages import Collected, ContentUnknown, KnownTurn
from turnwire.pipelines.protocol.codec import fingerprint
from turnwire.pipelines.protocol.items import Item, Reference, asks, kept_items

_COLLECTED_BYTES = 16 * 1024 * 1024
"""Of one `Collected`, and of what waits to be collected: behind it the oldest is lost."""


class Repeated(msgspec.Struct, frozen=True):
    """The beginning of an input that is known here."""

    count: int
    turn: Checkpoint | None
    """The one that ends with the last of so many items."""
    wanted: ContentUnknown | None
    """What others may know: there are items behind that a model made."""


NOTHING = Repeated(0, None, None)


class Remembered:
    """The conversations of one actor: all of one tenant."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._index: ContentIndex[Checkpoint] = ContentIndex(max_bytes)
        self._uncollected: OrderedDict[int, Checkpoint] = OrderedDict()
        self._uncollected_bytes = 0
        self._number = 0

    def add(self, turn: Checkpoint) -> None:
        """A turn is over. One that cannot be found by its content is left out."""
        if not self._keep(turn):
            return
        self._number += 1
        self._uncollected[self._number] = turn
        self._uncollected_bytes += turn.size_bytes
        while self._uncollected_bytes > _COLLECTED_BYTES:
            self._collected(next(iter(self._uncollected)))

    def find(self, given: Sequence[Item | Reference]) -> "Repeated":
        """What of these items was said before, from the first on."""
        if not self._max_bytes:
            return NOTHING
        items = [item for item in given if not isinstance(item, Reference)]
        conversation = contents(items)
        count, turn = self._index.longest(conversation) or (0, None)
        last = max((at for at, item in enumerate(items, 1) if made_by_model(item)), default=0)
        if last <= count:
            return Repeated(count, turn, None)
        beyond = conversation[count:]
        wanted = ContentUnknown(
            tuple(content.said for content in beyond),
            tuple(content.thought for content in beyond),
            conversation[count - 1].said if count else b"",
            last - count,
        )
        return Repeated(count, turn, wanted)

    def learn(self, turns: Sequence[KnownTurn]) -> None:
        """What others knew, oldest first."""
        for turn in turns:
            before = self._index.at(turn.before)
            if before is not None or not turn.before:
                self._keep(_checkpoint(turn, before), findable=turn.findable)
        for turn in turns:
            if not turn.findable:
                self._index.forget(turn.response_id)

    def collect(self, after: int) -> Collected:
        """What was added behind number `after`: all up to there has arrived."""
        for number in [number for number in self._uncollected if number <= after]:
            self._collected(number)
        return Collected(tuple(map(_known, self._uncollected.values())), self._number)

    def forget(self, response_id: str) -> None:
        """The response was deleted."""
        self._index.forget(response_id)
        for number, turn in tuple(self._uncollected.items()):
            if turn.response_id == response_id:
                self._collected(number)

    def clear(self) -> None:
        self._index.clear()
        self._uncollected.clear()
        self._uncollected_bytes = 0

    def _keep(self, turn: Checkpoint, *, findable: bool = True) -> bool:
        before = content_of(turn.parent)
        if turn.content is None or before is None:
            return False
        return self._index.put(
            turn.content, before, turn.response_id, turn, turn.size_bytes, findable=findable
        )

    def _collected(self, number: int) -> None:
        self._uncollected_bytes -= self._uncollected.pop(number).size_bytes


def _known(turn: Checkpoint) -> KnownTurn:
    content, before = turn.content or Content(), content_of(turn.parent) or Content()
    mark = turn.mark
    return KnownTurn(
        said=content.said,
        thought=content.thought,
        before=before.said,
        response_id=turn.response_id,
        input=turn.input,
        output=turn.output,
        model=turn.model,
        sampled=turn.sampled,
        finish=turn.finish,
        generated=turn.generated,
        stored=turn.stored,
        prompt=None if mark is None else (mark.key, mark.model, mark.head, mark.tokens),
        rendered=turn.rendered,
        effort=turn.effort,
        behind=_sent(turn.parent),
    )


def _sent(turn: Checkpoint | None) -> bytes:
    """Names the prompt of a turn and what was sampled behind it; empty where that is not known."""
    if turn is None or turn.mark is None:
        return b""
    return fingerprint(turn.mark.key + turn.finish.encode() + turn.sampled)


def _checkpoint(turn: KnownTurn, before: Checkpoint | None) -> Checkpoint:
    given, answer = kept_items(turn.input), kept_items(turn.output)
    context = context_of(before).plus(given, turn.input).plus(answer, turn.output)
    # What was said before may be the same, and have been thought or sampled otherwise.
    is_behind = before is None or turn.behind == _sent(before) != b""
    return Checkpoint(
        response_id=turn.response_id,
        parent=before,
        lane=None,
        model=turn.model,
        stored=turn.stored,
        generated=turn.generated,
        context=context,
        input=turn.input,
        output=turn.output,
        sampled=turn.sampled,
        finish=turn.finish,
        mark=Mark(*turn.prompt) if turn.prompt is not None and is_behind else None,
        rendered=dict(turn.rendered),
        asked=any(map(asks, given)),
        content=Content(turn.said, turn.thought),
        effort=turn.effort,
    )
