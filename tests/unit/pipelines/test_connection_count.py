# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""Counting is preparing without a turn: the same number, the same refusals, nothing kept."""

import json
from typing import Any

import pytest

from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import InvalidRequest

TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
ASKED: list[dict[str, Any]] = [
    {"input": "hello world"},
    {"input": None},
    {"input": "hello", "instructions": "the world"},
    {"input": "hello", "generate": False},
    {"input": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "日本"}]},
]


def count(talk: Any, chain: m.Chain | None = None, **fields: Any) -> Any:
    frame = json.dumps({"model": talk.model.name, "store": False} | fields).encode()
    return talk.state.count(m.CountTokens("c", frame, talk.model, chain))


@pytest.mark.parametrize("fields", ASKED)
def test_a_count_is_what_the_turn_reports(token_talk: Any, fields: dict[str, Any]) -> None:
    token_talk.turn("resp_1", input="before")
    for lineage in ({}, {"previous_response_id": "resp_1"}):
        counted = count(token_talk, **fields, **lineage)
        prepared = token_talk.create("resp_2", **fields, **lineage)
        token_talk.abort("resp_2")
        assert counted == m.TokenCount(prepared.input_tokens)
        assert counted.input_tokens > 0


def test_where_the_engine_counts_it_is_given_the_whole_prompt(talk: Any) -> None:
    talk.turn("resp_1", input="before")
    fields = {"previous_response_id": "resp_1", "input": "after", "tools": TOOLS}
    counted = count(talk, **fields)
    assert counted.prompt.prefix_key == b""
    assert json.loads(counted.prompt.items)[0]["content"][0]["text"] == "before"
    assert json.loads(counted.prompt.head)["tools"][0]["name"] == "f"


def test_nothing_is_left_of_a_count(talk: Any) -> None:
    talk.turn("resp_1", input="before")
    held = talk.state.history.held_bytes
    for _ in range(3):
        count(talk, previous_response_id="resp_1", input="after")
        output = {"type": "function_call_output", "call_id": "nobody", "output": ""}
        with pytest.raises(InvalidRequest):
            count(talk, previous_response_id="resp_1", input=[output])
    assert talk.state.history.held_bytes == held
    assert len(talk.state._running) == 0
    assert isinstance(talk.ask("resp_2", previous_response_id="resp_1"), m.Prepared)
    entry = talk.state.history.pin("resp_1")
    assert entry.pins == 2


def test_a_parent_that_is_not_here_is_asked_for_and_then_counted(talk: Any, new_talk: Any) -> None:
    assert count(talk, previous_response_id="resp_1") == m.ParentUnknown("resp_1")
    chain = m.Chain((m.StoredTurn("resp_1", b"[]", b"[]"),))
    counted = count(talk, chain, previous_response_id="resp_1", input="after")
    assert counted.prompt is not None
