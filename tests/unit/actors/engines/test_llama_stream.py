"""From sampled ids to events, and what a step evaluates."""

from array import array

from turnwire.actors.engines.llama_slots import Slot
from turnwire.actors.engines.llama_stream import Stream, merged, plan_step
from turnwire.pipelines.messages import (
    Counts,
    EngineEvent,
    GenerationFinished,
    PromptEvaluated,
    TextProduced,
)


def stream(prompt: int = 4, output_limit: int = 100, index: int = 0, evaluated: int = 0) -> Stream:
    made = Stream("t", array("I", range(prompt)), output_limit)
    made.placed(Slot(index, "t", array("I", range(evaluated))), 0)
    return made


def feed(made: Stream, pieces: dict[int, bytes], *, end: int | None = None) -> list[EngineEvent]:
    events: list[EngineEvent] = []
    for token, piece in pieces.items():
        events += made.sampled(token, piece, terminal=False)
    return events + (made.sampled(end, b"", terminal=True) if end is not None else [])


def texts(events: list[EngineEvent]) -> list[tuple[str, list[int]]]:
    return [(e.text, list(array("I", e.ids))) for e in events if isinstance(e, TextProduced)]


def test_a_character_of_several_tokens_comes_out_whole_with_all_its_ids() -> None:
    wave = "👋".encode()
    events = feed(stream(), {10: b"a", 11: wave[:2], 12: wave[2:3], 13: wave[3:], 14: b"b"})
    assert texts(events) == [("a", [10]), ("👋", [11, 12, 13]), ("b", [14])]


def test_the_terminal_id_is_reported_by_the_ending() -> None:
    (ending,) = feed(stream(), {}, end=2)
    assert ending == GenerationFinished("stop", Counts(4, 0, 1), array("I", [2]).tobytes())


def test_a_character_cut_by_the_end_of_the_answer_is_replaced_and_its_ids_reported() -> None:
    events = feed(stream(), {11: "👋".encode()[:2]}, end=2)
    assert texts(events) == [("\ufffd", [11])]
    assert events[-1] == GenerationFinished("stop", Counts(4, 0, 2), array("I", [2]).tobytes())


def test_a_character_cut_by_the_limit_is_replaced_and_its_ids_reported() -> None:
    events = feed(stream(output_limit=2), {10: b"a", 11: "👋".encode()[:2]})
    assert texts(events) == [("a", [10]), ("\ufffd", [11])]
    assert events[-1] == GenerationFinished("length", Counts(4, 0, 2))


def test_bytes_that_are_no_text_are_replaced_at_once() -> None:
    assert texts(feed(stream(), {10: b"\xff", 11: b"a"})) == [("\ufffd", [10]), ("a", [11])]


def test_an_id_without_text_is_reported_with_the_next_text() -> None:
    assert texts(feed(stream(), {10: b"", 11: b"a"})) == [("a", [10, 11])]


def test_a_limit_of_nothing_ends_with_the_prompt() -> None:
    made = stream(output_limit=0)
    assert made.prompt_evaluated() == [
        PromptEvaluated(made.counts),
        GenerationFinished("length", made.counts),
    ]


def test_runs_of_text_are_merged_and_nothing_else() -> None:
    counts = [Counts(1, 0, n) for n in range(3)]
    events: list[EngineEvent] = [
        PromptEvaluated(counts[0]),
        TextProduced("a", counts[1], b"1111"),
        TextProduced("b", counts[2], b"2222"),
        GenerationFinished("stop", counts[2], b"3333"),
    ]
    assert merged(events) == [
        events[0],
        TextProduced("ab", counts[2], b"11112222"),
        events[3],
    ]


def test_a_step_shares_prompts_evenly_and_gives_the_rest_to_the_longer() -> None:
    short, long = stream(prompt=5, index=0), stream(prompt=100, index=1)
    feeds = plan_step([long, short], 32)
    assert [(feed.stream, len(feed.tokens), feed.wants_output) for feed in feeds] == [
        (short, 5, True),
        (long, 27, False),
    ]


def test_a_step_goes_on_where_the_slot_ends() -> None:
    made = stream(prompt=100, evaluated=40)
    (only,) = plan_step([made], 32)
    assert list(only.tokens) == list(range(40, 72))


def test_a_warm_up_and_a_limit_of_nothing_want_no_output() -> None:
    warm_up, nothing = stream(prompt=5), stream(prompt=5, output_limit=0, index=1)
    warm_up.warm_up = True
    feeds = plan_step([warm_up, nothing], 32)
    assert [feed.wants_output for feed in feeds] == [False, False]


def test_a_stream_without_a_slot_is_not_in_the_step() -> None:
    assert plan_step([Stream("t", array("I", [1]), 5)], 32) == []
