# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""Two thousand turns against the oracle: forks, lanes, evictions, full resends, changed heads."""

import random
from array import array
from collections import Counter
from typing import Any

import pytest
from prompt_oracle import VOCABULARIES, Oracle, Turn
from prompt_turns import FINISHES, FRAGMENTS, answer_items, input_items

from turnwire.pipelines.messages import Model, ParentUnknown, Recall

TURNS = 2_000
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


def made(chance: random.Random, index: int) -> Turn:
    """Turns that can be told apart by what they say, so that a resend means one of them."""
    fresh = index == 0 or chance.random() < 0.03
    near = max(0, index - 8)
    far = chance.random() < 0.1
    roles = chance.choices(
        ("user", "user", "call", "assistant", "developer"), k=chance.randint(1, 3)
    )
    return Turn(
        parent=-1 if fresh else chance.randrange(0 if far else near, index),
        instructions=chance.choice((None, None, None, None, "Be brief.")),
        items=tuple((role, f"{index} {words(chance)}") for role in roles),
        generate=chance.random() < 0.9,
        model="one" if chance.random() < 0.9 else "two",
        thought=chance.choice(("", "", "Let me see.", "hm\n\n<|im_end|>")),
        spoken=tuple(chance.choices(range(300, 9000), k=chance.randint(1, 5))),
        ending=chance.choice(tuple(FINISHES)),
        text=f"So {index}: {words(chance)}",
    )


def words(chance: random.Random) -> str:
    return "".join(chance.choices(FRAGMENTS, k=chance.randint(0, 4)))


def in_full(turns: list[Turn], index: int, chance: random.Random) -> list[dict[str, Any]]:
    """The whole conversation as clients repeat it: without ids, perhaps without thoughts."""
    items: list[dict[str, Any]] = []
    path, at = [], index
    while at >= 0:
        path.append(at)
        at = turns[at].parent
    forgetful = chance.random() < 0.5
    for at in reversed(path):
        items += input_items(turns[at], at)
        if at == index or not turns[at].generate:
            continue
        answer = answer_items(turns[at], at)
        items += [item for item in answer if item["type"] != "reasoning" or not forgetful]
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(VOCABULARIES))
def test_two_thousand_turns_are_what_the_oracle_renders(
    token_model: Model, new_talk: Any, form: str
) -> None:
    chance = random.Random(f"soak {form}")
    talk = new_talk(token_model, cache_bytes=200_000)
    turns: list[Turn] = []
    oracle = Oracle(form, turns)
    came: Counter[str] = Counter()
    for index in range(TURNS):
        turn = made(chance, index)
        turns.append(turn)
        fields: dict[str, Any] = {
            "lane": f"lane-{index % 5}",
            "model": Model(turn.model, "tokens", form, f"splintr:{VOCABULARIES[form]}"),
            "instructions": turn.instructions,
            "generate": turn.generate,
        }
        if form == "chatml" and chance.random() < 0.5:  # which shows no tools
            fields["tools"] = [TOOL | {"description": words(chance)}]
        prepared = None
        if turn.parent >= 0 and chance.random() < 0.8:
            named = {"previous_response_id": f"resp_{turn.parent}"}
            prepared = talk.ask(f"resp_{index}", input=input_items(turn, index), **named, **fields)
            came["named"] += 1
            if isinstance(prepared, ParentUnknown):
                came["evicted"] += 1
                prepared = None
        if prepared is None:
            prepared = talk.ask(f"resp_{index}", input=in_full(turns, index, chance), **fields)
            came["repeated"] += prepared.repeated_items > 0
            assert (prepared.repeated_items > 0) == (turn.parent >= 0)
        expected = oracle.ids(index)
        assert talk.engine.take(prepared.prompt) == expected
        assert prepared.input_tokens == len(expected)
        whole = talk.state.recall(Recall("c", f"resp_{index}"))
        assert (whole.key, array("I", whole.ids).tolist()) == (prepared.prompt.key, expected)
        sampled = oracle.sampled(turn) if turn.generate else ()
        items = answer_items(turn, index) if sampled else []
        talk.answer(f"resp_{index}", sampled=sampled, finish=FINISHES[turn.ending], items=items)
    assert min(came[what] for what in ("named", "evicted", "repeated")) > 50, came
