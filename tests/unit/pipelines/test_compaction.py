# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""What a compacted conversation consists of, on both forms of prompts and over many hops."""

import json
from typing import Any

import pytest
from scripted_ports import KEYRING

from turnwire.pipelines import messages as m
from turnwire.pipelines.compaction import SUMMARIZE, compact_frame, compaction_object
from turnwire.pipelines.lineage import chain_to
from turnwire.pipelines.protocol.errors import InvalidRequest, NotFound
from turnwire.pipelines.sealing import Sealer
from turnwire.pipelines.window import LEAD, packed

RULE = [{"type": "compaction", "compact_threshold": 1000}]
LONG = {"role": "user", "content": "hello " * 700}
HI = {"role": "assistant", "content": "fine"}
NEXT = {"role": "user", "content": "hello world"}
TRIGGER = {"type": "compaction_trigger"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "done"}


def item_of(summary: str, *kept: dict[str, Any]) -> dict[str, Any]:
    run = b",".join(json.dumps(item).encode() for item in kept)
    sealed = Sealer("acme", KEYRING).seal("compaction", packed(summary, run))
    return {"type": "compaction", "id": "cmp_1", "encrypted_content": sealed}


def texts(prompt: list[dict[str, Any]]) -> list[str]:
    found = []
    for item in prompt:
        content = item.get("content", item["type"])
        found.append(content if isinstance(content, str) else content[0]["text"])
    return found


def compacted(talk: Any, response_id: str, summary: str = "a summary") -> dict[str, Any]:
    """What a gateway does of a turn that compacts; the compaction item."""
    done = talk.state.compact(m.Compact("c", response_id, f"cmp_{response_id}", summary))
    assert isinstance(done, m.Compacted)
    if done.prompt is not None:
        talk.prompt = talk.engine.take(done.prompt)
    return {
        "type": "compaction",
        "id": f"cmp_{response_id}",
        "encrypted_content": done.sealed,
    }


def test_a_trigger_asks_behind_the_prompt_the_worker_has(talk: Any) -> None:
    talk.turn("resp_1", input=[LONG])
    prepared = talk.create("resp_2", previous_response_id="resp_1", input=[NEXT, TRIGGER])
    assert prepared.compaction == "only"
    assert prepared.prompt.prefix_key
    assert texts(talk.prompt)[-3:] == ["fine", "hello world", SUMMARIZE]
    assert prepared.facts.tool_choice == b'"none"'
    assert prepared.new_text == ("hello world",)


def test_what_comes_later_reads_the_summary_and_a_fork_from_before_everything(talk: Any) -> None:
    talk.turn("resp_1", input=[LONG])
    talk.create("resp_2", previous_response_id="resp_1", input=[TRIGGER])
    talk.answer("resp_2", items=[compacted(talk, "resp_2")])
    talk.turn("resp_3", previous_response_id="resp_2", input=[NEXT])
    assert texts(talk.prompt) == [LEAD + "a summary", "hello world"]
    talk.turn("resp_4", previous_response_id="resp_3", input=[NEXT])
    assert len(talk.prompt) == 4
    talk.turn("resp_5", previous_response_id="resp_1", lane="fork", input=[NEXT])
    assert texts(talk.prompt) == [LONG["content"], "fine", "hello world"]


def test_a_conversation_is_compacted_again_and_again(talk: Any) -> None:
    parent = None
    for hop in range(1, 6):
        extra = {"previous_response_id": parent} if parent else {}
        talk.turn(f"resp_{hop}a", input=[NEXT], **extra)
        talk.create(f"resp_{hop}b", previous_response_id=f"resp_{hop}a", input=[TRIGGER])
        # The summary before is part of what is summed up now.
        assert (LEAD + f"summary {hop - 1}" in texts(talk.prompt)) == (hop > 1)
        item = compacted(talk, f"resp_{hop}b", f"summary {hop}")
        talk.answer(f"resp_{hop}b", items=[item])
        parent = f"resp_{hop}b"
    talk.create("resp_x", previous_response_id=parent, input=[NEXT])
    assert texts(talk.prompt) == [LEAD + "summary 5", "hello world"]


def test_token_prompts_are_compacted_by_their_own_length(token_talk: Any) -> None:
    talk = token_talk
    talk.turn("resp_1", input=[LONG], context_management=RULE)
    long = len(talk.prompt)
    prepared = talk.create(
        "resp_2", previous_response_id="resp_1", input=[NEXT], context_management=RULE
    )
    assert (prepared.compaction, prepared.compact_threshold) == ("first", 1000)
    assert prepared.prompt.prefix_key
    item = compacted(talk, "resp_2")
    short = len(talk.prompt)
    assert short < 200 < 1000 < long
    answer = {"type": "message", "id": "msg_2", "role": "assistant", "content": "fine"}
    talk.answer("resp_2", items=[item, answer], sampled=(9, 8, 7, 2))
    after = talk.create(
        "resp_3", previous_response_id="resp_2", input=[NEXT], context_management=RULE
    )
    assert after.compaction == ""
    assert after.prompt.prefix_key, "the compacted prompt was sent, so it is a prefix"
    whole = talk.state.recall(m.Recall("c", "resp_3"))
    assert talk.engine.take(whole) == talk.prompt
    assert 9 in talk.prompt[short:]


def test_a_prompt_that_does_not_fit_is_compacted_before_it_is_refused(
    new_talk: Any, token_model: m.Model
) -> None:
    talk = new_talk(m.Model(**{**_fields(token_model), "context_window": 1100}))
    talk.turn("resp_1", input=[{"role": "user", "content": "hello " * 300}])
    prepared = talk.create(
        "resp_2",
        previous_response_id="resp_1",
        input=[{"role": "user", "content": "hello " * 300}],
        context_management=RULE,
    )
    assert prepared.compaction == "first"


def _fields(model: m.Model) -> dict[str, Any]:
    return {name: getattr(model, name) for name in model.__struct_fields__}


def test_prompts_of_items_are_compacted_once_the_engine_has_counted_them(talk: Any) -> None:
    prepared = talk.create("resp_1", input=[LONG, HI, NEXT], context_management=RULE)
    assert (prepared.compaction, prepared.compact_threshold) == ("count", 1000)
    assert texts(talk.prompt)[-1] == "hello world"
    asked = talk.state.summarize(m.Summarize("c", "resp_1"))
    assert texts(talk.engine.take(asked.prompt)) == [LONG["content"], "fine", SUMMARIZE]
    compacted(talk, "resp_1")
    assert texts(talk.prompt) == [LEAD + "a summary", "hello world"]


@pytest.mark.parametrize(
    "items",
    [[NEXT], [LONG], [item_of("x" * 2000), NEXT]],
    ids=["short", "nothing before it", "a summary alone"],
)
def test_what_cannot_become_shorter_is_left_as_it_is(
    talk: Any, items: list[dict[str, Any]]
) -> None:
    assert talk.create("resp_1", input=items, context_management=RULE).compaction == ""


def test_open_calls_and_what_was_asked_are_kept(talk: Any) -> None:
    past = [LONG, HI, NEXT, CALL, OUTPUT]
    talk.create("resp_1", input=past, context_management=RULE)
    talk.state.summarize(m.Summarize("c", "resp_1"))
    compacted(talk, "resp_1")
    kinds = [item["type"] for item in talk.prompt]
    assert kinds == ["message", "message", "function_call", "function_call_output"]
    assert texts(talk.prompt)[1] == "hello world"
    talk.answer("resp_1")
    talk.create("resp_2", input=[LONG, CALL, TRIGGER])
    item = compacted(talk, "resp_2")
    talk.answer("resp_2", items=[item])
    talk.create("resp_3", previous_response_id="resp_2", input=[OUTPUT])
    assert [item["type"] for item in talk.prompt][1:] == ["function_call", "function_call_output"]


def test_a_compaction_item_ends_what_came_before_it(talk: Any) -> None:
    talk.turn("resp_1", input=[NEXT])
    item = item_of("what was", {"type": "message", "id": "msg_k", **NEXT})
    prepared = talk.create("resp_2", previous_response_id="resp_1", input=[LONG, item, HI, NEXT])
    assert texts(talk.prompt) == [LEAD + "what was", "hello world", "fine", "hello world"]
    assert prepared.new_text == ("hello world",)
    with pytest.raises(InvalidRequest, match="call_1"):
        talk.create("resp_3", input=[CALL, item, OUTPUT])


def test_a_resent_window_is_found_by_its_content(talk: Any) -> None:
    talk.create("resp_1", input=[item_of("what was"), NEXT])
    talk.answer("resp_1")
    again = talk.create("resp_2", input=[item_of("what was"), NEXT, HI, NEXT])
    assert again.repeated_items == 3
    assert again.prompt.prefix_key
    assert again.new_text == ("hello world",)


def test_what_is_stored_is_what_the_client_sent(talk: Any) -> None:
    item = item_of("what was")
    prepared = talk.create("resp_1", store=True, input=[LONG, item, NEXT])
    stored = json.loads(prepared.stored_input or b"")
    assert [one["type"] for one in stored] == ["message", "compaction", "message"]
    assert stored[1] == item


def test_a_chain_that_was_compacted_is_restored_from_its_summary(
    talk: Any, new_talk: Any, item_model: m.Model
) -> None:
    talk.turn("resp_1", input=[LONG])
    before = talk.state.history.pin("resp_1").checkpoint
    talk.create("resp_2", previous_response_id="resp_1", input=[TRIGGER])
    item = compacted(talk, "resp_2")
    turn = m.StoredTurn("resp_2", b"[]", json.dumps([item, HI | {"id": "msg_9"}]).encode(), "s")
    chain = m.Chain((*chain_to(before).turns, turn))
    other = new_talk(item_model)
    other.create("resp_3", previous_response_id="resp_2", chain=chain, input=[NEXT])
    assert texts(other.prompt) == [LEAD + "a summary", "fine", "hello world"]


def test_only_a_turn_that_compacts_takes_a_summary(talk: Any) -> None:
    talk.create("resp_1", input=[NEXT])
    for command in (m.Compact("c", "resp_1", "cmp_1", "x"), m.Compact("c", "resp_x", "cmp_1", "x")):
        with pytest.raises(NotFound):
            talk.state.compact(command)
    with pytest.raises(NotFound):
        talk.state.summarize(m.Summarize("c", "resp_1"))


@pytest.mark.parametrize(
    ("given", "items"),
    [
        ("hi", [{"role": "user", "content": "hi"}, TRIGGER]),
        ([], [TRIGGER]),
        (None, [TRIGGER]),
        ([NEXT, HI], [NEXT, HI, TRIGGER]),
    ],
)
def test_a_compact_body_becomes_a_create_body(given: object, items: list[object]) -> None:
    body = {"model": "m", "input": given, "instructions": "be", "stream": True, "store": True}
    made = json.loads(compact_frame(json.dumps(body).encode()))
    assert made == {"model": "m", "instructions": "be", "store": False, "input": items}


def test_a_compacted_response_is_answered_as_what_it_is() -> None:
    response = b'{"id":"resp_1","object":"response","created_at":7,"output":[1],"usage":{"a":2}}'
    assert json.loads(compaction_object(response)) == {
        "id": "resp_1",
        "object": "response.compaction",
        "created_at": 7,
        "output": [1],
        "usage": {"a": 2},
    }
