# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""What an actor hands over of its conversations, and what a node makes of it."""

from typing import Any

import pytest
from scripted_ports import KEYRING

from turnwire.pipelines import remembered
from turnwire.pipelines.config import ConnectionSettings
from turnwire.pipelines.connection import ConnectionState
from turnwire.pipelines.messages import Collected, ContentUnknown, Model, Recall
from turnwire.pipelines.node_index import NodeIndex
from turnwire.pipelines.protocol.items import Item, kept_items
from turnwire.pipelines.remembered import Remembered

SAID = b'{"type":"message","id":"m","role":"assistant","content":"fine"}'


def asked(text: str) -> bytes:
    return b'{"type":"message","id":"m","role":"user","content":"%b"}' % text.encode()


def items(*parts: bytes) -> tuple[Item, ...]:
    return kept_items(b",".join(parts))


def talked(new_talk: Any, model: Model, *texts: str) -> Remembered:
    """One conversation, a turn a text."""
    talk, known = new_talk(model), Remembered(1 << 20)
    talk.state = ConnectionState("acme", ConnectionSettings(), bytes, remembered=known)
    parent = None
    for number, text in enumerate(texts, 1):
        talk.turn(f"resp_{text}_{number}", input=text, previous_response_id=parent)
        parent = f"resp_{text}_{number}"
    return known


def wanted(*texts: str) -> ContentUnknown:
    parts = [part for text in texts for part in (asked(text), SAID)]
    found = Remembered(1 << 20).find(items(*parts)).wanted
    assert found is not None
    return found


def names(collected: Collected) -> list[str]:
    return [turn.response_id for turn in collected.turns]


def test_what_ended_is_handed_over_until_it_has_arrived(new_talk: Any, item_model: Model) -> None:
    known = talked(new_talk, item_model, "a", "b")
    first = known.collect(0)
    assert names(first) == ["resp_a_1", "resp_b_2"]
    assert names(known.collect(0)) == names(first)
    assert names(known.collect(first.number)) == []


def test_what_is_deleted_is_not_handed_over(new_talk: Any, item_model: Model) -> None:
    known = talked(new_talk, item_model, "a", "b")
    known.forget("resp_a_1")
    assert names(known.collect(0)) == ["resp_b_2"]


def test_what_waits_to_be_handed_over_is_bounded(
    new_talk: Any, item_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "_COLLECTED_BYTES", 5_000)
    known = talked(new_talk, item_model, *"abcdef")
    assert names(known.collect(0)) == ["resp_e_5", "resp_f_6"]


def test_an_actor_goes_on_where_its_own_knowledge_ends(new_talk: Any, item_model: Model) -> None:
    node = NodeIndex(1 << 20)
    node.put("acme", talked(new_talk, item_model, "a", "b", "c").collect(0).turns)
    short = talked(new_talk, item_model, "a")
    given = items(asked("a"), SAID, asked("b"), SAID, asked("c"), SAID, asked("d"))
    found = short.find(given)
    assert found.count == 2
    assert found.wanted is not None
    turns = node.find("acme", found.wanted)
    assert [turn.response_id for turn in turns] == ["resp_b_2", "resp_c_3"]
    short.learn(turns)
    after = short.find(given)
    assert (after.count, after.wanted) == (6, None)
    assert after.turn is not None
    assert len(after.turn.ancestors()) == 2
    # What was learned is not handed back.
    assert names(short.collect(0)) == ["resp_a_1"]


def test_turns_that_said_the_same_are_not_taken_for_each_other(
    new_talk: Any, token_model: Model
) -> None:
    """The answer was sampled in other tokens here, so a prompt behind it is not that of theirs."""
    talk, other = new_talk(token_model), new_talk(token_model)
    known, ours = Remembered(1 << 20), Remembered(1 << 20)
    for one, remembers, sampled in ((talk, known, (9, 8, 7, 2)), (other, ours, (5, 6, 2))):
        one.state = ConnectionState(
            "acme", ConnectionSettings(), bytes, remembered=remembers, keyring=KEYRING
        )
        one.create("resp_1", input="hello")
        one.answer("resp_1", sampled=sampled)
    other.engine = talk.engine
    talk.turn("resp_2", previous_response_id="resp_1", input=" world")
    ours.learn(known.collect(0).turns[1:])
    history = [("user", "hello"), ("assistant", "fine"), ("user", " world"), ("assistant", "fine")]
    items = [{"role": role, "content": content} for role, content in (*history, ("user", "the"))]
    assert other.create("resp_3", input=items).repeated_items == 4
    sent = other.prompt
    whole = other.state.recall(Recall("c", "resp_3"))
    assert other.engine.take(whole) == sent


def test_tenants_know_nothing_of_each_other(new_talk: Any, item_model: Model) -> None:
    node = NodeIndex(1 << 20)
    node.put("acme", talked(new_talk, item_model, "a").collect(0).turns)
    assert node.find("rival", wanted("a")) == ()
    assert len(node.find("acme", wanted("a"))) == 1
    node.forget("rival", "resp_a_1")
    assert len(node.find("acme", wanted("a"))) == 1
    node.forget("acme", "resp_a_1")
    assert node.find("acme", wanted("a")) == ()
    assert node.size_bytes == 0


def test_the_tenant_that_takes_most_makes_room(new_talk: Any, item_model: Model) -> None:
    node = NodeIndex(8_000)
    node.put("small", talked(new_talk, item_model, "a").collect(0).turns)
    for text in "bcdefghijk":
        node.put("large", talked(new_talk, item_model, text).collect(0).turns)
    assert node.size_bytes <= 8_000
    assert len(node.find("small", wanted("a"))) == 1
    assert node.find("large", wanted("b")) == ()
    assert len(node.find("large", wanted("k"))) == 1
