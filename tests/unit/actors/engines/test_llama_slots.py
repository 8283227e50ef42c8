"""Which slot a prompt gets, and what it may reuse."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.actors.engines.llama_slots import (
    Placement,
    PromptCache,
    Slot,
    SlotTable,
    Snapshot,
    common_prefix,
)


def ids(*parts: range) -> "array[int]":
    return array("I", [token for part in parts for token in part])


A, B, C = range(100), range(1000, 1100), range(2000, 2100)


def table(*held: "array[int]", tenant: str = "t", cache_bytes: int = 0) -> SlotTable:
    """Slots that hold these, the first used longest ago."""
    made = SlotTable(len(held), PromptCache(cache_bytes))
    for slot, tokens in zip(made.slots, held, strict=True):
        if tokens:
            made.take(slot, tenant)
            slot.tokens = tokens
            made.release(slot)
    return made


def shape(placement: Placement | None) -> tuple[int, int, int | None, bool] | None:
    if placement is None:
        return None
    source = placement.source.index if isinstance(placement.source, Slot) else None
    return placement.slot.index, placement.keep, source, placement.save


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=40))
def test_the_common_prefix_is_as_long_as_both_agree(one: list[int], other: list[int]) -> None:
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert common_prefix(array("I", one), array("I", other)) == expected


def test_a_continuation_stays_in_its_slot() -> None:
    assert shape(table(ids(A), ids(B)).place("t", ids(B, C))) == (1, 100, None, False)


def test_the_same_prompt_again_evaluates_its_last_token_again() -> None:
    assert shape(table(ids(A)).place("t", ids(A))) == (0, 99, None, False)


def test_without_a_match_an_empty_slot_is_taken_before_one_with_content() -> None:
    assert shape(table(ids(A), ids()).place("t", ids(C))) == (1, 0, None, False)


def test_without_a_match_or_an_empty_slot_the_longest_unused_goes_and_is_saved() -> None:
    assert shape(table(ids(A), ids(B)).place("t", ids(C))) == (0, 0, None, True)


def test_a_fork_goes_to_an_empty_slot_and_leaves_the_original() -> None:
    assert shape(table(ids(A, B), ids()).place("t", ids(A, C))) == (1, 100, 0, False)


def test_a_fork_without_an_empty_slot_saves_the_original_first() -> None:
    assert shape(table(ids(A, B), ids(C)).place("t", ids(A, C))) == (0, 100, None, True)


def test_a_fork_of_a_busy_slot_is_copied() -> None:
    slots = table(ids(A), ids(B))
    slots.take(slots.slots[0], "t")
    assert shape(slots.place("t", ids(A, C))) == (1, 100, 0, True)


def test_a_match_of_a_few_tokens_does_not_cost_a_recent_conversation_its_slot() -> None:
    slots = table(ids(range(5), A), ids(range(5), B))
    assert shape(slots.place("t", ids(range(5), C))) == (0, 5, None, True)


def test_all_busy_means_not_yet() -> None:
    slots = table(ids(A))
    slots.take(slots.slots[0], "t")
    assert slots.place("t", ids(A, B)) is None


def test_a_prefill_that_will_hold_more_is_waited_for() -> None:
    slots = table(ids(range(10)), ids())
    slots.take(slots.slots[0], "t")
    assert slots.place("t", ids(A, B), growing=[ids(A)]) is None
    slots.slots[0].tokens = ids(A)
    assert shape(slots.place("t", ids(A, B), growing=[ids(A)])) == (1, 100, 0, False)


def test_a_prefill_with_little_in_common_is_not_waited_for() -> None:
    slots = table(ids(), ids())
    slots.take(slots.slots[0], "t")
    growing = [ids(range(20), B)]
    assert shape(slots.place("t", ids(range(20), C), growing)) == (1, 0, None, False)


@pytest.mark.parametrize("busy", [False, True])
def test_another_tenants_tokens_are_never_reused(busy: bool) -> None:
    slots = table(ids(A), ids(A), tenant="other", cache_bytes=10_000)
    slots.cache.add(Snapshot("other", ids(A), bytearray(8)))
    if busy:
        slots.take(slots.slots[1], "other")
    placement = slots.place("t", ids(A, B))
    assert placement is not None
    assert (placement.keep, placement.source) == (0, None)


def test_a_snapshot_is_used_when_it_holds_more_than_any_slot() -> None:
    slots = table(ids(B), ids(C), cache_bytes=10_000)
    snapshot = Snapshot("t", ids(A), bytearray(8))
    slots.cache.add(snapshot)
    placement = slots.place("t", ids(A, B))
    assert placement == Placement(slots.slots[0], 100, snapshot, save=True)


def test_snapshots_stay_within_their_bytes_and_the_longest_unused_goes() -> None:
    cache = PromptCache(2 * (400 + 8))
    first, second, third = (Snapshot("t", ids(part), bytearray(8)) for part in (A, B, C))
    cache.add(first)
    cache.add(second)
    cache.used(first)
    cache.add(third)
    assert cache.size_bytes <= cache.max_bytes
    assert cache.best("t", ids(B)) == (0, None)
    assert cache.best("t", ids(A)) == (100, first)


def test_a_snapshot_replaces_those_it_contains() -> None:
    cache = PromptCache(10_000)
    cache.add(Snapshot("t", ids(A), bytearray(8)))
    cache.add(Snapshot("other", ids(A), bytearray(8)))
    cache.add(Snapshot("t", ids(A, B), bytearray(8)))
    assert len(cache) == 2


def test_a_slot_whose_tokens_are_all_in_a_snapshot_is_covered() -> None:
    cache = PromptCache(10_000)
    cache.add(Snapshot("t", ids(A, B), bytearray(8)))
    assert cache.covers(Slot(0, "t", ids(A)))
    assert not cache.covers(Slot(0, "t", ids(A, C)))
    assert not cache.covers(Slot(0, "other", ids(A)))
