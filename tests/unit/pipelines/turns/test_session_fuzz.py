"""Whatever a client sends, in whatever order: a session keeps its promises."""

from collections import defaultdict, deque
from typing import Any

import orjson
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from turnwire.pipelines import effects as e
from turnwire.pipelines.config import SessionSettings
from turnwire.pipelines.limits import ByteBudget
from turnwire.pipelines.session import Session

LANES = [None, "a", "b", "c", "d"]
SETTINGS = SessionSettings(
    max_running=2,
    max_lanes=3,
    max_queued=3,
    max_queued_bytes=1200,
    max_age_s=100,
    admit_age_s=90,
    age_grace_s=10,
    idle_s=40,
)
BUDGET = 1500
MAX_MESSAGE = 700
TYPES = ["response.create", "response.steer", "response.processed", "response.cancel", "", "x"]

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
documents = st.dictionaries(st.text(max_size=4), scalars, max_size=3)
odd_events = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES) | scalars},
    optional={
        "stream_id": st.sampled_from(LANES) | scalars,
        "model": scalars,
        "generate": scalars,
        "input": scalars | documents,
        "previous_response_id": scalars,
    },
)


class Sessions(RuleBasedStateMachine):
    """A session beside what a client may know of it."""

    @initialize()
    def opens(self) -> None:
        self.budget = ByteBudget(BUDGET)
        self.now_s = 0.0
        self.session = Session(SETTINGS, self.budget, MAX_MESSAGE, 0.0)
        self.made = 0
        self.waiting: defaultdict[str | None, deque[str]] = defaultdict(deque)
        self.running: dict[str, str | None] = {}
        self.held: dict[str, int] = {}
        self.lanes: set[str] = set()
        self.ended: set[str] = set()
        self.closed = self.gone = False

    # --- what a client does -----------------------------------------------------------------------

    @rule(lane=st.sampled_from(LANES), size=st.sampled_from([0, 100, 400, 800]))
    def creates(self, lane: str | None, size: int) -> None:
        event: dict[str, object] = {"type": "response.create", "input": "x" * size}
        self._receives(orjson.dumps(event | ({} if lane is None else {"stream_id": lane})))

    @rule(event=odd_events)
    def sends_an_odd_event(self, event: dict[str, Any]) -> None:
        try:
            frame = orjson.dumps(event)
        except orjson.JSONEncodeError:  # numbers beyond 64 bit, half a surrogate pair
            frame = repr(event).encode("utf-8", "surrogatepass")
        self._receives(frame)

    @rule(frame=st.binary(max_size=40) | st.sampled_from([b"[" * 600, b'{"type":', b"\xff", b""]))
    def sends_no_json(self, frame: bytes) -> None:
        self._receives(frame)

    @rule()
    def sends_bytes(self) -> None:
        (effect,) = self.session.received_binary()
        assert isinstance(effect, e.SendError)

    @precondition(lambda self: not self.gone)
    @rule()
    def leaves(self) -> None:
        self.gone = self.closed = True
        effects = self.session.disconnected()
        assert [type(effect) for effect in effects] == [e.CancelTurn] * len(self.running)
        self._forget_waiting()

    # --- what the server does ---------------------------------------------------------------------

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def prepares(self, data: st.DataObject) -> None:
        response_id = data.draw(st.sampled_from(sorted(self.running)))
        self.session.prepared(response_id)
        self.held[response_id] = 0

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finishes(self, data: st.DataObject) -> None:
        self._finish(data.draw(st.sampled_from(sorted(self.running))))

    @rule(seconds=st.sampled_from([1.0, 9.0, 39.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self._performs(self.session.tick(self.now_s))

    @precondition(lambda self: not self.closed)
    @rule()
    def drains(self) -> None:
        self._performs(self.session.drain())

    @rule()
    def time_to_drain_is_over(self) -> None:
        self._performs(self.session.expired())

    # --- what must hold ---------------------------------------------------------------------------

    @invariant()
    def bounds_are_kept(self) -> None:
        if not hasattr(self, "session"):
            return
        waiting = [response_id for lane in self.waiting.values() for response_id in lane]
        assert len(self.running) <= SETTINGS.max_running
        assert len({*self.running.values()}) == len(self.running)
        assert len(waiting) <= SETTINGS.max_queued
        assert len(self.lanes) <= SETTINGS.max_lanes
        assert self.budget.held_bytes == sum(self.held.values()) <= BUDGET
        assert self.session.idle == (not self.running and not waiting)

    def teardown(self) -> None:
        if not hasattr(self, "session"):
            return
        while self.running:
            self._finish(min(self.running))
        assert not any(self.waiting.values()), "a create was never answered"
        if not self.gone:
            self.leaves()
        assert self.budget.held_bytes == 0

    # --- inside -----------------------------------------------------------------------------------

    def _receives(self, frame: bytes) -> None:
        self.made += 1
        response_id = f"resp_{self.made}"
        queued_before = self.session._queued
        effects = self.session.received(frame, response_id, self.now_s)
        if self.closed:
            assert effects == []
            return
        answers = [x for x in effects if not isinstance(x, e.CloseSocket)]
        assert len(answers) <= 1
        if self.session._queued > queued_before:
            assert answers == []
            lane = _lane_of(frame)
            self._accepts(response_id, lane, frame)
            self.waiting[lane].append(response_id)
        elif answers and isinstance(answers[0], e.StartTurn):
            self._accepts(response_id, answers[0].turn.lane, frame)
        elif not answers:
            assert b"response.processed" in frame
        self._performs(effects, asked=True)

    def _accepts(self, response_id: str, lane: str | None, frame: bytes) -> None:
        self.held[response_id] = len(frame)
        if lane is not None:
            self.lanes.add(lane)

    def _finish(self, response_id: str) -> None:
        del self.running[response_id]
        del self.held[response_id]
        self._performs(self.session.finished(response_id, self.now_s))
        assert self.session.finished(response_id, self.now_s) == []

    def _performs(self, effects: list[e.Effect], *, asked: bool = False) -> None:
        """`asked`: an error among them answers the frame that was just sent."""
        for effect in effects:
            assert not self.closed, "nothing follows the close"
            match effect:
                case e.StartTurn(turn):
                    self._starts(turn)
                case e.SendError(error, lane):
                    assert 400 <= error.status <= 599
                    if not asked and self.waiting[lane]:
                        del self.held[self.waiting[lane].popleft()]
                case e.EndTurn(response_id, _):
                    assert response_id in self.running
                    assert response_id not in self.ended
                    self.ended.add(response_id)
                case e.CloseSocket(code, _):
                    assert code in (1000, 1012)
                    assert not self.running
                    self.closed = True
                case e.SendEvent(event):
                    assert orjson.loads(event)["type"] == "response.steer.failed"
                case e.CancelTurn():
                    raise AssertionError("only a client that left is cancelled")

    def _starts(self, turn: e.Accepted) -> None:
        if self.waiting[turn.lane]:
            assert self.waiting[turn.lane].popleft() == turn.response_id, "a lane is FIFO"
        self.running[turn.response_id] = turn.lane

    def _forget_waiting(self) -> None:
        for lane in self.waiting.values():
            for response_id in lane:
                del self.held[response_id]
            lane.clear()


def _lane_of(frame: bytes) -> str | None:
    lane: str | None = orjson.loads(frame).get("stream_id")
    return lane


TestSessions = Sessions.TestCase
