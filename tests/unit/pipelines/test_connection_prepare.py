# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""What a connection makes of a request: facts, prompt, echo, and what storage is to keep."""

import json
from typing import Any

import pytest

from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import (
    ContextLengthExceeded,
    Internal,
    InvalidRequest,
)

TOOLS = [{"type": "function", "name": "f"}, {"type": "web_search"}]


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_the_facts_carry_what_an_engine_must_know(talk: Any) -> None:
    facts = talk.create(
        "resp_1",
        input="hi",
        tools=TOOLS,
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_object"}},
        temperature=0.5,
        parallel_tool_calls=False,
        metadata={"sim.tool_turns": "3"},
    ).facts
    assert (facts.response_id, facts.tenant, facts.model) == ("resp_1", "acme", "sim")
    assert (facts.sampling.temperature, facts.sampling.top_p) == (0.5, None)
    assert json.loads(facts.tool_choice) == {"type": "function", "name": "f"}
    assert json.loads(facts.text_format) == {"type": "json_object"}
    assert (facts.parallel_tool_calls, facts.metadata) == (False, {"sim.tool_turns": "3"})
    assert facts.max_output_tokens == 256


def test_foreign_items_and_tools_the_model_cannot_use_are_counted(talk: Any) -> None:
    items = [*say("a"), {"type": "web_search_call", "id": "ws_1"}, {"type": "reasoning"}]
    prepared = talk.create("resp_1", input=items, tools=TOOLS)
    assert (prepared.foreign_items, prepared.unsupported_tools) == (1, 1)
    assert len(talk.prompt) == 3


def test_only_what_is_new_is_screened(talk: Any) -> None:
    talk.turn("resp_1", input=say("old"), instructions="never")
    prepared = talk.create("resp_2", previous_response_id="resp_1", input=[*say("new"), *say("")])
    assert prepared.new_text == ("new",)


def test_the_echo_comes_once_and_then_only_what_changes(talk: Any) -> None:
    first = talk.turn("resp_1", input="a", tools=TOOLS, instructions="I")
    again = {"previous_response_id": "resp_1", "metadata": {"k": "v"}, "tools": TOOLS}
    second = talk.create("resp_2", input="b", instructions="I", known_echo=first.echo_key, **again)
    assert first.echo is not None
    assert b'"instructions":"I"' in first.echo_tools
    assert (second.echo, second.echo_tools, second.echo_key) == (None, None, first.echo_key)
    assert json.loads(b"{%b}" % second.echo_turn) == {
        "previous_response_id": "resp_1",
        "metadata": {"k": "v"},
    }
    third = talk.create("resp_3", input="c", instructions="J", known_echo=first.echo_key)
    assert b'"instructions":"J"' in third.echo_tools


def test_a_head_goes_to_the_engine_only_when_it_changed(talk: Any) -> None:
    first = talk.turn("resp_1", input="a", tools=TOOLS, instructions="I")
    parent = {"previous_response_id": "resp_1", "input": "b"}
    assert json.loads(first.prompt.head) == {
        "instructions": "I",
        "tools": [TOOLS[0] | {"description": None, "parameters": None, "strict": None}],
    }
    reordered = [dict(reversed(tool.items())) for tool in TOOLS]
    same = talk.create("resp_2", tools=reordered, instructions="I", **parent)
    assert (same.prompt.head, same.prompt.prefix_key) == (None, first.prompt.key)
    changed = talk.create("resp_3", tools=TOOLS, **parent)
    assert json.loads(changed.prompt.head)["instructions"] is None
    assert changed.prompt.prefix_key == first.prompt.key
    assert changed.prompt.key != same.prompt.key


def test_another_model_gets_the_whole_conversation(talk: Any) -> None:
    talk.turn("resp_1", input=say("a"))
    other = m.Model("other", "items")
    prepared = talk.create("resp_2", model=other, previous_response_id="resp_1", input=say("b"))
    assert prepared.prompt.prefix_key == b""
    assert [item["role"] for item in talk.prompt] == ["user", "assistant", "user"]


def test_a_prompt_that_fills_the_window_is_refused_with_numbers(
    new_talk: Any, tokenizer_path: str
) -> None:
    talk = new_talk(m.Model("small", "tokens", "chatml", tokenizer_path, context_window=100))
    with pytest.raises(ContextLengthExceeded, match="100 tokens") as refusal:
        talk.ask("resp_1", instructions="", input="1" * 200)
    assert refusal.value.param == "input"
    prepared = talk.create("resp_2", instructions="", input="1" * 50)
    assert prepared.facts.max_output_tokens == 100 - prepared.input_tokens > 0


@pytest.mark.parametrize(("asked", "allowed"), [(10, 10), (None, 4096), (9000, 8000)])
def test_output_is_limited_by_request_model_and_window(
    new_talk: Any, asked: int | None, allowed: int
) -> None:
    talk = new_talk(m.Model("sim", "items", context_window=8000))
    prepared = talk.create("resp_1", input="a", max_output_tokens=asked)
    assert prepared.facts.max_output_tokens == allowed


def test_a_conversation_too_large_to_keep_is_refused(new_talk: Any, item_model: Any) -> None:
    talk = new_talk(item_model, max_context_bytes=3000)
    talk.turn("resp_1", input=say("x" * 2000))
    with pytest.raises(ContextLengthExceeded, match="3000"):
        talk.ask("resp_2", previous_response_id="resp_1", input=say("x" * 2000))


def test_what_is_stored_has_ids(talk: Any) -> None:
    prepared = talk.create("resp_1", store=True, input=say("a"))
    (item,) = json.loads(prepared.stored_input)
    assert item == {"type": "message", "id": item["id"], "role": "user", "content": "a"}
    assert prepared.stored_context is None


def test_what_is_not_stored_is_not_handed_out(talk: Any) -> None:
    prepared = talk.create("resp_1", store=False, input=say("a"))
    assert (prepared.stored_input, prepared.stored_context) == (None, None)


def test_storing_after_turns_that_were_not_stored_hands_out_all_of_them(talk: Any) -> None:
    talk.turn("resp_1", input=say("a"))
    talk.turn("resp_2", previous_response_id="resp_1", input=say("b"))
    third = talk.turn("resp_3", previous_response_id="resp_2", store=True, input=say("c"))
    assert [turn.response_id for turn in third.stored_context.turns] == ["resp_1", "resp_2"]
    assert json.loads(third.stored_context.turns[0].output)[0]["id"] == "msg_resp_1"
    fourth = talk.create("resp_4", previous_response_id="resp_3", store=True, input=say("d"))
    assert fourth.stored_context is None


def chain(*texts: str) -> m.Chain:
    return m.Chain(
        tuple(
            m.StoredTurn(
                response_id=f"resp_{number}",
                input=json.dumps(
                    [{"id": f"msg_{number}", "role": "user", "content": text}]
                ).encode(),
                output=b'[{"id":"a%d","role":"assistant","content":"ok"}]' % number,
                model="sim",
            )
            for number, text in enumerate(texts, 1)
        )
    )


def test_a_stored_parent_is_rebuilt_from_its_chain(talk: Any) -> None:
    parent = {"previous_response_id": "resp_2", "input": say("c")}
    assert talk.ask("resp_3", **parent) == m.ParentUnknown("resp_2")
    prepared = talk.create("resp_3", chain=chain("a", "b"), **parent)
    said = [item["content"] for item in talk.prompt]
    assert said == ["a", "ok", "b", "ok", "c"]
    assert (prepared.prompt.prefix_key, prepared.parent_id) == (b"", "resp_2")
    talk.answer("resp_3")
    follow = talk.create("resp_4", previous_response_id="resp_3", input=say("d"))
    assert follow.prompt.prefix_key == prepared.prompt.key
    assert talk.create("resp_5", previous_response_id="resp_1", input=say("fork"))


def test_a_rebuilt_chain_survives_a_cache_smaller_than_itself(
    new_talk: Any, item_model: Any
) -> None:
    talk = new_talk(item_model, cache_bytes=1)
    talk.create("resp_9", previous_response_id="resp_3", chain=chain("a", "b", "c"), input="x")
    assert [item.get("content") for item in talk.prompt][:5] == ["a", "ok", "b", "ok", "c"]
    talk.abort("resp_9")
    assert (len(talk.state.history), talk.state.history.held_bytes) == (0, 0)


def test_an_empty_chain_leaves_the_parent_unknown(talk: Any) -> None:
    answer = talk.ask("resp_3", previous_response_id="resp_2", chain=m.Chain(()))
    assert answer == m.ParentUnknown("resp_2")


def test_a_chain_of_another_response_is_our_fault(talk: Any) -> None:
    with pytest.raises(Internal):
        talk.ask("resp_3", previous_response_id="resp_9", chain=chain("a"))


def test_sampled_ids_of_a_stored_turn_are_used_by_the_model_that_sampled_them(
    token_talk: Any,
) -> None:
    stored = m.StoredTurn(
        "resp_1",
        b'[{"id":"m","role":"user","content":"a"}]',
        b'[{"id":"n","role":"assistant","content":"b"}]',
        token_talk.model.name,
        b"\x11\0\0\0\x12\0\0\0\x02\0\0\0",
    )
    token_talk.create("resp_2", previous_response_id="resp_1", chain=m.Chain((stored,)), input="c")
    ids = token_talk.prompt
    assert any(ids[at : at + 3] == [17, 18, 2] for at in range(len(ids)))


def test_over_http_only_stored_responses_can_be_continued(talk: Any) -> None:
    for response_id, store in (("resp_1", True), ("resp_2", False)):
        talk.create(response_id, transport="http", store=store, stream=True, input=say("a"))
        talk.answer(response_id)
    stored = talk.ask("resp_3", transport="http", previous_response_id="resp_1")
    assert isinstance(stored, m.Prepared)
    lost = talk.ask("resp_4", transport="http", previous_response_id="resp_2")
    assert lost == m.ParentUnknown("resp_2")


def test_over_http_a_failed_continuation_leaves_the_stored_parent(talk: Any) -> None:
    talk.create("resp_1", transport="http", store=True, input=say("a"))
    talk.answer("resp_1")
    follow = {"transport": "http", "previous_response_id": "resp_1"}
    talk.create("resp_2", input=say("b"), **follow)
    talk.abort("resp_2", evict=True)
    with pytest.raises(InvalidRequest):
        talk.ask("resp_3", input=3, **follow)
    assert isinstance(talk.ask("resp_4", input=say("c"), **follow), m.Prepared)


def test_over_http_nothing_is_guaranteed_to_stay_in_memory(new_talk: Any, item_model: Any) -> None:
    talk = new_talk(item_model, cache_bytes=1)
    talk.create("resp_1", transport="http", store=True, input=say("a"))
    talk.answer("resp_1")
    assert talk.state.history.held_bytes == 0


def test_a_model_that_gives_no_log_probabilities_refuses_them_by_name(talk: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        talk.create("resp_1", input="a", include=["message.output_text.logprobs"])
    assert refused.value.param == "include"
    facts = talk.create("resp_2", input="a", top_logprobs=3, seed=5).facts
    assert (facts.logprobs, facts.sampling.seed) == (None, 5)


def test_an_engine_that_takes_items_is_given_no_grammar(talk: Any) -> None:
    facts = talk.create("resp_1", input="a", tools=TOOLS, tool_choice="required").facts
    assert (facts.grammar, facts.calls) == ("", True)
