"""Items as the messages a model was trained on: one message may hold thought, text and calls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from turnwire.pipelines.protocol.items import Call, CallOutput, Item, Message, Reasoning, asks


@dataclass(slots=True)
class Assistant:
    """One message of the model: what it thought, said and called, in this order."""

    settled: bool
    """Does a person speak later? Some formats then leave out what was thought."""
    thoughts: list[str] = field(default_factory=list)
    message: Message | None = None
    calls: list[Call] = field(default_factory=list)

    @property
    def reasoning(self) -> str:
        return "\n".join(self.thoughts)

    @property
    def text(self) -> str:
        return "" if self.message is None else self.message.text


@dataclass(slots=True)
class Outputs:
    """Tool outputs that stand together: answers to calls made in parallel."""

    outputs: list[CallOutput]


Group = Message | Assistant | Outputs


def grouped(items: Sequence[Item], *, settled: bool) -> Iterator[Group]:
    """Messages of people and systems alone, the others in groups; items that say nothing left out.

    `settled`: a person speaks after these items.
    """
    last = max((at for at, item in enumerate(items) if asks(item)), default=-1)
    group: Group | None = None
    for at, item in enumerate(items):
        joined = _join(group, item)
        if joined:
            continue
        started = _start(item, settled or at < last)
        if started is None:
            continue
        if group is not None:
            yield group
        group = started
    if group is not None:
        yield group


def leading(items: Sequence[Item]) -> tuple[str | None, Sequence[Item]]:
    """The text of a system message that everything begins with, and the items after it."""
    first = items[0] if items else None
    if isinstance(first, Message) and first.role in ("system", "developer"):
        return first.text, items[1:]
    return None, items


def _join(group: Group | None, item: Item) -> bool:
    """Add `item` to the group before it, where it belongs to the same message."""
    match group, item:
        case Outputs(), CallOutput():
            group.outputs.append(item)
        case Assistant(), Call():
            group.calls.append(item)
        case Assistant(message=None, calls=[]), Reasoning():
            group.thoughts.append(reasoning_text(item))
        case Assistant(message=None, calls=[]), Message(role="assistant"):
            group.message = item
        case _:
            return False
    return True


def _start(item: Item, settled: bool) -> Group | None:
    match item:
        case Message(role="assistant"):
            return Assistant(settled, message=item)
        case Message():
            return item
        case Call():
            return Assistant(settled, calls=[item])
        case CallOutput():
            return Outputs([item])
        case Reasoning():
            return Assistant(settled, thoughts=[reasoning_text(item)])
        case _:
            return None


class _Text(msgspec.Struct, frozen=True):
    text: str | None = None


class _Thought(msgspec.Struct, frozen=True):
    content: list[_Text] | None = None


_thoughts = msgspec.json.Decoder(_Thought)


def reasoning_text(item: Reasoning) -> str:
    """What a model thought, where the item says so in plain text."""
    return "\n".join(part.text for part in _thoughts.decode(item.json).content or () if part.text)
