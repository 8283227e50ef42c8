"""How a turn came, and why."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import Raw

from turnwire.pipelines.continuity import Setbacks, continuation
from turnwire.pipelines.messages import Continuation
from turnwire.pipelines.protocol.items import parse_input

USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "developer", "content": "be brief"}
ANSWER = {"role": "assistant", "content": "hello"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
REASONING = {"type": "reasoning", "summary": []}
REFERENCE = {"type": "item_reference", "id": "msg_1"}


@dataclass(frozen=True)
class Case:
    id: str
    items: list[dict[str, Any]]
    expected: Continuation
    parent: str | None = None
    parent_here: bool = True


CASES = [
    Case("only new text", [SYSTEM, USER], "new"),
    Case("nothing", [], "new"),
    Case("a reference", [REFERENCE], "new"),
    Case("a parent", [OUTPUT], "incremental", parent="resp_1"),
    Case("an answer before it", [USER, ANSWER, USER], "full_cached"),
    Case("a tool round before it", [USER, CALL, OUTPUT], "full_cached"),
    Case("reasoning before it", [USER, REASONING], "full_cached"),
    Case("elsewhere", [USER, ANSWER, USER], "full", parent_here=False),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_what_a_turn_brings_tells_how_it_continues(case: Case) -> None:
    items, _ = parse_input(Raw(json.dumps(case.items).encode()), bytes)
    assert continuation(case.parent, items, parent_here=case.parent_here) == case.expected


def test_the_next_full_history_after_a_setback_is_explained_once() -> None:
    setbacks = Setbacks()
    setbacks.add("acme", "thread")
    assert setbacks.explain("acme", "thread", "full") == "full_after_error"
    assert setbacks.explain("acme", "thread", "full") == "full"


@pytest.mark.parametrize(("tenant", "conversation"), [("rival", "thread"), ("acme", "other")])
def test_a_setback_explains_nothing_of_others(tenant: str, conversation: str) -> None:
    setbacks = Setbacks()
    setbacks.add("acme", "thread")
    assert setbacks.explain(tenant, conversation, "full_cached") == "full_cached"


def test_a_warm_up_between_does_not_end_a_setback_and_a_continuation_does() -> None:
    setbacks = Setbacks()
    setbacks.add("acme", "thread")
    assert setbacks.explain("acme", "thread", "new") == "new"
    assert setbacks.explain("acme", "thread", "incremental") == "incremental"
    assert setbacks.explain("acme", "thread", "full") == "full"


def test_the_least_recent_setback_is_forgotten() -> None:
    setbacks = Setbacks(max_conversations=2)
    for name in ("a", "b", "a", "c"):
        setbacks.add("acme", name)
    assert len(setbacks) == 2
    assert setbacks.explain("acme", "b", "full") == "full"
    assert setbacks.explain("acme", "a", "full") == "full_after_error"
