# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""Full resends: found by what is said, continued as if the parent had been named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_ports import KEYRING

from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ConnectionSettings
from turnwire.pipelines.connection import ConnectionState
from turnwire.pipelines.content_index import Content, ContentIndex, contents
from turnwire.pipelines.protocol.items import kept_items
from turnwire.pipelines.remembered import Remembered
from turnwire.pipelines.sealing import Sealer

SEALER = Sealer("acme", KEYRING)
SEALED = SEALER.seal("reasoning", "Let me see.")
OTHER = SEALER.seal("reasoning", "No.")
ASK = {"type": "message", "role": "user", "content": "hello"}
NEXT = {"type": "message", "role": "user", "content": "hello world"}
ANSWER = {
    "type": "message",
    "id": "msg_7",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "fine", "annotations": [], "logprobs": []}],
}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_7",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Let me see."}],
}
CALL = {"type": "function_call", "id": "fc_7", "call_id": "call_7", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_7", "output": "done"}
REPEATED = {"role": "assistant", "content": "fine"}
SAMPLED = (9, 8, 7, 2)


def answered(talk: Any, *items: dict[str, Any], **fields: Any) -> None:
    talk.create("resp_1", input=[ASK], **fields)
    talk.answer("resp_1", items=[*items], sampled=SAMPLED)


def resend(talk: Any, *items: dict[str, Any], **fields: Any) -> m.Prepared:
    prepared = talk.create("resp_2", input=[ASK, *items], **fields)
    assert isinstance(prepared, m.Prepared)
    return prepared


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_a_full_resend_is_prepared_as_the_continuation_it_repeats(
    new_talk: Any, token_model: m.Model, transport: str
) -> None:
    talk, other = new_talk(token_model), new_talk(token_model)
    answered(talk, ANSWER, transport=transport)
    answered(other, ANSWER)
    again = resend(talk, REPEATED, NEXT, transport=transport)
    named = other.create("resp_2", previous_response_id="resp_1", input=[NEXT])
    assert talk.prompt == other.prompt
    assert again.prompt == named.prompt
    assert again.prompt.prefix_key
    assert (again.repeated_items, named.repeated_items) == (2, 0)
    assert again.new_text == ("hello world",)
    assert again.parent_id is None
    assert again.continuation == ("full_cached" if transport == "websocket" else "full")


def test_a_changed_head_is_rendered_before_the_same_segments(token_talk: Any) -> None:
    answered(token_talk, ANSWER)
    again = resend(token_talk, REPEATED, NEXT, instructions="the system")
    assert again.repeated_items == 2
    assert again.prompt.prefix_key == b""
    at = token_talk.prompt.index(SAMPLED[0])
    assert tuple(token_talk.prompt[at : at + 4]) == SAMPLED


def test_another_connection_of_the_actor_finds_it_too(item_model: m.Model, new_talk: Any) -> None:
    remembered = Remembered(1 << 20)
    talk, other = new_talk(item_model), new_talk(item_model)
    for one in (talk, other):
        one.state = ConnectionState("acme", ConnectionSettings(), bytes, remembered=remembered)
    other.engine = talk.engine
    answered(talk, ANSWER)
    again = resend(other, REPEATED, NEXT)
    assert again.repeated_items == 2
    assert [item["role"] for item in other.prompt] == ["user", "assistant", "user"]
    # Found by its content only: its name belongs to the other connection.
    unknown = other.ask("resp_3", previous_response_id="resp_1", input=[NEXT])
    assert unknown == m.ParentUnknown("resp_1")
    other.answer("resp_2")
    other.create("resp_4", previous_response_id="resp_2", input=[NEXT])
    assert len(other.prompt) == 5


def test_what_is_stored_of_a_resend_is_all_that_was_sent(talk: Any) -> None:
    answered(talk, ANSWER)
    again = resend(talk, REPEATED, NEXT, store=True)
    assert again.repeated_items == 2
    assert len(json.loads(again.stored_input)) == 3
    assert again.stored_context is None


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_repeated_items_can_be_referred_to_by_the_ids_they_came_with(
    talk: Any, transport: str
) -> None:
    answered(talk, ANSWER)
    mine = REPEATED | {"id": "msg_mine"}
    again = resend(talk, mine, NEXT, store=True, transport=transport)
    assert again.repeated_items == 2
    talk.answer("resp_2")
    shown = [item["id"] for item in json.loads(again.stored_input)]
    assert "msg_mine" in shown
    references = [{"type": "item_reference", "id": id} for id in (*shown, "msg_7")]
    assert talk.create("resp_3", previous_response_id="resp_2", input=[*references, NEXT])


def test_the_longest_known_beginning_is_continued(talk: Any) -> None:
    answered(talk, ANSWER)
    talk.turn("resp_a", previous_response_id="resp_1", input=[NEXT])
    assert resend(talk, REPEATED, NEXT, REPEATED, NEXT).repeated_items == 4
    assert resend(talk, REPEATED, NEXT | {"content": "other"}, REPEATED, NEXT).repeated_items == 2
    assert resend(talk, REPEATED).repeated_items == 2
    assert resend(talk, NEXT).repeated_items == 0


@pytest.mark.parametrize(
    ("items", "known"),
    [
        ([THOUGHT, ANSWER], 3),
        ([ANSWER], 2),
        ([{"type": "reasoning", "summary": [], "encrypted_content": None}, ANSWER], 3),
        ([{"type": "reasoning", "summary": [], "encrypted_content": SEALED}, ANSWER], 3),
        ([{"type": "reasoning", "summary": [], "encrypted_content": OTHER}, ANSWER], 0),
        ([THOUGHT | {"content": [{"type": "reasoning_text", "text": "No."}]}, ANSWER], 0),
    ],
    ids=["as it was", "left out", "without its text", "sealed", "another, sealed", "another"],
)
def test_reasoning_may_be_left_out_and_must_not_be_another(
    talk: Any, items: list[dict[str, Any]], known: int
) -> None:
    answered(talk, THOUGHT, ANSWER)
    assert resend(talk, *items, NEXT).repeated_items == known


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({}, 2),
        ({"id": None, "status": "completed"}, 2),
        ({"arguments": '{"a":1}'}, 0),
        ({"name": "g"}, 0),
    ],
)
def test_calls_are_compared_by_what_they_call(
    talk: Any, change: dict[str, Any], known: int
) -> None:
    answered(talk, CALL)
    assert resend(talk, CALL | change, OUTPUT).repeated_items == known


def test_an_output_without_its_call_is_refused_as_ever(talk: Any) -> None:
    answered(talk, ANSWER)
    with pytest.raises(Exception, match="No tool call found"):
        resend(talk, REPEATED, OUTPUT)
    assert resend(talk, REPEATED, NEXT).repeated_items == 2


def test_images_are_told_apart(talk: Any) -> None:
    def seen(url: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "input_image", "image_url": url}]}

    talk.turn("resp_1", input=[seen("data:a")])
    again = talk.create("resp_2", input=[seen("data:a"), REPEATED, NEXT])
    other = talk.create("resp_3", input=[seen("data:b"), REPEATED, NEXT])
    assert (again.repeated_items, other.repeated_items) == (2, 0)


def test_an_answer_that_said_nothing_is_not_taken_for_the_question_alone(talk: Any) -> None:
    talk.create("resp_1", input=[ASK])
    talk.answer("resp_1", "")
    assert talk.create("resp_2", input=[ASK]).repeated_items == 0
    talk.turn("resp_3", previous_response_id="resp_1", input=[NEXT])
    assert talk.create("resp_4", input=[ASK, NEXT, REPEATED, NEXT]).repeated_items == 0


def test_a_warm_up_is_found_by_what_it_was_given(talk: Any) -> None:
    talk.create("resp_1", input=[ASK], generate=False)
    talk.answer("resp_1", "")
    again = talk.create("resp_2", input=[ASK, NEXT])
    assert (again.repeated_items, len(talk.prompt)) == (1, 2)
    assert talk.create("resp_3", input=[ASK]).repeated_items == 1


def test_a_deleted_response_is_found_no_more(talk: Any) -> None:
    answered(talk, ANSWER)
    talk.turn("resp_a", previous_response_id="resp_1", input=[NEXT])
    talk.state.forget("resp_1")
    assert resend(talk, REPEATED, NEXT).repeated_items == 0
    assert resend(talk, REPEATED, NEXT, REPEATED, NEXT).repeated_items == 4
    talk.state.forget("resp_a")
    assert resend(talk, REPEATED, NEXT, REPEATED, NEXT).repeated_items == 0


def test_zero_bytes_switch_it_off(item_model: m.Model, new_talk: Any) -> None:
    talk = new_talk(item_model, content_index_bytes=0)
    answered(talk, ANSWER)
    assert resend(talk, REPEATED, NEXT).repeated_items == 0


def test_a_resend_pins_nothing_for_good(talk: Any) -> None:
    for _ in range(20):
        answered(talk, ANSWER)
        resend(talk, REPEATED, NEXT, transport="http")
        talk.answer("resp_2")
    history = talk.state.history
    assert all(not entry.pins for entry in history._alive.values())
    assert history.held_bytes == sum(entry.size_bytes for entry in history._alive.values())


# --- the index alone --------------------------------------------------------------------------


def said(*texts: str) -> list[Content]:
    items = b",".join(
        b'{"type":"message","id":"m","role":"user","content":"%b"}' % text.encode()
        for text in texts
    )
    return contents(kept_items(items))


def keep(index: ContentIndex[str], *texts: str, size_bytes: int = 0) -> bool:
    path = [Content(), *said(*texts)]
    return index.put(path[-1], path[-2], "/".join(texts), "/".join(texts), size_bytes)


def test_the_longest_unused_goes_and_never_before_what_follows_it() -> None:
    index: ContentIndex[str] = ContentIndex(5000)
    for conversation in ("abc", "xyz"):
        for end in range(1, 4):
            assert keep(index, *conversation[:end], size_bytes=488)
    assert index.size_bytes == 6 * 1000 - 1000
    assert index.longest(said("a", "b", "c")) == (2, "a/b")
    assert keep(index, "a", "b", "d", size_bytes=488)
    assert index.longest(said("x", "y", "z")) == (2, "x/y")
    held = [("a", True), ("a/b", True), ("a/b/d", True)]
    assert index.turns(said("a", "b", "d")[-1]) == held
    assert index.turns(said("a", "b", "d")[-1], behind=said("a")[-1].said) == held[1:]


def test_what_is_larger_than_all_is_not_kept_nor_what_follows_it() -> None:
    index: ContentIndex[str] = ContentIndex(5000)
    assert keep(index, "x", size_bytes=488)
    assert not keep(index, "a", size_bytes=5000)
    assert not keep(index, "a", "b")
    assert (len(index), index.size_bytes) == (1, 1000)


def test_a_turn_that_replaces_another_counts_with_its_own_size() -> None:
    index: ContentIndex[str] = ContentIndex(5000)
    assert keep(index, "a", size_bytes=88)
    assert keep(index, "x", size_bytes=1488)
    assert keep(index, "a", size_bytes=2488)
    assert index.size_bytes == 5000
    assert keep(index, "a", size_bytes=3488)
    assert (index.longest(said("x")), index.size_bytes) == (None, 4000)


def test_of_two_with_the_same_content_the_newer_is_found() -> None:
    index: ContentIndex[str] = ContentIndex(5000)
    for name in ("resp_1", "resp_2"):
        assert index.put(said("a")[0], Content(), name, name, 100)
    assert index.longest(said("a")) == (1, "resp_2")
    index.forget("resp_1")
    assert index.longest(said("a")) == (1, "resp_2")
    index.forget("resp_2")
    assert index.longest(said("a")) is None
    assert not index.put(said("a")[0], Content(), "resp_2", "late", 100)


paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=4)
steps = st.tuples(st.sampled_from(["keep", "find", "forget"]), paths, st.integers(0, 900))


@given(st.lists(steps, max_size=40))
def test_an_index_keeps_its_promises_whatever_comes(
    taken: list[tuple[str, list[str], int]],
) -> None:
    index: ContentIndex[str] = ContentIndex(6000)
    deleted: set[str] = set()
    for what, path, size_bytes in taken:
        name = "/".join(path)
        if what == "keep":
            for end in range(1, len(path) + 1):
                keep(index, *path[:end], size_bytes=size_bytes)
        elif what == "forget":
            index.forget(name)
            deleted.add(name)
        found = index.longest(said(*path))
        if found is not None:
            count, turn = found
            assert turn == "/".join(path[:count])
            assert turn not in deleted
            assert len(index.turns(said(*path)[count - 1])) == count
        nodes = index._nodes.values()
        assert index.size_bytes == sum(node.size_bytes for node in nodes) <= 6000
        assert set(index._leaves) == {node.content.said for node in nodes if not node.children}
