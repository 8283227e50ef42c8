"""What is written of a background response, in which order, and how it can end."""

import orjson
import pytest

from turnwire.pipelines import messages as m
from turnwire.pipelines.background import (
    Recorder,
    Write,
    cancelled,
    is_background,
    is_running,
    lost,
    terminal_event,
)
from turnwire.pipelines.protocol.errors import Overloaded


def response(status: str) -> bytes:
    return b'{"id":"resp_1","status":"%b","background":true,"output":[]}' % status.encode()


def event(number: int, kind: str, status: str = "") -> bytes:
    members = b'"response":' + response(status) if status else b'"delta":"x"'
    return b'{"type":"response.%b","sequence_number":%d,%b}' % (kind.encode(), number, members)


ACCEPTED = [event(0, "created", "queued"), event(1, "queued", "queued")]
STARTED = event(2, "in_progress", "in_progress")
FAILED = event(3, "failed", "failed")
SAVE = m.Save("red", "resp_1", 7, response("completed"), m.StoredTurn("resp_1", b"[]", b"[]"))


def recorder(max_unsaved_bytes: int = 10_000) -> Recorder:
    made = Recorder("red", "resp_1", "gateway_1", 7, 10.0, 3, max_unsaved_bytes)
    made.input = b"[1]"
    return made


def written(made: Recorder) -> Write:
    """The next write, committed."""
    write = made.next()
    assert write is not None
    assert made.next() is None, "one write after another"
    made.written(write)
    return write


def begun() -> Recorder:
    made = recorder()
    made.add(ACCEPTED)
    written(made)
    return made


def test_nothing_is_written_before_there_is_a_response() -> None:
    assert recorder().next() is None


def test_the_record_begins_with_the_response_as_it_was_queued_however_late_it_is_written() -> None:
    made = recorder()
    made.add([*ACCEPTED, STARTED, FAILED])
    assert not made.leased
    begin, end = written(made), written(made)
    assert begin == m.BeginBackground(
        "red", "resp_1", "gateway_1", 7, response("queued"), b"[1]", tuple(ACCEPTED), 10.0, 3
    )
    assert isinstance(end, m.EndBackground)
    assert (end.first, end.events, end.status) == (2, (STARTED, FAILED), "failed")
    assert (made.over, made.leased, made.unsaved_bytes) == (True, False, 0)


def test_what_comes_while_a_write_is_under_way_is_written_together_by_the_next() -> None:
    made = begun()
    made.add([STARTED])
    first = made.next()
    made.add([event(3, "output_text.delta")])
    made.add([event(4, "output_text.delta")])
    assert made.next() is None
    assert first is not None
    made.written(first)
    second = written(made)
    assert isinstance(first, m.RecordEvents)
    assert isinstance(second, m.RecordEvents)
    assert (first.first, len(first.events), first.response) == (2, 1, response("in_progress"))
    assert (second.first, len(second.events), second.response) == (3, 2, None)


def test_a_state_that_is_only_repeated_does_not_write_the_object_again() -> None:
    made = begun()
    made.add([STARTED])
    written(made)
    made.add([event(3, "in_progress", "in_progress")])
    write = written(made)
    assert isinstance(write, m.RecordEvents)
    assert write.response is None


def test_a_complete_answer_is_stored_with_the_end_of_its_record_and_its_terminal_event() -> None:
    made = begun()
    made.add([STARTED])
    made.conclude(SAVE)
    assert made.ending
    made.add([event(3, "completed", "completed")])
    end = written(made)
    assert isinstance(end, m.EndBackground)
    assert end.events == (STARTED, event(3, "completed", "completed"))
    assert (end.status, end.save, made.next()) == ("completed", SAVE, None)


def test_an_answer_that_its_conversation_does_not_take_only_fails() -> None:
    made = begun()
    made.add([STARTED, event(3, "output_text.delta")])
    append = m.AppendTurn("red", "conv_1", 1, SAVE.turn, SAVE)
    made.conclude(append)
    end = made.next()
    assert isinstance(end, m.EndBackground)
    assert (end.save, end.append, len(end.events)) == (None, append, 3)
    made.refused()
    assert not made.ending
    again = written(made)
    assert isinstance(again, m.RecordEvents)
    assert (again.events, again.status) == (end.events[:2], "in_progress")
    made.add([event(4, "failed", "failed")])
    last = written(made)
    assert isinstance(last, m.EndBackground)
    assert (last.first, last.status, last.save, last.append) == (4, "failed", None, None)
    assert (made.over, made.unsaved_bytes) == (True, 0)


def test_a_turn_that_broke_is_ended_once_and_for_its_client() -> None:
    made = begun()
    made.fail(Overloaded("no room"))
    made.fail(Overloaded("again"))
    end = written(made)
    assert isinstance(end, m.EndBackground)
    assert (len(end.events), end.status, end.save) == (1, "failed", None)
    assert orjson.loads(end.response)["error"]["message"] == "no room"


def test_a_storage_that_takes_nothing_stops_the_turn_which_then_still_can_fail() -> None:
    made = recorder(max_unsaved_bytes=sum(map(len, ACCEPTED)))
    made.add(ACCEPTED)
    with pytest.raises(Overloaded):
        made.add([STARTED])
    with pytest.raises(Overloaded):
        made.add([FAILED])
    assert made.ending
    written(made)
    end = written(made)
    assert isinstance(end, m.EndBackground)
    assert end.events == (STARTED, FAILED)


def test_ends_that_storage_decides_are_told_in_the_words_of_the_api() -> None:
    running = response("in_progress")
    assert is_running(running)
    assert is_background(running)
    for ended, status in ((cancelled(running), "cancelled"), (lost(running), "failed")):
        assert not is_running(ended)
        assert orjson.loads(ended) | {"error": None} == orjson.loads(running) | {
            "status": status,
            "error": None,
        }
    told = orjson.loads(terminal_event("cancelled", 9, cancelled(running)))
    assert (told["type"], told["sequence_number"]) == ("response.incomplete", 9)
    assert told["response"]["status"] == "cancelled"
