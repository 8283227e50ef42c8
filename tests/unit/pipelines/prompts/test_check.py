# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""The sampled check finds a prompt that is not the whole, and only that."""

from typing import Any

import pytest
from prompt_oracle import VOCABULARIES

from turnwire.pipelines.config import ConnectionSettings
from turnwire.pipelines.connection import ConnectionState
from turnwire.pipelines.messages import Model
from turnwire.pipelines.prompts.check import PromptCheck
from turnwire.pipelines.prompts.tokenizer import pack

MODELS = {
    form: Model("m", "tokens", form, f"splintr:{VOCABULARIES[form]}") for form in VOCABULARIES
}


def watched(talk: Any) -> list[PromptCheck]:
    found: list[PromptCheck] = []
    talk.state = ConnectionState("acme", ConnectionSettings(), bytes, sampled=found.append)
    return found


@pytest.mark.parametrize("form", sorted(VOCABULARIES))
def test_prompts_put_together_over_turns_are_the_whole(new_talk: Any, form: str) -> None:
    talk = new_talk(MODELS[form])
    checks = watched(talk)
    talk.turn("resp_1", input="one")
    talk.turn("resp_2", previous_response_id="resp_1", input="two")
    talk.turn("resp_3", previous_response_id="resp_2", input="three", instructions="Be brief.")
    talk.turn("resp_4", previous_response_id="resp_3", input="four", instructions="Be brief.")
    assert [check.matches() for check in checks] == [True] * 4


def test_a_segment_that_is_wrong_is_found_however_long_ago_it_was_sent(token_talk: Any) -> None:
    checks = watched(token_talk)
    token_talk.turn("resp_1", input="one")
    token_talk.create("resp_2", previous_response_id="resp_1", input="two")
    (name,) = token_talk.state._running["resp_2"].turn.rendered
    token_talk.state._running["resp_2"].turn.rendered[name] += pack(7)
    token_talk.answer("resp_2")
    token_talk.turn("resp_3", previous_response_id="resp_2", input="three")
    token_talk.turn("resp_4", previous_response_id="resp_3", input="four", instructions="Anew.")
    # What was rendered wrong was sent right: the whole that is made of it was not.
    assert [check.matches() for check in checks] == [True, True, True, False]


def test_prompts_of_items_are_not_rendered_and_match(talk: Any) -> None:
    checks = watched(talk)
    talk.turn("resp_1", input="one")
    assert [check.matches() for check in checks] == [True]
