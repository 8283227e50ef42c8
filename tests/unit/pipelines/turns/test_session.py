"""The protocol of one connection: lanes, bounds, refusals, age, drain."""

import itertools
from dataclasses import dataclass, field

import orjson
import pytest
from scripted_ports import create

from turnwire.pipelines.config import SessionSettings
from turnwire.pipelines.effects import (
    CancelTurn,
    CloseSocket,
    Effect,
    EndTurn,
    SendError,
    SendEvent,
    StartTurn,
)
from turnwire.pipelines.limits import ByteBudget
from turnwire.pipelines.session import Session


@dataclass
class Wire:
    """A session, told in short and answering in short."""

    settings: SessionSettings = field(default_factory=SessionSettings)
    budget: ByteBudget = field(default_factory=lambda: ByteBudget(1_000_000))
    max_message_bytes: int = 100_000
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.session = Session(self.settings, self.budget, self.max_message_bytes, self.now_s)
        self._ids = itertools.count(1)

    def send(self, frame: bytes) -> list[str]:
        return said(self.session.received(frame, f"resp_{next(self._ids)}", self.now_s))

    def create(self, lane: str | None = None, **fields: object) -> list[str]:
        return self.send(create(**({} if lane is None else {"stream_id": lane}), **fields))

    def finish(self, number: int) -> list[str]:
        return said(self.session.finished(f"resp_{number}", self.now_s))

    def tick(self, now_s: float) -> list[str]:
        self.now_s = now_s
        return said(self.session.tick(now_s))


def said(effects: list[Effect]) -> list[str]:
    words = []
    for effect in effects:
        match effect:
            case StartTurn(turn):
                words.append(f"start {turn.response_id} {turn.lane or '-'}")
            case CancelTurn(response_id):
                words.append(f"cancel {response_id}")
            case EndTurn(response_id, error):
                words.append(f"end {response_id} {error.code}")
            case SendError(error, lane):
                words.append(
                    f"error {error.status} {error.code} {error.param or '-'} {lane or '-'}"
                )
            case SendEvent(event):
                words.append(f"event {orjson.loads(event)['type']}")
            case CloseSocket(code, _):
                words.append(f"close {code}")
    return words


def test_a_lane_is_fifo_and_another_lane_does_not_wait() -> None:
    wire = Wire()
    assert wire.create("a") == ["start resp_1 a"]
    assert wire.create("a") == []
    assert wire.create("b") == ["start resp_3 b"]
    assert wire.create() == ["start resp_4 -"]
    assert wire.create("a") == []
    assert wire.finish(1) == ["start resp_2 a"]
    assert wire.finish(3) == []
    assert wire.finish(2) == ["start resp_5 a"]


def test_lanes_beyond_the_places_start_in_the_order_in_which_they_became_ready() -> None:
    wire = Wire(SessionSettings(max_running=2))
    wire.create("a")
    wire.create("b")
    assert wire.create("c") == []
    assert wire.create("a") == []
    assert wire.create("d") == []
    assert wire.finish(1) == ["start resp_3 c"]
    assert wire.finish(2) == ["start resp_5 d"]
    assert wire.finish(3) == ["start resp_4 a"]


def test_a_lane_name_is_never_given_back_and_the_33rd_is_refused() -> None:
    wire = Wire(SessionSettings(max_running=100))
    for number in range(1, 33):
        assert wire.create(f"lane-{number}") == [f"start resp_{number} lane-{number}"]
        wire.finish(number)
    refused = "error 400 websocket_stream_limit_reached stream_id one-more"
    assert wire.create("one-more") == [refused]
    assert wire.create() == ["start resp_34 -"]
    assert wire.create("lane-7") == ["start resp_35 lane-7"]


@pytest.mark.parametrize("name", ["", "a b", "x" * 257, "é", "a\n"])
def test_a_bad_lane_name_is_refused_and_not_repeated(name: str) -> None:
    assert Wire().create(name) == ["error 400 invalid_stream_id stream_id -"]


@pytest.mark.parametrize("name", ["x" * 256, "A-z_0.9"])
def test_a_good_lane_name_is_taken(name: str) -> None:
    assert Wire().create(name) == [f"start resp_1 {name}"]


@pytest.mark.parametrize(
    ("frame", "answer"),
    [
        (b"{", ["error 400 invalid_request_error - -"]),
        (b"[1]", ["error 400 invalid_request_error - -"]),
        (b"\xff\xfe", ["error 400 invalid_request_error - -"]),
        (b"[" * 100_000, ["error 400 invalid_request_error - -"]),
        (b"{}", ["error 400 invalid_request_error type -"]),
        (b'{"type":7}', ["error 400 invalid_request_error type -"]),
        (b'{"type":"response.cancel"}', ["error 400 unknown_event_type type -"]),
        (b'{"type":"x","stream_id":"a"}', ["error 400 unknown_event_type type a"]),
        (b'{"type":"response.processed","response_id":"resp_1"}', []),
        (b'{"type":"response.steer","input":"x"}', ["event response.steer.failed"]),
        (b'{"type":"response.steer","input":"\xff"}', ["error 400 invalid_request_error - -"]),
    ],
)
def test_a_frame_that_asks_for_nothing_is_answered_and_the_next_one_works(
    frame: bytes, answer: list[str]
) -> None:
    wire = Wire()
    assert wire.send(frame) == answer
    assert wire.create() == ["start resp_2 -"]


def test_a_steer_gets_its_input_back() -> None:
    frame = orjson.dumps(
        {"type": "response.steer", "previous_response_id": "resp_9", "input": [{"role": "user"}]}
    )
    (effect,) = Wire().session.received(frame, "resp_1", 0.0)
    assert isinstance(effect, SendEvent)
    event = orjson.loads(effect.event)
    assert event["error"]["code"] == "steering_not_supported"
    assert event["steer"] == {"previous_response_id": "resp_9", "input": [{"role": "user"}]}


def test_binary_and_oversize_frames_are_errors_that_keep_the_socket() -> None:
    wire = Wire(max_message_bytes=200)
    assert said(wire.session.received_binary()) == ["error 400 invalid_request_error - -"]
    assert wire.create(input="x" * 300) == ["error 400 invalid_request_error - -"]
    assert wire.create() == ["start resp_2 -"]


def test_waiting_turns_are_bounded_by_count() -> None:
    wire = Wire(SessionSettings(max_queued=2))
    wire.create()
    assert [wire.create(), wire.create()] == [[], []]
    assert wire.create() == ["error 503 server_is_overloaded - -"]
    assert wire.create("other") == ["start resp_5 other"]
    assert wire.finish(1) == ["start resp_2 -"]
    assert wire.create() == []


def test_waiting_turns_are_bounded_by_bytes() -> None:
    wire = Wire(SessionSettings(max_queued_bytes=500))
    wire.create()
    assert wire.create(input="x" * 300) == []
    assert wire.create(input="x" * 300) == ["error 503 server_is_overloaded - -"]


def test_frames_are_charged_to_the_gateway_until_they_are_prepared() -> None:
    wire = Wire(budget=ByteBudget(500))
    assert wire.create(input="x" * 300) == ["start resp_1 -"]
    assert wire.create("b", input="x" * 300) == ["error 503 server_is_overloaded - b"]
    wire.session.prepared("resp_1")
    assert wire.budget.held_bytes == 0
    assert wire.create("b", input="x" * 300) == ["start resp_3 b"]
    wire.finish(3)
    wire.finish(1)
    assert wire.budget.held_bytes == 0


def test_a_client_that_leaves_cancels_what_runs_and_drops_what_waits() -> None:
    wire = Wire()
    wire.create("a")
    wire.create("a")
    wire.create("b")
    assert said(wire.session.disconnected()) == ["cancel resp_1", "cancel resp_3"]
    assert [wire.finish(1), wire.finish(3)] == [[], []]
    assert wire.budget.held_bytes == 0
    assert wire.session.idle


def test_an_idle_connection_that_is_too_old_is_told_and_closed() -> None:
    wire = Wire(SessionSettings(max_age_s=60))
    assert wire.tick(59.9) == []
    assert wire.tick(60) == ["error 400 websocket_connection_limit_reached - -", "close 1000"]
    assert wire.tick(61) == []


def test_a_turn_that_runs_at_the_age_limit_may_end_and_nothing_else_starts() -> None:
    wire = Wire(SessionSettings(max_age_s=60, age_grace_s=10))
    wire.create("a")
    wire.create("a")
    refused = "error 400 websocket_connection_limit_reached"
    assert wire.tick(60) == []
    assert wire.create() == [f"{refused} - -"]
    assert wire.finish(1) == [f"{refused} - a", "close 1000"]


def test_a_turn_longer_than_the_grace_is_ended_and_then_the_socket() -> None:
    wire = Wire(SessionSettings(max_age_s=60, age_grace_s=10))
    wire.create()
    wire.tick(60)
    assert wire.tick(69) == []
    assert wire.tick(70) == ["end resp_1 websocket_connection_limit_reached"]
    assert wire.tick(71) == []
    assert wire.finish(1) == ["close 1000"]


def test_no_turn_is_admitted_late_but_those_that_wait_still_start() -> None:
    wire = Wire(SessionSettings(max_age_s=60, admit_age_s=55))
    wire.create("a")
    wire.create("a")
    assert wire.tick(55) == []
    refused = "error 400 websocket_connection_limit_reached - b"
    assert wire.create("b") == [refused]
    assert wire.finish(1) == ["start resp_2 a"]
    assert wire.finish(2) == ["close 1000"]


def test_turns_that_wait_at_the_age_limit_are_refused_whether_or_not_others_were_before() -> None:
    wire = Wire(SessionSettings(max_age_s=60, admit_age_s=55, age_grace_s=5))
    wire.create("a")
    wire.create("a")
    wire.now_s = 56
    wire.create("b")
    assert wire.tick(60) == []
    assert wire.tick(65) == ["end resp_1 websocket_connection_limit_reached"]
    refused = "error 400 websocket_connection_limit_reached - a"
    assert wire.finish(1) == [refused, "close 1000"]
    assert wire.budget.held_bytes == 0


def test_an_idle_connection_is_not_told_that_it_admits_no_more() -> None:
    wire = Wire(SessionSettings(max_age_s=60, admit_age_s=55))
    assert wire.tick(59) == []
    refused = "error 400 websocket_connection_limit_reached - -"
    assert wire.create() == [refused, "close 1000"]


def test_a_create_that_comes_late_before_any_tick_is_refused_and_the_socket_closed() -> None:
    wire = Wire(SessionSettings(max_age_s=60))
    wire.now_s = 61
    refused = "error 400 websocket_connection_limit_reached - -"
    assert wire.create() == [refused, "close 1000"]


def test_a_connection_without_turns_for_long_is_closed() -> None:
    wire = Wire(SessionSettings(idle_s=30))
    wire.now_s = 10
    wire.create()
    assert wire.tick(100) == []
    wire.finish(1)
    assert wire.tick(129) == []
    assert wire.tick(130) == ["close 1000"]


def test_a_drain_lets_turns_end_refuses_the_rest_and_closes_1012() -> None:
    wire = Wire()
    wire.create("a")
    wire.create("a")
    refused = "error 400 websocket_connection_limit_reached"
    assert said(wire.session.drain()) == []
    assert wire.create("b") == [f"{refused} - b"]
    assert wire.finish(1) == [f"{refused} - a", "close 1012"]


def test_a_drain_refuses_at_once_what_waits_for_a_place_only() -> None:
    wire = Wire(SessionSettings(max_running=1))
    wire.create("a")
    wire.create("b")
    wire.create("b")
    refused = "error 400 websocket_connection_limit_reached - b"
    assert said(wire.session.drain()) == [refused, refused]
    assert wire.finish(1) == ["close 1012"]
    assert wire.budget.held_bytes == 0


def test_a_drain_of_an_idle_connection_closes_at_once_and_its_end_cancels_nothing() -> None:
    wire = Wire()
    assert said(wire.session.drain()) == ["close 1012"]
    assert said(wire.session.expired()) == []


def test_a_drain_that_takes_too_long_ends_the_running_turns() -> None:
    wire = Wire()
    wire.create("a")
    wire.create("b")
    wire.session.drain()
    code = "websocket_connection_limit_reached"
    assert said(wire.session.expired()) == [f"end resp_1 {code}", f"end resp_2 {code}"]


def test_what_an_envelope_says_reaches_the_turn() -> None:
    wire = Wire()
    (effect,) = wire.session.received(create(generate=False, model="m2"), "resp_1", 5.0)
    assert isinstance(effect, StartTurn)
    turn = effect.turn
    assert (turn.model, turn.generate, turn.received_s) == ("m2", False, 5.0)
