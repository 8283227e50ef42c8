"""Whatever an engine produces, in whatever pieces: the events are well formed and add up."""

from typing import Literal

import orjson
from hypothesis import given
from hypothesis import strategies as st
from turn_worlds import check_events

from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import Internal
from turnwire.pipelines.protocol.responses import Echo
from turnwire.pipelines.response_stream import ResponseStream

MEMBERS = (
    b'"background":false,"max_output_tokens":null,"max_tool_calls":null,"model":"m",'
    b'"parallel_tool_calls":true,"reasoning":null,"service_tier":"default","store":false,'
    b'"temperature":1.0,"top_p":1.0,"text":{"format":{"type":"text"}},"tool_choice":"auto",'
    b'"truncation":"disabled","previous_response_id":null,"metadata":{}'
)
ECHO = Echo(b"k", MEMBERS, b'"instructions":null,"tools":[]')

numbers = st.integers(0, 1000)
counts = st.builds(m.Counts, numbers, numbers, numbers, numbers)
texts = st.text(max_size=12) | st.sampled_from(["", "\ud800", '"\\', "\u2028\0"])
ids = st.sampled_from([b"", b"\1\0\0\0"])
calls = st.integers(0, 3).flatmap(
    lambda index: st.builds(
        m.CallProduced,
        st.just(index),
        st.just(f"call_{index}"),
        st.just(f"f{index}"),
        texts,
        counts,
        st.booleans(),
    )
)
events = (
    st.builds(m.TextProduced, texts, counts, ids)
    | st.builds(m.ReasoningProduced, texts, counts)
    | st.builds(m.PromptEvaluated, counts)
    | calls
)
batches = st.lists(st.lists(events, min_size=1, max_size=4) | st.none(), max_size=8)
"""None: silence, and so a heartbeat."""
endings = st.sampled_from(["stop", "length", "tool_calls", "content_filter", "fails"])


@given(batches, endings, st.sampled_from([None, "lane"]), st.booleans())
def test_any_answer_is_a_well_formed_stream_with_one_end(
    given_batches: list[list[m.EngineEvent] | None],
    ending: m.Finish | Literal["fails"],
    lane: str | None,
    queued: bool,
) -> None:
    stream = ResponseStream("resp_1f", 1_800_000_000, ECHO, lane=lane)
    frames = stream.created() + (stream.queued() if queued else []) + stream.started()
    for batch in given_batches:
        frames += stream.heartbeat() if batch is None else stream.produced(batch)
    if ending == "fails":
        frames.append(stream.failed(Internal("broken")))
    else:
        ended = m.GenerationFinished(ending, stream.counts)
        frames += stream.produced([ended]) + stream.closed(ending, 1_800_000_001)
        frames.append(stream.terminal())
    decoded = [orjson.loads(frame) for frame in frames]
    check_events(decoded)
    assert {event.get("stream_id") for event in decoded} == {lane}
    assert stream.heartbeat() == []
    deltas: dict[str, str] = {}
    for event in decoded:
        if event["type"].endswith(".delta"):
            deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event["delta"]
    for item in decoded[-1]["response"]["output"]:
        whole = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert whole == deltas.get(item["id"], "")
