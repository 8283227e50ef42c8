"""Engine events become the wire events the API's types describe."""

from typing import Any

import orjson
import pytest
from scripted_ports import counts
from turn_worlds import check_events

from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import Internal, RateLimitExceeded
from turnwire.pipelines.protocol.events import event_type
from turnwire.pipelines.protocol.responses import Echo
from turnwire.pipelines.response_stream import ResponseStream

MEMBERS = (
    b'"background":false,"max_output_tokens":null,"max_tool_calls":null,"model":"m",'
    b'"parallel_tool_calls":true,"reasoning":null,"service_tier":"default","store":false,'
    b'"temperature":1.0,"top_p":1.0,"text":{"format":{"type":"text"}},"tool_choice":"auto",'
    b'"truncation":"disabled"'
)
ECHO = Echo(b"k", MEMBERS, b'"instructions":"be brief","tools":[]')
TURN = b'"previous_response_id":null,"metadata":{"a":"b"}'


def stream(lane: str | None = None, *, trim: bool = False) -> ResponseStream:
    return ResponseStream("resp_00ff", 1_800_000_000, ECHO, TURN, lane=lane, trim_echo=trim)


def played(
    made: ResponseStream, *batches: list[m.EngineEvent], finish: m.Finish = "stop"
) -> list[dict[str, Any]]:
    frames = made.created() + made.started()
    for batch in batches:
        frames += made.produced(batch)
    frames += made.closed(finish, 1_800_000_009)
    frames.append(made.terminal())
    return [orjson.loads(frame) for frame in frames]


def text(*pieces: str) -> list[m.EngineEvent]:
    return [m.TextProduced(piece, counts(at + 1)) for at, piece in enumerate(pieces)]


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_text_answer_has_the_whole_grammar_of_a_message() -> None:
    events = played(stream(), text("Hel"), text("lo"))
    check_events(events)
    assert types(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    final = events[-1]["response"]
    assert final["output"][0]["content"][0]["text"] == "Hello"
    assert (final["status"], final["completed_at"]) == ("completed", 1_800_000_009)
    assert final["instructions"] == "be brief"


def test_text_of_one_batch_is_one_delta() -> None:
    events = played(stream(), text("a", "b", "", "c"))
    deltas = [event["delta"] for event in events if event["type"].endswith("text.delta")]
    assert deltas == ["abc"]


def test_reasoning_text_and_calls_are_items_of_their_own_in_order() -> None:
    call = m.CallProduced(0, "call_a", "run", '{"x":', counts(5))
    rest = m.CallProduced(0, "call_a", "run", "1}", counts(6), finished=True)
    batch: list[m.EngineEvent] = [m.ReasoningProduced("hm", counts(1)), *text("so"), call]
    events = played(stream(), batch, [rest], finish="tool_calls")
    check_events(events)
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert (output[2]["call_id"], output[2]["arguments"]) == ("call_a", '{"x":1}')
    assert all("_" in item["id"] for item in output)
    done = next(event for event in events if event["type"].endswith("arguments.done"))
    assert done["name"] == "run"


def test_parallel_calls_may_interleave_and_keep_their_places() -> None:
    def piece(index: int, arguments: str, finished: bool = False) -> m.CallProduced:
        name = f"f{index}"
        return m.CallProduced(index, f"call_{index}", name, arguments, counts(1), finished)

    batch: list[m.EngineEvent] = [piece(0, "{"), piece(1, "{"), piece(1, "}", True)]
    events = played(stream(), batch, [piece(0, "}", True)], finish="tool_calls")
    check_events(events)
    output = events[-1]["response"]["output"]
    assert [item["name"] for item in output] == ["f0", "f1"]
    assert [item["arguments"] for item in output] == ["{}", "{}"]


def test_an_answer_cut_short_is_incomplete_and_so_is_its_item() -> None:
    events = played(stream(), text("half"), finish="length")
    check_events(events)
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert final["incomplete_details"] == {"reason": "max_output_tokens"}
    assert final["output"][-1]["status"] == "incomplete"
    assert final["usage"]["output_tokens"] == 1


def test_tokens_without_text_still_give_a_message() -> None:
    ended: list[m.EngineEvent] = [m.GenerationFinished("stop", counts(1), b"\x01\0\0\0")]
    made = stream()
    events = played(made, ended)
    check_events(events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""
    assert made.sampled == b"\x01\0\0\0"


def test_nothing_produced_gives_an_empty_output() -> None:
    events = played(stream())
    check_events(events)
    assert events[-1]["response"]["output"] == []


def test_usage_counts_cached_and_written_tokens_apart() -> None:
    made = stream()
    evaluated: list[m.EngineEvent] = [m.PromptEvaluated(m.Counts(100, 90, 0, 0))]
    events = played(made, evaluated, [m.TextProduced("x", m.Counts(100, 90, 7, 2))])
    assert events[-1]["response"]["usage"] == {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 90, "cache_write_tokens": 10},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 107,
    }


def test_a_heartbeat_repeats_the_state_with_the_next_number() -> None:
    made = stream("lane-1")
    frames = made.created() + made.started() + made.heartbeat() + made.produced(text("x"))
    frames += [*made.heartbeat(), *made.closed("stop", 1)]
    # It is closed, and waits until it is stored.
    frames += [*made.heartbeat(), made.terminal()]
    events = [orjson.loads(frame) for frame in frames]
    check_events(events)
    assert types(events).count("in_progress") == 4
    assert {event["stream_id"] for event in events} == {"lane-1"}
    assert made.heartbeat() == []


def test_a_failed_response_lists_finished_items_only() -> None:
    made = stream()
    frames = made.created() + made.started() + made.produced(text("half a sen"))
    frames.append(made.failed(RateLimitExceeded("Please try again in 5s.")))
    events = [orjson.loads(frame) for frame in frames]
    check_events(events)
    final = events[-1]["response"]
    assert final["error"] == {"code": "rate_limit_exceeded", "message": "Please try again in 5s."}
    assert final["output"] == []


def test_a_second_terminal_event_is_impossible() -> None:
    made = stream()
    made.failed(Internal("x"))
    with pytest.raises(AssertionError):
        made.failed(Internal("x"))


def test_the_echo_may_be_trimmed_until_the_end() -> None:
    events = played(stream(trim=True), text("x"))
    check_events(events)
    assert [events[at]["response"]["instructions"] for at in (0, 1, -1)] == [None, None, "be brief"]


def test_half_a_surrogate_pair_does_not_break_the_stream() -> None:
    events = played(stream(), text("a\ud83d", 'b"\\\n\u2028'))
    check_events(events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == 'a?b"\\\n\u2028'


def test_metadata_can_be_added_to_what_the_request_gave() -> None:
    made = stream()
    made.object.with_metadata("turnwire.timings", "{}")
    final = played(made, text("x"))[-1]["response"]
    assert final["metadata"] == {"a": "b", "turnwire.timings": "{}"}


def test_the_type_can_be_read_off_the_bytes() -> None:
    assert [event_type(event) for event in [*stream().created(), *stream().started()]] == [
        b"response.created",
        b"response.in_progress",
    ]


def test_a_call_into_a_namespace_carries_both_its_names_apart() -> None:
    echo = Echo(b"k", MEMBERS, b'"tools":[]', {"crm__find": ("crm", "find")})
    response = ResponseStream("resp_1", 1, echo)
    response.created()
    called = m.CallProduced(0, "call_1", "crm__find", "{}", m.Counts(), finished=True)
    *_, arguments, item = map(orjson.loads, response.produced([called]))
    assert arguments["name"] == "find"
    assert (item["item"]["namespace"], item["item"]["name"]) == ("crm", "find")


def test_log_probabilities_are_in_the_deltas_and_whole_in_part_and_item() -> None:
    entries = [b'{"token":"a","logprob":-0.5}', b'{"token":"b","logprob":-1.5}']
    pieces = [m.TextProduced("ab"[at], counts(at + 1), b"", entries[at]) for at in range(2)]
    both = [orjson.loads(entry) for entry in entries]
    events = played(stream(), [pieces[0]], [pieces[1]])
    deltas = [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"]
    assert deltas == [[both[0]], [both[1]]]
    (done,) = (e for e in events if e["type"] == "response.output_text.done")
    assert done["logprobs"] == both
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == both
    (delta,) = (
        e for e in played(stream(), list(pieces)) if e["type"] == "response.output_text.delta"
    )
    assert delta["logprobs"] == both
