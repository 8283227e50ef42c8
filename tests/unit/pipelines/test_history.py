from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.pipelines.history import Entry, History
from turnwire.pipelines.lineage import Checkpoint, Context

KIB = 1024


class Lanes:
    """A history that is written to turn by turn."""

    def __init__(self, cache_bytes: int) -> None:
        self.history = History(cache_bytes)

    def turn(
        self,
        response_id: str,
        parent: str | None = None,
        *,
        lane: str | None = None,
        size: int = KIB,
        latest: bool = True,
    ) -> None:
        entry = self.history.pin(parent) if parent else None
        assert parent is None or entry is not None, f"{parent} is not there"
        before = entry.checkpoint if entry else None
        checkpoint = Checkpoint(response_id, before, lane, "m", False, True, Context(), b"x" * size)
        self.history.unpin(self.history.add(checkpoint, entry, latest=latest))
        if entry is not None:
            self.history.unpin(entry)

    def found(self, *response_ids: str) -> str:
        return " ".join(id for id in response_ids if id in self.history)


def test_the_latest_of_each_lane_outlives_any_pressure() -> None:
    lanes = Lanes(cache_bytes=0)
    lanes.turn("a1", lane="a", size=100 * KIB)
    lanes.turn("b1", lane="b", size=100 * KIB)
    lanes.turn("c1", size=100 * KIB)
    assert lanes.found("a1", "b1", "c1") == "a1 b1 c1"


def test_a_new_conversation_on_a_lane_gives_up_the_old_one_under_pressure() -> None:
    lanes = Lanes(cache_bytes=0)
    lanes.turn("a1")
    lanes.turn("a2", "a1")
    lanes.turn("b1")
    assert lanes.found("a1", "a2", "b1") == "b1"
    assert lanes.history.spare_bytes == 0


def test_what_the_latest_stands_on_costs_nothing_and_stays() -> None:
    lanes = Lanes(cache_bytes=0)
    lanes.turn("r0")
    for number in range(1, 50):
        lanes.turn(f"r{number}", f"r{number - 1}")
    assert lanes.found("r0", "r25", "r49") == "r0 r25 r49"
    assert lanes.history.spare_bytes == 0


def test_the_least_recently_used_goes_first() -> None:
    lanes = Lanes(cache_bytes=8 * KIB)
    for name in ("a", "b", "c"):
        lanes.turn(name)
    touched = lanes.history.pin("a")
    assert touched is not None
    lanes.history.unpin(touched)
    lanes.turn("d")
    assert lanes.found("a", "b", "c", "d") == "a c d"


def test_a_pinned_parent_survives_pressure_until_it_is_let_go() -> None:
    lanes = Lanes(cache_bytes=0)
    lanes.turn("a")
    pinned = lanes.history.pin("a")
    assert pinned is not None
    lanes.turn("b")
    lanes.turn("c")
    assert lanes.found("a", "b", "c") == "a c"
    lanes.history.unpin(pinned)
    assert lanes.found("a", "b", "c") == "c"


def test_an_evicted_turn_is_gone_at_once_and_its_fork_stays_whole() -> None:
    lanes = Lanes(cache_bytes=100 * KIB)
    lanes.turn("root", lane="a")
    lanes.turn("fork", "root", lane="b")
    lanes.history.evict("root")
    assert lanes.found("root", "fork") == "fork"
    fork = lanes.history.pin("fork")
    assert fork is not None
    assert fork.checkpoint.parent is not None
    assert fork.checkpoint.parent.response_id == "root"


def test_adding_or_evicting_again_changes_nothing() -> None:
    lanes = Lanes(cache_bytes=100 * KIB)
    lanes.turn("a")
    held = lanes.history.held_bytes
    lanes.turn("a")
    assert (lanes.history.held_bytes, len(lanes.history)) == (held, 1)
    lanes.history.evict("a")
    lanes.history.evict("a")
    assert (lanes.history.held_bytes, len(lanes.history)) == (0, 0)


def test_a_branch_that_ends_takes_along_only_what_nobody_else_stands_on() -> None:
    lanes = Lanes(cache_bytes=100 * KIB)
    lanes.turn("root")
    lanes.turn("left", "root", lane="a")
    lanes.turn("right", "root", lane="b")
    full = lanes.history.held_bytes
    lanes.history.evict("root")
    lanes.history.evict("left")
    assert lanes.history.held_bytes == full * 2 // 3
    lanes.history.evict("right")
    assert lanes.history.held_bytes == 0


def test_a_forgotten_turn_cannot_be_added_again_and_holds_nothing() -> None:
    lanes = Lanes(cache_bytes=100 * KIB)
    lanes.turn("a")
    lanes.turn("b", "a")
    lanes.history.forget("a")
    lanes.history.forget("c")
    lanes.turn("a")
    lanes.turn("c", "b")
    assert lanes.found("a", "b", "c") == "b"
    lanes.history.forget("b")
    assert (lanes.history.held_bytes, len(lanes.history)) == (0, 0)


def test_only_so_many_forgotten_ids_are_remembered() -> None:
    lanes = Lanes(cache_bytes=100 * KIB)
    for number in range(1000):
        lanes.history.forget(f"r{number}")
    lanes.turn("r0")
    lanes.turn("r999")
    assert lanes.found("r0", "r999") == "r0"


def test_growth_of_a_turn_counts() -> None:
    lanes = Lanes(cache_bytes=100 * KIB)
    lanes.turn("a")
    entry = lanes.history.pin("a")
    assert entry is not None
    held = lanes.history.held_bytes
    lanes.history.charge(entry.checkpoint, 500)
    assert lanes.history.held_bytes == held + 500


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("turn", "turn", "turn", "fork", "evict", "pin", "unpin")),
        st.integers(0, 30),
        st.sampled_from((None, "a", "b")),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(actions=ACTIONS)
def test_the_bytes_kept_beyond_the_guaranteed_ones_never_exceed_the_bound(
    actions: list[tuple[str, int, str | None]],
) -> None:
    lanes = Lanes(cache_bytes=10 * KIB)
    pinned: list[Entry] = []
    for number, (action, which, lane) in enumerate(actions):
        known = [f"r{old}" for old in range(number) if f"r{old}" in lanes.history]
        chosen = known[which % len(known)] if known else None
        if action in ("turn", "fork"):
            lanes.turn(f"r{number}", chosen if action == "fork" else None, lane=lane)
        elif action == "evict" and chosen:
            lanes.history.evict(chosen)
        elif action == "pin" and chosen:
            entry = lanes.history.pin(chosen)
            assert entry is not None
            pinned.append(entry)
        elif action == "unpin" and pinned:
            lanes.history.unpin(pinned.pop(which % len(pinned)))
        assert 0 <= lanes.history.spare_bytes <= lanes.history.held_bytes
    for entry in pinned:
        lanes.history.unpin(entry)
    assert lanes.history.spare_bytes <= 10 * KIB
    for number in range(len(actions)):
        lanes.history.evict(f"r{number}")
    assert (lanes.history.held_bytes, lanes.history.spare_bytes, len(lanes.history)) == (0, 0, 0)
