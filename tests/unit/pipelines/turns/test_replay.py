"""A stored response is told again with the events it was made with, each item in one piece."""

from typing import Any

import orjson
import pytest
from scripted_ports import counts
from turn_worlds import check_events

from turnwire.pipelines import messages as m
from turnwire.pipelines.background import cancelled
from turnwire.pipelines.open_items import shown_as
from turnwire.pipelines.protocol.responses import Echo
from turnwire.pipelines.replay import replayed
from turnwire.pipelines.response_stream import ResponseStream

MEMBERS = (
    b'"background":false,"max_output_tokens":null,"max_tool_calls":null,"model":"m",'
    b'"parallel_tool_calls":true,"reasoning":null,"service_tier":"default","store":true,'
    b'"temperature":1.0,"top_p":1.0,"text":{"format":{"type":"text"}},"tool_choice":"auto",'
    b'"truncation":"disabled","previous_response_id":null,"metadata":{}'
)
ECHO = Echo(b"k", MEMBERS, b'"instructions":null,"tools":[]', {}, custom=("patch",))
LOGPROBS = b'{"token":"so","logprob":-1.0,"bytes":[],"top_logprobs":[]}'


def call(index: int, name: str, arguments: str) -> m.CallProduced:
    return m.CallProduced(index, f"call_{index}", name, arguments, counts(2), finished=True)


ANSWERS: dict[str, list[m.EngineEvent]] = {
    "text": [m.TextProduced('say "so"\n', counts(1))],
    "text with log probabilities": [m.TextProduced("so", counts(1), b"", LOGPROBS)],
    "reasoning and calls": [
        m.ReasoningProduced("hm", counts(1)),
        m.TextProduced("so", counts(2)),
        call(0, "run", '{"x":1}'),
        call(1, "patch", '{"input":"- a"}'),
    ],
    "an empty message": [m.GenerationFinished("stop", counts(1))],
    "nothing": [],
}


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_the_events_are_those_of_an_answer_in_one_piece(
    answer: list[m.EngineEvent], finish: m.Finish
) -> None:
    made = ResponseStream("resp_00ff", 1_800_000_000, ECHO)
    frames = made.created() + made.started() + made.produced(answer)
    frames += [*made.closed(finish, 1_800_000_009), made.terminal()]
    assert made.response is not None
    again = _decoded(replayed(made.response, b"response.reasoning_text"))
    check_events(again)
    assert again == _decoded(frames)


def test_reasoning_is_told_under_the_names_the_server_uses() -> None:
    made = ResponseStream("resp_1", 7, ECHO, reasoning=shown_as("open_responses", sealed=False))
    frames = made.created() + made.started() + made.produced([m.ReasoningProduced("a", counts(1))])
    frames += [*made.closed("stop", 9), made.terminal()]
    assert made.response is not None
    assert _decoded(replayed(made.response, b"response.reasoning")) == _decoded(frames)


def test_one_that_was_cancelled_ends_so() -> None:
    made = ResponseStream("resp_1", 7, ECHO)
    made.closed("stop", 9)
    assert made.response is not None
    events = _decoded(replayed(cancelled(made.response), b"response.reasoning_text"))
    check_events(events)
    assert events[-1]["response"]["status"] == "cancelled"


def _decoded(frames: list[bytes]) -> list[dict[str, Any]]:
    return [orjson.loads(frame) for frame in frames]
