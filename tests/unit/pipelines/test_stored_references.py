# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""A conversation sent in full whose stored answers are named by id alone, as the AI SDK does."""

import json
from typing import Any

import pytest

from turnwire.pipelines import messages as m
from turnwire.pipelines.preparation import prepare
from turnwire.pipelines.protocol.errors import InvalidRequest, NotFound
from turnwire.pipelines.protocol.ids import output_item_id, response_of

FIRST, SECOND, THIRD = (f"resp_{letter * 32}" for letter in "abc")


def say(text: str) -> dict[str, Any]:
    return {"type": "message", "id": f"msg_{text}", "role": "user", "content": text}


def answer(response_id: str, text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    item_id = output_item_id("msg", response_id, 0)
    return {"type": "message", "id": item_id, "role": "assistant", "content": content}


def reference(response_id: str, index: int = 0) -> dict[str, str]:
    return {"type": "item_reference", "id": output_item_id("msg", response_id, index)}


def texts(prompt: list[dict[str, Any]]) -> list[str]:
    contents = [item["content"] for item in prompt]
    return [one if isinstance(one, str) else one[0]["text"] for one in contents]


def chain(response_id: str, text: str) -> m.Chain:
    given, output = ([say("a")], [answer(response_id, text)])
    return m.Chain(
        (m.StoredTurn(response_id, json.dumps(given).encode(), json.dumps(output).encode(), "sim"),)
    )


def answered(talk: Any, response_id: str, text: str, **fields: Any) -> None:
    talk.create(response_id, transport="http", **fields)
    talk.answer(response_id, items=[answer(response_id, text)])


def test_an_output_item_is_named_after_its_response() -> None:
    assert response_of(output_item_id("fc", FIRST, 255)) == FIRST
    assert response_of("msg_mine") is None
    assert response_of(f"msg_{'a' * 32}") is None


def test_stored_answers_stand_where_they_are_referred_to(talk: Any) -> None:
    answered(talk, FIRST, "one", input=[say("a")], store=True)
    given = [say("a"), reference(FIRST), say("b")]
    answered(talk, SECOND, "two", input=given, store=True)
    assert texts(talk.prompt) == ["a", "one", "b"]
    talk.create(THIRD, transport="http", input=[*given, reference(SECOND), say("c")])
    assert texts(talk.prompt) == ["a", "one", "b", "two", "c"]


def test_an_answer_that_is_sent_too_is_not_there_twice(talk: Any) -> None:
    answered(talk, FIRST, "one", input=[say("a")], store=True)
    given = [say("a"), answer(FIRST, "one"), reference(FIRST), reference(FIRST), say("b")]
    talk.create(SECOND, transport="http", input=given)
    assert texts(talk.prompt) == ["a", "one", "b"]


@pytest.mark.parametrize(("store", "index"), [(False, 0), (True, 1)], ids=["unstored", "no item"])
def test_what_is_not_stored_is_refused(talk: Any, store: bool, index: int) -> None:
    talk.create(FIRST, input=[say("a")], store=store)
    talk.answer(FIRST, items=[answer(FIRST, "one")])
    with pytest.raises(InvalidRequest, match="refers to an item that is not in this conversation"):
        talk.ask(SECOND, input=[say("a"), reference(FIRST, index)])


def test_a_response_that_is_not_here_is_asked_for(talk: Any) -> None:
    given = [say("a"), reference(FIRST), say("b")]
    wanted = m.ParentUnknown(FIRST, output_item_id("msg", FIRST, 0))
    assert talk.ask(SECOND, input=given) == wanted
    talk.create(SECOND, input=given, chain=chain(FIRST, "one"))
    assert texts(talk.prompt) == ["a", "one", "b"]


class Stored:
    """Both ports of a preparation: the connection, and a store with these responses."""

    def __init__(self, talk: Any, *chains: m.Chain) -> None:
        self.state = talk.state
        self.chains = {chain.turns[-1].response_id: chain for chain in chains}
        self.loaded: list[str] = []

    async def prepare(self, command: m.Prepare) -> m.Prepared | m.ParentUnknown:
        found: m.Prepared | m.ParentUnknown = self.state.prepare(command)
        return found

    async def load(self, command: m.Load) -> m.Chain:
        self.loaded.append(command.response_id)
        if command.response_id not in self.chains:
            raise NotFound("no such response")
        return self.chains[command.response_id]


def request(talk: Any, *items: dict[str, Any]) -> m.Prepare:
    body = {"type": "response.create", "model": "sim", "input": items, "store": False}
    return m.Prepare("c", THIRD, json.dumps(body).encode(), talk.model, None, "http")


async def test_all_that_a_connection_has_lost_is_loaded(talk: Any) -> None:
    stored: Any = Stored(talk, chain(FIRST, "one"), chain(SECOND, "two"))
    command = request(talk, say("a"), reference(FIRST), say("b"), reference(SECOND))
    prepared = await prepare(command, stored, stored, "acme")
    assert stored.loaded == [FIRST, SECOND]
    assert texts(talk.engine.take(prepared.prompt)) == ["a", "one", "b", "two"]


async def test_an_item_that_is_nowhere_is_refused_by_its_id(talk: Any) -> None:
    stored: Any = Stored(talk)
    with pytest.raises(InvalidRequest, match=r"Item with id .msg_a{32}00. not found"):
        await prepare(request(talk, say("a"), reference(FIRST)), stored, stored, "acme")
    assert stored.loaded == [FIRST]
