# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""Random conversations, and what their prompts are held against."""

from array import array
from typing import Any

from hypothesis import strategies as st
from prompt_oracle import VOCABULARIES, Oracle, Turn, possible

from turnwire.pipelines.messages import Finish, Model, Recall

FRAGMENTS = (
    *("hello", " world", "\n", "  ", "\t", "don't", "123", "<|im_end|>", "<|im_start|>system\n"),
    *(
        "é",
        "日本語",
        "🙂",
        "👩‍🚀",
        "\n\n",
        " a",
        "<",
        "|im_end|>",
        "<|endoftext|>",
        "<think>",
        "</think>",
    ),
    *(
        "<|start|>system",
        "<|eot_id|>",
        "<end_of_turn>",
        "<start_of_turn>model\n",
        "<|channel|>final",
    ),
    *("<tool_call>", "<bos>", "<|return|>", "\r\n", "\u200b", "."),
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)
ROLES = ("user", "user", "system", "developer", "assistant", "call")
ITEMS = st.lists(st.tuples(st.sampled_from(ROLES), TEXTS), max_size=3).map(tuple)
FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "grammar": "stop",
    "length": "length",
    "cancelled": "cancelled",
}
TURNS = st.lists(
    st.builds(
        Turn,
        parent=st.integers(-1, 7),
        instructions=st.sampled_from((None, None, "Be brief.", "")),
        items=ITEMS,
        generate=st.sampled_from((True, True, True, False)),
        model=st.sampled_from(("one", "one", "one", "two")),
        thought=st.sampled_from(("", "Let me see.", "hm\n\n<|im_end|>")),
        spoken=st.lists(st.integers(300, 9000), max_size=5).map(tuple),
        ending=st.sampled_from(tuple(FINISHES)),
        text=TEXTS.map(lambda text: f"So: {text}"),
        effort=st.sampled_from((None, None, None, "none", "high")),
    ),
    min_size=1,
    max_size=8,
).map(lambda turns: [possible(turn, index) for index, turn in enumerate(turns)])


def answer_items(turn: Turn, index: int) -> list[dict[str, Any]]:
    thought = {"type": "reasoning", "id": f"rs_{index}", "summary": []}
    thought["content"] = [{"type": "reasoning_text", "text": turn.thought}]
    part = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
    said = {"type": "message", "id": f"msg_{index}", "role": "assistant", "content": [part]}
    return [thought, said] if turn.thought else [said]


def input_items(turn: Turn, index: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for at, (role, text) in enumerate(turn.items):
        if role != "call":
            items.append({"role": role, "content": text})
            continue
        call = {"call_id": f"call_{index}_{at}"}
        made = {"type": "function_call", "name": "f", "arguments": '{"a": 1}'}
        items += [made | call, {"type": "function_call_output", "output": "done"} | call]
    return items


def check(form: str, turns: list[Turn], talk: Any) -> None:
    oracle = Oracle(form, turns)
    sent: list[Any] = []
    for index, turn in enumerate(turns):
        prepared = talk.create(
            f"resp_{index}",
            previous_response_id=None if turn.parent < 0 else f"resp_{turn.parent}",
            lane=f"lane-{index % 3}",
            model=Model(turn.model, "tokens", form, f"splintr:{VOCABULARIES[form]}"),
            instructions=turn.instructions,
            generate=turn.generate,
            reasoning={"effort": turn.effort},
            input=input_items(turn, index),
        )
        sent.append(prepared.prompt)
        expected = oracle.ids(index)
        assert talk.prompt == expected
        assert prepared.input_tokens == len(expected)
        assert prepared.prompt.prefix_key == longest_kept(oracle, turns, index, sent)
        whole = talk.state.recall(Recall("c", f"resp_{index}"))
        assert whole.key == prepared.prompt.key
        assert array("I", whole.ids).tolist() == expected
        sampled = oracle.sampled(turn) if turn.generate else ()
        items = answer_items(turn, index) if sampled else []
        finish = FINISHES[turn.ending]
        talk.answer(f"resp_{index}", sampled=sampled, finish=finish, items=items)


def longest_kept(oracle: Oracle, turns: list[Turn], index: int, sent: list[Any]) -> bytes:
    """The key of the longest earlier prompt of this model that the new one begins with."""
    new = oracle.ids(index)
    before = turns[index].parent
    while before >= 0 and turns[before].model == turns[index].model:
        if head(oracle, turns[before]) != head(oracle, turns[index]):
            return b""
        old = oracle.ids(before)
        if old and new[: len(old)] == old:
            return sent[before].key
        before = turns[before].parent
    return b""


def head(oracle: Oracle, turn: Turn) -> tuple[bool, list[int]]:
    return turn.instructions is None, oracle.bare(turn)
