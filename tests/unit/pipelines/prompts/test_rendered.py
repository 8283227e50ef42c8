# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""Appended prompts against an oracle: the template's whole text, cut at control markers, encoded,
with the sampled ids spliced in where the same model sampled them."""

import re
from array import array
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.pipelines.messages import Finish, Model, Recall, TokenPrompt
from turnwire.pipelines.prompts.tokenizer import load_tokenizer

FRAGMENTS = (
    *("hello", " world", "\n", "  ", "\t", "don't", "123", "<|im_end|>", "<|im_start|>system\n"),
    *("é", "日本語", "🙂", "\n\n", " a", "<", "|im_end|>", "assistant", "<|endoftext|>", "the"),
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)
ITEMS = st.lists(st.tuples(st.sampled_from(("user", "system", "developer", "assistant")), TEXTS))
IDS = st.lists(st.integers(3, 280), max_size=5).map(tuple)
ENDINGS: dict[str, tuple[Finish, tuple[int, ...]]] = {
    "stop": ("stop", (2,)),
    "grammar": ("stop", (0,)),
    "length": ("length", ()),
    "cancelled": ("cancelled", ()),
}
DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@dataclass(frozen=True)
class Turn:
    parent: int
    """Index of a turn before; -1: none."""
    instructions: str | None
    items: list[tuple[str, str]]
    generate: bool
    model: str
    sampled: tuple[int, ...]
    ending: str
    text: str


TURNS = st.lists(
    st.builds(
        Turn,
        parent=st.integers(-1, 7),
        instructions=st.sampled_from((None, None, "Be brief.", "")),
        items=ITEMS.map(lambda items: items[:3]),
        generate=st.sampled_from((True, True, True, False)),
        model=st.sampled_from(("one", "one", "two")),
        sampled=IDS,
        ending=st.sampled_from(tuple(ENDINGS)),
        text=TEXTS,
    ),
    min_size=1,
    max_size=8,
).map(lambda turns: [possible(turn, index) for index, turn in enumerate(turns)])


def possible(turn: Turn, index: int) -> Turn:
    """Parents come before, and where nothing was sampled there is no text."""
    sampled = turn.sampled + ENDINGS[turn.ending][1]
    return replace(turn, parent=min(turn.parent, index - 1), text=turn.text if sampled else "")


class Oracle:
    """Renders everything anew, every time."""

    def __init__(self, tokenizer_path: str, turns: list[Turn]) -> None:
        self._encode = load_tokenizer(tokenizer_path).encode
        self._turns = turns

    def ids(self, index: int) -> list[int]:
        turn = self._turns[index]
        self._texts: list[str | tuple[int, ...]] = []
        body = "".join(self._past(before, turn.model) for before in self._path(turn.parent))
        body += self._messages(turn.items)
        if turn.generate:
            body += "<|im_start|>assistant\n"
        system = self._system(index, turn.instructions)
        out: list[int] = []
        for piece in re.split(r"(<\|im_start\|>|<\|im_end\|>)", system + body):
            marker = {"<|im_start|>": 1, "<|im_end|>": 2}.get(piece)
            out += [marker] if marker is not None else self._piece(piece)
        return out

    def _path(self, index: int) -> list[Turn]:
        path: list[Turn] = []
        while index >= 0:
            path.insert(0, self._turns[index])
            index = self._turns[index].parent
        return path

    def _system(self, index: int, instructions: str | None) -> str:
        if instructions is not None:
            return self._messages([("system", instructions)])
        first = ""
        path = self._path(index)
        for turn in path:
            answers = [("assistant", "")] if turn is not path[-1] and turn.generate else []
            said = [role for role, _ in (*turn.items, *answers)]
            if said:
                first = said[0]
                break
        if first in ("system", "developer"):
            return ""
        return self._messages([("system", DEFAULT_SYSTEM)])

    def _past(self, turn: Turn, model: str) -> str:
        given = self._messages(turn.items)
        if not turn.generate:
            return given
        if turn.model != model and turn.text:
            return given + self._messages([("assistant", turn.text)])
        sampled = turn.sampled if turn.model == model else ()
        return given + f"<|im_start|>assistant\n{self._place(sampled)}<|im_end|>\n"

    def _messages(self, items: list[tuple[str, str]]) -> str:
        return "".join(
            f"<|im_start|>{'system' if role == 'developer' else role}\n"
            f"{self._place(text)}<|im_end|>\n"
            for role, text in items
        )

    def _place(self, content: str | tuple[int, ...]) -> str:
        self._texts.append(content)
        return f"\ue000{len(self._texts) - 1}\ue001"

    def _piece(self, piece: str) -> list[int]:
        sampled: tuple[int, ...] = ()
        for number in re.findall("\ue000(\\d+)\ue001", piece):
            content = self._texts[int(number)]
            if isinstance(content, tuple):
                sampled, content = content, ""
            piece = piece.replace(f"\ue000{number}\ue001", content)
        return [*array("I", self._encode(piece)), *sampled]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(turns=TURNS)
def test_an_appended_prompt_is_the_full_render_with_sampled_ids_spliced_in(
    token_model: Model, tokenizer_path: str, new_talk: Any, turns: list[Turn]
) -> None:
    talk = new_talk(token_model, content_index_bytes=0)
    oracle = Oracle(tokenizer_path, turns)
    sent: dict[int, TokenPrompt] = {}
    for index, turn in enumerate(turns):
        prepared = talk.create(
            f"resp_{index}",
            previous_response_id=None if turn.parent < 0 else f"resp_{turn.parent}",
            lane=f"lane-{index % 3}",
            model=Model(turn.model, "tokens", "chatml", tokenizer_path),
            instructions=turn.instructions,
            generate=turn.generate,
            input=[{"role": role, "content": text} for role, text in turn.items],
        )
        sent[index] = prepared.prompt
        expected = oracle.ids(index)
        assert talk.prompt == expected
        assert prepared.input_tokens == len(expected)
        assert prepared.prompt.prefix_key in (b"", sent.get(turn.parent, prepared.prompt).key)
        whole = talk.state.recall(Recall("c", f"resp_{index}"))
        assert whole.key == prepared.prompt.key
        assert array("I", whole.ids).tolist() == expected
        if turn.generate:
            finish, terminal = ENDINGS[turn.ending]
            ids = turn.sampled + terminal
            talk.answer(f"resp_{index}", turn.text, sampled=ids, finish=finish)
        else:
            talk.answer(f"resp_{index}", "", sampled=())


def test_a_continuation_sends_only_what_is_new(token_talk: Any) -> None:
    first = token_talk.turn("resp_1", input="hello world " * 50)
    second = token_talk.create("resp_2", previous_response_id="resp_1", input="the")
    assert second.prompt.prefix_key == first.prompt.key
    assert len(second.prompt.ids) < len(first.prompt.ids) / 4


def test_changed_instructions_send_the_whole_prompt(token_talk: Any) -> None:
    token_talk.turn("resp_1", input="hello", instructions="A")
    second = token_talk.create("resp_2", previous_response_id="resp_1", instructions="B", input="x")
    assert second.prompt.prefix_key == b""


def test_changed_tools_that_the_format_cannot_show_change_no_prompt(token_talk: Any) -> None:
    first = token_talk.turn("resp_1", input="hello", tools=[{"type": "function", "name": "a"}])
    second = token_talk.create("resp_2", previous_response_id="resp_1", input="x", tools=[])
    assert second.prompt.prefix_key == first.prompt.key


def test_a_warm_up_is_a_prefix_of_the_turn_that_follows(token_talk: Any) -> None:
    warm = token_talk.create("resp_1", generate=False, input="hello")
    token_talk.answer("resp_1", "", sampled=())
    second = token_talk.create("resp_2", previous_response_id="resp_1", input=[])
    assert second.prompt.prefix_key == warm.prompt.key
    assert not warm.generate


def test_prompts_of_two_tenants_never_share_a_key(token_model: Model, new_talk: Any) -> None:
    ours, theirs = new_talk(token_model), new_talk(token_model)
    theirs.state._drafts._tenant = "other"
    first = ours.create("resp_1", input="hello")
    assert first.prompt.key != theirs.create("resp_1", input="hello").prompt.key


def test_an_answer_whose_ids_are_unknown_is_rendered_from_its_items(token_talk: Any) -> None:
    token_talk.create("resp_1", input="hello")
    token_talk.answer("resp_1", "\n\nhello", sampled=())
    second = token_talk.create("resp_2", previous_response_id="resp_1", input="x")
    # "assistant\n" and the answer's line ends became one token: nothing sent before is a prefix.
    assert second.prompt.prefix_key == b""
