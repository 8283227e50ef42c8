import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.pipelines.lineage import Checkpoint, Context, KnownIds, chain_to, restored
from turnwire.pipelines.messages import StoredTurn
from turnwire.pipelines.protocol.errors import InvalidEncryptedContent
from turnwire.pipelines.protocol.items import kept_items
from turnwire.pipelines.sealing import Keyring, Sealer

SEALER = Sealer("acme")
NAMES = st.lists(st.frozensets(st.text("abc", min_size=1, max_size=3), max_size=4), max_size=12)


@given(added=NAMES)
def test_known_ids_are_a_set_whose_older_versions_stay_as_they_were(
    added: list[frozenset[str]],
) -> None:
    known, expected = KnownIds(), set[str]()
    versions = []
    for ids in added:
        versions.append((known, frozenset(expected)))
        known, expected = known.plus(ids), expected | ids
    for version, members in [*versions, (known, frozenset(expected))]:
        assert {id for id in expected if id in version} == members


def test_known_ids_are_found_in_few_steps_and_held_twice_at_most() -> None:
    known = KnownIds()
    versions: dict[int, KnownIds] = {}
    for number in range(10_000):
        known = known.plus([str(number)])
        versions |= {id(known): known}
    steps, node = 0, known
    while node.before is not None:
        steps, node = steps + 1, node.before
    assert steps <= 10_000 / 32 + 32
    assert sum(len(version.added) for version in versions.values()) <= 2 * 10_000
    assert "0" in known
    assert "10000" not in known


def test_a_context_remembers_calls_items_and_who_spoke_first() -> None:
    items = kept_items(
        b'{"type":"reasoning","id":"rs_1"},'
        b'{"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":""},'
        b'{"id":"msg_1","role":"user","content":""}'
    )
    context = Context().plus(items, b"x" * 10).plus((), b"y" * 5)
    assert "c1" in context.calls
    assert all(id in context.items for id in ("rs_1", "fc_1", "msg_1"))
    assert (context.leading, context.json_bytes) == ("assistant", 15)


def test_a_chain_that_was_stored_is_restored_as_it_was() -> None:
    question = b'[{"id":"msg_1","role":"user","content":"a"}]'
    answer = b' [ {"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":""} ] '
    first = restored(
        StoredTurn("resp_1", question, answer, "small", b"ids.", "length"), None, SEALER
    )
    second = restored(StoredTurn("resp_2", b"[]", b"[]", "small"), first, SEALER)
    chain = chain_to(second)
    assert chain.turns[0].input == question
    assert chain.turns[0].output == b"[%b]" % answer.strip()[1:-1].strip()
    assert (chain.turns[0].sampled, chain.turns[0].finish) == (b"ids.", "length")
    assert chain.turns[1].response_id == "resp_2"
    assert "c" in second.context.calls
    assert (first.generated, second.generated) == (True, False)


def test_a_very_long_conversation_can_be_walked_and_let_go() -> None:
    turn: Checkpoint | None = None
    for number in range(20_000):
        turn = Checkpoint(str(number), turn, None, "m", False, True, Context(), b"")
    assert turn is not None
    assert [before.response_id for before in turn.ancestors()[:2]] == ["0", "1"]
    del turn


def test_a_stored_chain_is_restored_with_its_reasoning_opened() -> None:
    sealer = Sealer("acme", Keyring(bytes(range(32))))
    sealed = sealer.seal("reasoning", "Hm.").encode()
    thought = b'[{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"%b"}]' % sealed
    turn = StoredTurn("resp_1", b"[]", thought, "small")
    assert b'"text":"Hm."' in restored(turn, None, sealer).output
    with pytest.raises(InvalidEncryptedContent):
        restored(turn, None, SEALER)


def test_a_conversation_longer_than_a_stack_is_deep_can_be_let_go() -> None:
    turn: Checkpoint | None = None
    for number in range(300_000):
        turn = Checkpoint(
            response_id=str(number),
            parent=turn,
            lane=None,
            model="model",
            stored=False,
            generated=True,
            context=Context(),
            input=b"",
        )
    del turn
