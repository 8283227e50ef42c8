# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""Formats that rewrite history: what they keep, in a conversation one can follow."""

from array import array
from typing import Any

import pytest
from prompt_oracle import VOCABULARIES, vocabulary

from turnwire.pipelines.messages import Model
from turnwire.pipelines.prompts.tokenizer import VocabularyTokenizer

CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
THINKS = {
    "qwen3": '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    "<|im_end|>",
    "harmony": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.look"
    "<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
}
SPEAKS = {"qwen3": "yes<|im_end|>", "harmony": "<|channel|>final<|message|>yes<|return|>"}


def sampled(form: str, text: str) -> tuple[int, ...]:
    return tuple(vocabulary(VOCABULARIES[form]).encode(text))


def model(form: str) -> Model:
    return Model("m", "tokens", form, f"splintr:{VOCABULARIES[form]}")


@pytest.mark.parametrize("form", sorted(THINKS))
def test_a_tool_loop_is_appended_to_and_a_new_question_goes_back_to_where_it_began(
    new_talk: Any, form: str
) -> None:
    talk = new_talk(model(form))
    asked = talk.create("resp_1", input="look!")
    talk.answer("resp_1", sampled=sampled(form, THINKS[form]), items=[CALL | {"id": "1"}])
    looked = talk.create("resp_2", previous_response_id="resp_1", input=[OUTPUT])
    assert looked.prompt.prefix_key == asked.prompt.key
    talk.answer("resp_2", sampled=sampled(form, SPEAKS[form]))
    again = talk.create("resp_3", previous_response_id="resp_2", input="and?")
    assert again.prompt.prefix_key == asked.prompt.key
    assert thinks(form, talk.prompt) == 0
    talk.answer("resp_3", sampled=sampled(form, SPEAKS[form]))
    last = talk.create("resp_4", previous_response_id="resp_3", input="so?")
    assert last.prompt.prefix_key == again.prompt.key


@pytest.mark.parametrize("form", sorted(THINKS))
def test_a_conversation_without_thoughts_is_only_appended_to(new_talk: Any, form: str) -> None:
    talk = new_talk(model(form))
    before = talk.create("resp_0", input="hi")
    for number in range(1, 4):
        talk.answer(f"resp_{number - 1}", sampled=sampled(form, SPEAKS[form]))
        turn = talk.create(
            f"resp_{number}", previous_response_id=f"resp_{number - 1}", input="more"
        )
        assert turn.prompt.prefix_key == before.prompt.key
        before = turn


def test_in_harmony_an_output_names_the_function_of_a_call_made_turns_ago(new_talk: Any) -> None:
    talk = new_talk(model("harmony"))
    talk.create("resp_1", input="look!")
    talk.answer("resp_1", sampled=sampled("harmony", THINKS["harmony"]), items=[CALL | {"id": "1"}])
    talk.create("resp_2", previous_response_id="resp_1", input="wait")
    talk.answer("resp_2", sampled=sampled("harmony", SPEAKS["harmony"]))
    talk.create("resp_3", previous_response_id="resp_2", input=[OUTPUT])
    named = sampled("harmony", "<|start|>functions.look to=assistant<|channel|>commentary")
    text = array("I", talk.prompt).tobytes()
    assert array("I", named).tobytes() in text


def thinks(form: str, prompt: list[int]) -> int:
    """How often a prompt shows a thought."""
    mark = {"qwen3": "<think>", "harmony": "analysis<|message|>"}[form]
    ids = sampled(form, mark)
    return sum(tuple(prompt[at : at + len(ids)]) == ids for at in range(len(prompt)))


@pytest.mark.parametrize("form", sorted(THINKS))
def test_another_effort_costs_the_head_and_nothing_that_was_rendered_before(
    new_talk: Any, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = new_talk(model(form))
    talk.create("resp_0", input="hi", reasoning={"effort": "low"})
    talk.answer("resp_0", sampled=sampled(form, SPEAKS[form]))
    members = {"input": "what was asked", "reasoning": {"effort": "low"}}
    asked = talk.create("resp_1", previous_response_id="resp_0", **members)
    talk.answer("resp_1", sampled=sampled(form, SPEAKS[form]))
    settled = talk.create("resp_x", previous_response_id="resp_1", **members)
    assert settled.prompt.prefix_key == asked.prompt.key
    encoded: list[str] = []
    encode = VocabularyTokenizer.encode

    def spy(self: VocabularyTokenizer, text: str) -> bytes:
        encoded.append(text)
        return encode(self, text)

    monkeypatch.setattr(VocabularyTokenizer, "encode", spy)
    turn = talk.create(
        "resp_2", previous_response_id="resp_1", input="now", reasoning={"effort": "high"}
    )
    kept = {"harmony": b"", "qwen3": asked.prompt.key}
    assert turn.prompt.prefix_key == kept[form]
    again = "".join(encoded)
    assert ("Reasoning: high" in again) == (form == "harmony")
    assert "now" in again
    assert "what was asked" not in again


def test_without_effort_qwen3_is_told_that_its_thought_is_over(new_talk: Any) -> None:
    talk = new_talk(model("qwen3"))
    silent = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    asked = talk.create("resp_1", input="hi", reasoning={"effort": "none"})
    assert array("I", sampled("qwen3", silent)).tobytes() in asked.prompt.ids
    call = THINKS["qwen3"].partition("</think>\n\n")[2]
    talk.answer("resp_1", sampled=sampled("qwen3", call), items=[CALL | {"id": "1"}])
    looked = talk.create(
        "resp_2",
        previous_response_id="resp_1",
        input=[OUTPUT],
        reasoning={"effort": "minimal"},
    )
    assert looked.prompt.prefix_key == asked.prompt.key
    talk.answer("resp_2", sampled=sampled("qwen3", SPEAKS["qwen3"]))
    again = talk.create("resp_3", previous_response_id="resp_2", input="and?")
    assert again.prompt.prefix_key == b""
    assert thinks("qwen3", talk.prompt) == 0


@pytest.mark.parametrize(
    ("effort", "said"),
    [
        (None, "medium"),
        ("none", "low"),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("xhigh", "high"),
        ("max", "high"),
    ],
)
def test_harmony_says_how_much_to_think(new_talk: Any, effort: str | None, said: str) -> None:
    talk = new_talk(model("harmony"))
    talk.create("resp_1", input="hi", reasoning={"effort": effort})
    written = vocabulary(VOCABULARIES["harmony"]).decode_with_special(talk.prompt)
    assert f"\nReasoning: {said}\n" in written
