"""What clients make of the items a server returned when they send them again."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from recording_relay import Exchange

from turnwire.pipelines.content_index import contents
from turnwire.pipelines.protocol.items import Reference, parse_items

Json = dict[str, Any]
CALLS = ("function_call", "custom_tool_call")


@dataclass(frozen=True)
class Said:
    """An item of a conversation. `sent`: by the client, and not known by a parent."""

    item: Json
    sent: bool


def same(item: Json, sent: Json) -> bool:
    """Are these one item to a server that looks for a conversation by its content?"""
    return _content([item]) == _content([sent])


def pairs(exchanges: Iterable[Exchange]) -> Iterator[tuple[Json, Json | None]]:
    """Each returned item that the client sent again later, and what it was then: None where it was
    left out of a conversation that went on.
    """
    turns = list(exchanges)
    conversations = list(_conversations(turns))
    for number, turn in enumerate(turns):
        known = conversations[number]
        for later in conversations[number + 1 :]:
            behind = [said.item for said in later[len(known) :] if said.sent]
            if len(behind) == len(later) - len(known) and _begins(later, known):
                for item in turn.returned:
                    yield item, _taken(behind, item)
                break


def _conversations(turns: list[Exchange]) -> Iterator[list[Said]]:
    """What the model was shown with each turn."""
    known: dict[str | None, list[Said]] = {None: []}
    for turn in turns:
        before = known.get(turn.request.get("previous_response_id"), [])
        conversation = before + [Said(item, sent=True) for item in turn.input]
        returned = [Said(item, sent=False) for item in turn.returned]
        known[turn.response_id] = conversation + returned
        yield conversation


def _begins(later: list[Said], known: list[Said]) -> bool:
    start = later[: len(known)]
    return len(later) > len(known) and _content([said.item for said in start]) == _content(
        [said.item for said in known]
    )


def _content(items: list[Json]) -> object:
    parsed = parse_items(orjson.dumps(items), os.urandom, "input")
    return [one for one in contents(item for item in parsed if not isinstance(item, Reference))][
        -1:
    ]


def _taken(behind: list[Json], item: Json) -> Json | None:
    """The first that stands for the item, taken out of the list with all before it."""
    for at, one in enumerate(behind):
        if _stands_for(one, item):
            del behind[: at + 1]
            return one
    return None


def _stands_for(one: Json, item: Json) -> bool:
    if one.get("type") == "item_reference":
        return bool(one["id"] == item["id"])
    if one.get("type", "message") != item["type"]:
        return False
    if item["type"] in CALLS:
        return bool(one["call_id"] == item["call_id"])
    return item["type"] != "message" or one.get("role") == "assistant"


def changes(item: Json, sent: Json | None) -> set[str]:
    """What is different, member by member: `-` dropped, `+` added, `~` another value."""
    kind = item["type"]
    if sent is None:
        return {f"-{kind}"}
    if sent.get("type") == "item_reference":
        return {f"{kind} as item_reference"}
    return set(_changes(kind, item, sent))


def _changes(at: str, before: Json, after: Json) -> Iterator[str]:
    for name in before.keys() | after.keys():
        where = f"{at}.{name}"
        if name not in after:
            yield f"-{where}"
        elif name not in before:
            yield f"+{where}"
        elif before[name] != after[name]:
            yield from _inside(where, before[name], after[name])


def _inside(where: str, before: object, after: object) -> Iterator[str]:
    if not (isinstance(before, list) and isinstance(after, list) and len(before) == len(after)):
        yield f"~{where}"
        return
    for old, new in zip(before, after, strict=True):
        yield from _changes(where, old, new)
