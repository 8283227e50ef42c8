# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""Savings that are left out change what a turn costs, and never what it asks of an engine."""

from typing import Any

import pytest

from turnwire.pipelines import ablation
from turnwire.pipelines import messages as m
from turnwire.pipelines.ablation import SAVINGS, ablated
from turnwire.pipelines.config import AblationSettings
from turnwire.pipelines.prompts.chatml import ChatML


def conversation(talk: Any, leaves_out: tuple[str, ...]) -> tuple[list[Any], m.Prepared]:
    """Three turns: the whole prompt of each, and the last as it was prepared."""
    prompts, parent = [], None
    for number in range(3):
        fields: dict[str, Any] = {"previous_response_id": parent} if parent else {}
        parent = f"resp_{number}"
        items = [{"role": "user", "content": f"question {number}"}]
        prepared = talk.create(
            parent, ablated=leaves_out, input=items, instructions="Be brief.", **fields
        )
        prompts.append(talk.prompt)
        talk.answer(parent)
    return prompts, prepared


@pytest.mark.parametrize("leaves_out", [*((name,) for name in SAVINGS), SAVINGS])
def test_an_engine_is_asked_the_same(
    leaves_out: tuple[str, ...], new_talk: Any, token_model: m.Model, item_model: m.Model
) -> None:
    for model in (token_model, item_model):
        usual, prepared = conversation(new_talk(model), ())
        again, prepared_again = conversation(new_talk(model), leaves_out)
        assert again == usual
        assert prepared_again.facts == prepared.facts
        assert prepared_again.prompt.key == prepared.prompt.key


def test_without_its_cache_everything_is_encoded_with_each_turn(
    new_talk: Any, token_model: m.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    items_of = ChatML.items

    def counted(form: ChatML, items: Any, **options: Any) -> bytes:
        encoded.append(len(items))
        return items_of(form, items, **options)

    monkeypatch.setattr(ChatML, "items", counted)
    conversation(new_talk(token_model), ())
    usual, encoded[:] = sum(encoded), []
    conversation(new_talk(token_model), ("token_cache",))
    assert sum(encoded) == usual + 1 + 2 + 3


def test_without_its_cache_no_content_is_recognized(new_talk: Any, item_model: m.Model) -> None:
    talk = new_talk(item_model)
    talk.turn("resp_1", input=[{"role": "user", "content": "hi"}])
    message = {"role": "assistant", "content": "fine"}
    whole = [{"role": "user", "content": "hi"}, message, {"role": "user", "content": "again"}]
    assert talk.create("resp_2", input=whole).prompt.prefix_key
    again = talk.create("resp_3", input=whole, ablated=("token_cache",))
    assert again.prompt.prefix_key == b""


def test_all_is_checked_and_tools_are_parsed_with_each_turn(
    talk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []
    check = ablation.check
    monkeypatch.setattr(
        ablation, "check", lambda items, context: (checked.append(1), check(items, context))[1]
    )
    conversation(talk, ())
    assert checked == []
    conversation(talk, ("validation",))
    assert sum(checked) == 2 + 4
    parsers = {id(talk.state._past._parser)}
    talk.create("resp_9", input="x", ablated=("validation",))
    assert {id(talk.state._past._parser)} == parsers


def test_all_text_is_screened_with_each_turn(new_talk: Any, item_model: m.Model) -> None:
    _, usual = conversation(new_talk(item_model), ())
    _, again = conversation(new_talk(item_model), ("screening",))
    assert usual.new_text == ("question 2",)
    assert again.new_text == ("question 0", "question 1", "question 2")


def test_the_whole_prompt_is_sent_with_each_turn(new_talk: Any, item_model: m.Model) -> None:
    _, usual = conversation(new_talk(item_model), ())
    _, again = conversation(new_talk(item_model), ("delta",))
    assert usual.prompt.prefix_key
    assert again.prompt.prefix_key == b""


def test_clients_choose_only_where_the_settings_let_them() -> None:
    header = "delta, route,nonsense"
    assert ablated(AblationSettings(), header) == ()
    assert ablated(AblationSettings(by_header=True), header) == ("route", "delta")
    assert ablated(AblationSettings(screening=True), header) == ("screening",)


def test_each_saving_is_a_setting() -> None:
    assert {*AblationSettings.model_fields} == {*SAVINGS, "by_header"}
