"""What a connection knows of conversations: only what is new is loaded, rendered and said again."""

import json
from typing import TYPE_CHECKING, Any

import pytest

from turnwire.pipelines import messages as m
from turnwire.pipelines.conversations import ConversationTurns
from turnwire.pipelines.protocol.errors import ConversationLocked, Internal

if TYPE_CHECKING:
    from .conftest import Talk

FIRST, SECOND, THIRD = "hello", "the world", "don"


def ask(
    talk: "Talk",
    id: str,
    text: str,
    tail: m.ConversationTail | None,
    **fields: Any,  # noqa: ANN401 -- any JSON
) -> Any:  # noqa: ANN401 -- one of two answers
    transport = fields.pop("transport", "http")
    frame = {"type": "response.create", "model": talk.model.name, "store": False, "input": text}
    body = json.dumps(frame | {"conversation": "conv_1"} | fields).encode()
    command = m.Prepare("c", id, body, talk.model, transport=transport, conversation=tail)
    answer = talk.state.prepare(command)
    if isinstance(answer, m.Prepared):
        talk.prompt = talk.engine.take(answer.prompt)
    return answer


def end(talk: "Talk", id: str, version: int) -> None:
    part = {"type": "output_text", "text": "fine", "annotations": [], "logprobs": []}
    message = {"type": "message", "id": f"msg_{id}", "role": "assistant", "content": [part]}
    sampled = b"\3\0\0\0\2\0\0\0" if talk.model.form == "tokens" else b""
    items = json.dumps([message]).encode()
    talk.state.commit(m.Commit("c", id, items, sampled, conversation_version=version))


def turn(talk: "Talk", id: str, text: str, version: int, **fields: Any) -> m.Prepared:  # noqa: ANN401 -- any JSON
    """A turn that makes `version`, on a connection that knows the one before."""
    tail = m.ConversationTail("conv_1", version - 1, version - 1)
    prepared = ask(talk, id, text, tail, **fields)
    assert isinstance(prepared, m.Prepared), prepared
    end(talk, id, version)
    return prepared


def added(text: str, id: str = "add_1") -> m.StoredTurn:
    item = {"type": "message", "id": f"msg_{id}", "role": "user", "content": text}
    return m.StoredTurn(id, json.dumps([item]).encode(), b"[]")


@pytest.fixture(params=["talk", "token_talk"])
def either(request: pytest.FixtureRequest) -> Any:  # noqa: ANN401 -- a Talk
    return request.getfixturevalue(request.param)


def test_what_is_known_is_asked_for_by_its_version(either: "Talk") -> None:
    assert ask(either, "r1", FIRST, None) == m.ConversationAt("conv_1", 0)
    turn(either, "r1", FIRST, 1)
    assert ask(either, "r2", SECOND, None) == m.ConversationAt("conv_1", 1)
    turn(either, "r2", SECOND, 2)
    assert ask(either, "r3", THIRD, None) == m.ConversationAt("conv_1", 2)


def test_a_turn_says_only_what_is_new_behind_the_prompt_before_it(either: "Talk") -> None:
    first = turn(either, "r1", FIRST, 1)
    second = turn(either, "r2", SECOND, 2)
    assert second.prompt.prefix_key == first.prompt.key
    assert (first.continuation, second.continuation) == ("new", "incremental")
    assert second.stored_input is not None
    assert (second.conversation_id, second.conversation_version) == ("conv_1", 1)


def test_what_others_added_comes_behind_the_prompt_that_is_held(either: "Talk") -> None:
    first = turn(either, "r1", FIRST, 1)
    tail = m.ConversationTail("conv_1", 2, 1, (added(SECOND),))
    after = ask(either, "r2", THIRD, tail)
    assert after.prompt.prefix_key == first.prompt.key
    assert after.conversation_version == 2
    known = either.prompt
    # Told as one whole, it is the same prompt.
    part = b'[{"type":"output_text","text":"fine","annotations":[],"logprobs":[]}]'
    answer = b'[{"type":"message","id":"msg_r1","role":"assistant","content":%b}]' % part
    sampled = b"\3\0\0\0\2\0\0\0" if either.model.form == "tokens" else b""
    one = m.StoredTurn("r1", first.stored_input or b"", answer, either.model.name, sampled)
    fresh = ask(either, "r3", THIRD, m.ConversationTail("conv_1", 2, 0, (one, added(SECOND))))
    assert fresh.prompt.prefix_key == b""
    if either.model.form == "tokens":
        assert either.prompt == known
    else:
        told = [[item.get("content") for item in prompt] for prompt in (either.prompt, known)]
        assert told[0] == told[1]


def test_a_conversation_that_was_forgotten_in_between_is_asked_for_again(
    new_talk: "type[Talk]",
) -> None:
    talk = new_talk(m.Model("sim", "items"), cache_bytes=1)
    turn(talk, "r1", FIRST, 1)
    assert ask(talk, "r2", SECOND, m.ConversationTail("conv_1", 1, 1)) == m.ConversationAt(
        "conv_1", 0
    )


def test_a_failed_turn_takes_nothing_from_its_conversation(either: "Talk") -> None:
    turn(either, "r1", FIRST, 1, transport="websocket")
    tail = m.ConversationTail("conv_1", 1, 1)
    assert isinstance(ask(either, "r2", SECOND, tail, transport="websocket"), m.Prepared)
    either.abort("r2", evict=True)
    assert ask(either, "r3", THIRD, None) == m.ConversationAt("conv_1", 1)


def test_an_answer_that_was_not_appended_is_not_the_conversations_newest(either: "Talk") -> None:
    turn(either, "r1", FIRST, 1)
    ask(either, "r2", SECOND, m.ConversationTail("conv_1", 1, 1))
    end(either, "r2", 0)
    assert ask(either, "r3", THIRD, None) == m.ConversationAt("conv_1", 1)


def test_a_deleted_conversation_is_held_no_more(either: "Talk") -> None:
    turn(either, "r1", FIRST, 1)
    turn(either, "r2", SECOND, 2)
    assert either.state.history.held_bytes > 0
    either.state.forget_conversation("conv_1")
    assert either.state.history.held_bytes == 0
    # Also when one of its turns was under way.
    turn(either, "r3", THIRD, 1)
    assert either.state.history.held_bytes == 0


def test_the_name_of_a_conversation_is_no_parent(either: "Talk") -> None:
    turn(either, "r1", FIRST, 1)
    for name in ("conv_1", "r1"):
        assert either.ask("r2", input=SECOND, previous_response_id=name) == m.ParentUnknown(name)


def test_a_stored_response_names_the_conversation_before_it(either: "Talk") -> None:
    turn(either, "r1", FIRST, 1)
    stored = turn(either, "r2", SECOND, 2, store=True)
    assert stored.stored_context == m.Chain((), "conv_1")
    behind = either.create("r3", input=THIRD, previous_response_id="r2")
    assert behind.prompt.prefix_key == stored.prompt.key
    assert (behind.parent_id, behind.stored_context) == ("r2", None)


def test_the_tail_of_another_conversation_is_a_bug_of_ours(either: "Talk") -> None:
    with pytest.raises(Internal):
        ask(either, "r1", FIRST, m.ConversationTail("conv_2", 1))


def test_one_owner_at_a_time_works_on_a_conversation() -> None:
    turns = ConversationTurns()
    turns.enter("red", "conv_1", "r1")
    turns.enter("red", "conv_1", "r1")
    turns.enter("blue", "conv_1", "r2")
    with pytest.raises(ConversationLocked), turns.changing("red", "conv_1", "add_1"):
        pass
    turns.leave("red", "conv_1", "add_1")
    turns.leave("red", "conv_1", "r1")
    with turns.changing("red", "conv_1", "add_1"):
        assert len(turns) == 2
    turns.leave("blue", "conv_1", "r2")
    assert len(turns) == 0
