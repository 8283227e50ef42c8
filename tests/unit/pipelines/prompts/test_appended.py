# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""Every format over its family's vocabulary: appended prompts against whole ones rendered anew."""

from typing import Any

import pytest
from hypothesis import given, settings
from prompt_oracle import VOCABULARIES, Turn
from prompt_turns import TURNS, check

from turnwire.pipelines.messages import Model
from turnwire.pipelines.prompts.format import FORMATS, format_of


@pytest.mark.parametrize("form", sorted(FORMATS))
@settings(max_examples=12, deadline=None, database=None, derandomize=True)
@given(turns=TURNS)
def test_an_appended_prompt_is_the_whole_one_with_sampled_ids_spliced_in(
    token_model: Model, new_talk: Any, form: str, turns: list[Turn]
) -> None:
    check(form, turns, new_talk(token_model, content_index_bytes=0))


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(FORMATS))
@settings(max_examples=300, deadline=None)
@given(turns=TURNS)
def test_three_hundred_conversations_are_appended_to_as_they_are_rendered(
    token_model: Model, new_talk: Any, form: str, turns: list[Turn]
) -> None:
    check(form, turns, new_talk(token_model, content_index_bytes=0))


def test_the_formats_say_which_of_them_rewrite_history() -> None:
    rewriting = {
        name
        for name in FORMATS
        if not format_of(Model("m", "tokens", name, f"splintr:{VOCABULARIES[name]}")).append_only
    }
    assert rewriting == {"harmony", "qwen3"}
