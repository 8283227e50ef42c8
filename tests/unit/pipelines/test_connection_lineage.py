# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""What a connection can be continued from, and what ends that."""

import json
from typing import Any

import pytest

from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import Internal, InvalidRequest, NotFound, Overloaded

CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": ""}


def output(call_id: str = "call_1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "42"}


def texts(prompt: list[dict[str, Any]]) -> list[Any]:
    return [item["content"] for item in prompt if isinstance(item.get("content"), str)]


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def continues(talk: Any, response_id: str, **fields: Any) -> bool:
    """Is that response still there?"""
    answer = talk.ask("resp_probe", previous_response_id=response_id, **fields)
    talk.abort("resp_probe")
    return isinstance(answer, m.Prepared)


def test_a_needle_of_the_first_turn_is_in_the_prompt_of_the_thirtieth(talk: Any) -> None:
    talk.turn("resp_1", input=say("the needle"))
    for number in range(2, 31):
        talk.turn(f"resp_{number}", previous_response_id=f"resp_{number - 1}", input=say("more"))
    assert texts(talk.prompt) == ["the needle"] + ["more"] * 29
    assert len(talk.prompt) == 59


def test_a_fork_sees_exactly_its_own_past(talk: Any) -> None:
    talk.turn("resp_1", input=say("root"))
    talk.turn("resp_2", lane="a", previous_response_id="resp_1", input=say("left"))
    talk.turn("resp_3", lane="b", previous_response_id="resp_1", input=say("right"))
    talk.create("resp_4", lane="a", previous_response_id="resp_2", input=say("end"))
    assert texts(talk.prompt) == ["root", "left", "end"]
    talk.create("resp_5", lane="b", previous_response_id="resp_3", input=say("end"))
    assert texts(talk.prompt) == ["root", "right", "end"]


def test_a_lane_without_parent_starts_from_nothing(talk: Any) -> None:
    talk.turn("resp_1", input=say("old"))
    talk.create("resp_2", input=say("new"))
    assert texts(talk.prompt) == ["new"]


def test_an_unknown_parent_is_a_reply_that_names_it(talk: Any) -> None:
    assert talk.ask("resp_2", previous_response_id="resp_x") == m.ParentUnknown("resp_x")


def test_a_warm_up_is_a_parent(talk: Any) -> None:
    warm = talk.create("resp_1", generate=False, input=say("instructions"))
    talk.answer("resp_1", "")
    follow = talk.create("resp_2", previous_response_id="resp_1", input=[])
    assert not warm.generate
    assert follow.prompt.prefix_key == warm.prompt.key
    assert texts(talk.prompt) == ["instructions"]


@pytest.mark.parametrize("finish", ["length", "cancelled", "content_filter"])
def test_an_incomplete_response_can_be_continued(talk: Any, finish: m.Finish) -> None:
    talk.create("resp_1", input=say("a"))
    talk.answer("resp_1", "half an ans", finish=finish)
    assert continues(talk, "resp_1")


def test_a_failed_response_cannot_be_continued(talk: Any) -> None:
    talk.create("resp_1", input=say("a"))
    talk.abort("resp_1")
    assert not continues(talk, "resp_1")


def test_a_failed_continuation_takes_its_parent_with_it(talk: Any) -> None:
    talk.turn("resp_1", input=say("a"))
    talk.create("resp_2", previous_response_id="resp_1", input=say("b"))
    talk.abort("resp_2", evict=True)
    assert not continues(talk, "resp_1")


def test_a_continuation_that_is_not_to_blame_leaves_its_parent(talk: Any) -> None:
    talk.turn("resp_1", input=say("a"))
    talk.create("resp_2", previous_response_id="resp_1", input=say("b"))
    talk.abort("resp_2")
    assert continues(talk, "resp_1")


def test_a_failed_fork_leaves_the_parent_to_its_own_lane(talk: Any) -> None:
    talk.turn("resp_1", lane="a", input=say("a"))
    talk.create("resp_2", lane="b", previous_response_id="resp_1", input=say("b"))
    talk.abort("resp_2", evict=True)
    assert continues(talk, "resp_1", lane="a")


@pytest.mark.parametrize("fields", [{"input": [output("call_x")]}, {"temperature": "hot"}])
def test_a_refused_continuation_takes_its_parent_with_it(talk: Any, fields: dict[str, Any]) -> None:
    talk.turn("resp_1", input=say("a"))
    with pytest.raises(InvalidRequest):
        talk.ask("resp_2", previous_response_id="resp_1", **fields)
    assert not continues(talk, "resp_1")


def test_a_refused_fork_leaves_the_parent_to_its_own_lane(talk: Any) -> None:
    talk.turn("resp_1", lane="a", input=say("a"))
    with pytest.raises(InvalidRequest):
        talk.ask("resp_2", lane="b", previous_response_id="resp_1", input=[output("call_x")])
    assert continues(talk, "resp_1", lane="a")


def test_an_output_matches_a_call_of_any_earlier_turn(talk: Any) -> None:
    talk.create("resp_1", input=say("a"))
    talk.answer("resp_1", items=[CALL])
    talk.turn("resp_2", previous_response_id="resp_1", input=say("wait"))
    prepared = talk.create("resp_3", previous_response_id="resp_2", input=[output()])
    assert prepared.new_text == ("42",)


def test_an_output_matches_a_call_in_the_same_input(talk: Any) -> None:
    custom = {"type": "custom_tool_call", "call_id": "call_2", "name": "g", "input": ""}
    result = {"type": "custom_tool_call_output", "call_id": "call_2", "output": "x"}
    assert talk.create("resp_1", input=[CALL, output(), custom, result])


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
def test_an_output_without_call_is_refused_about_the_input(talk: Any, kind: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        talk.ask("resp_1", input=[output() | {"type": kind}])
    assert (refusal.value.param, "call_1" in str(refusal.value)) == ("input", True)


def test_a_call_of_another_branch_is_no_call(talk: Any) -> None:
    talk.turn("resp_1", input=say("root"))
    talk.create("resp_2", lane="a", previous_response_id="resp_1", input=say("left"))
    talk.answer("resp_2", items=[CALL])
    with pytest.raises(InvalidRequest):
        talk.ask("resp_3", lane="b", previous_response_id="resp_1", input=[output()])


def test_a_reference_into_the_context_adds_nothing_a_second_time(talk: Any) -> None:
    talk.turn("resp_1", input=say("a"))
    reference = {"type": "item_reference", "id": "msg_resp_1"}
    talk.create("resp_2", previous_response_id="resp_1", input=[reference, *say("b")])
    assert texts(talk.prompt) == ["a", "b"]
    assert len(talk.prompt) == 3


def test_a_reference_to_nothing_names_its_place(talk: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        talk.ask("resp_1", input=[*say("a"), {"type": "item_reference", "id": "msg_x"}])
    assert refusal.value.param == "input[1].id"


def test_ends_of_a_turn_that_come_again_change_nothing(talk: Any) -> None:
    talk.turn("resp_1", input=say("a"))
    talk.create("resp_2", previous_response_id="resp_1", input=say("b"))
    talk.answer("resp_2", "first")
    talk.answer("resp_2", "second")
    talk.abort("resp_2", evict=True)
    talk.create("resp_3", previous_response_id="resp_2", input=say("c"))
    assert talk.prompt[3]["content"][0]["text"] == "first"
    assert continues(talk, "resp_1")


def test_a_turn_prepared_again_holds_its_parent_once(talk: Any) -> None:
    talk.turn("resp_1", input=say("a"))
    for _ in range(3):
        talk.create("resp_2", previous_response_id="resp_1", input=say("b"))
    talk.answer("resp_2")
    entry = talk.state.history.pin("resp_1")
    assert entry.pins == 1


def test_a_parent_in_use_survives_what_other_lanes_bring(new_talk: Any, item_model: Any) -> None:
    talk = new_talk(item_model, cache_bytes=1)
    talk.turn("resp_1", lane="a", input=say("a"))
    talk.create("resp_2", lane="b", previous_response_id="resp_1", input=say("b"))
    for number in range(20):
        talk.turn(f"resp_other{number}", lane="a", input=say("x" * 1000))
    assert continues(talk, "resp_1")
    talk.abort("resp_2")
    assert not continues(talk, "resp_1")


def test_state_is_bounded_however_many_conversations_come(new_talk: Any, item_model: Any) -> None:
    talk = new_talk(item_model, cache_bytes=100_000)
    for number in range(500):
        talk.turn(f"resp_{number}", lane=f"lane{number % 4}", input=say("x" * 2000))
    assert talk.state.history.spare_bytes <= 100_000
    assert talk.state.history.held_bytes <= 100_000 + 4 * 5_000


def test_turns_that_never_end_are_refused_beyond_a_bound(new_talk: Any, item_model: Any) -> None:
    talk = new_talk(item_model, max_prepared=2)
    talk.create("resp_1", input=say("a"))
    talk.create("resp_2", input=say("b"))
    talk.create("resp_2", input=say("b again"))
    with pytest.raises(Overloaded):
        talk.ask("resp_3", input=say("c"))
    talk.abort("resp_1")
    assert talk.create("resp_3", input=say("c"))


def test_an_answer_that_is_no_list_of_items_ends_the_turn_as_our_fault(talk: Any) -> None:
    talk.turn("resp_1", input=say("a"))
    talk.create("resp_2", previous_response_id="resp_1", input=say("b"))
    with pytest.raises(Internal):
        talk.answer("resp_2", items=[{"role": "nobody"}])
    assert not continues(talk, "resp_2")
    entry = talk.state.history.pin("resp_1")
    assert entry.pins == 1


def test_a_prompt_can_be_recalled_while_the_turn_runs_and_shortly_after(talk: Any) -> None:
    talk.turn("resp_1", input=say("a"))
    prepared = talk.create("resp_2", previous_response_id="resp_1", input=say("b"))
    for _ in range(2):
        whole = talk.state.recall(m.Recall("c", "resp_2"))
        assert (whole.key, whole.prefix_key) == (prepared.prompt.key, b"")
        assert json.loads(whole.items) == talk.prompt
        assert whole.head == b'{"instructions":null,"tools":[]}'
        talk.answer("resp_2")


def test_the_prompt_of_no_turn_cannot_be_recalled(talk: Any) -> None:
    with pytest.raises(NotFound):
        talk.state.recall(m.Recall("c", "resp_x"))
    for number in range(50):
        talk.turn(f"resp_{number}", lane=f"lane{number}", input=say("a"))
    with pytest.raises(NotFound):
        talk.state.recall(m.Recall("c", "resp_0"))
    assert talk.state.recall(m.Recall("c", "resp_49"))
