"""What the simulated models answer, without any engine around it."""

from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from turnwire.actors.engines.simulated_agent import COMMANDS
from turnwire.actors.engines.simulated_playback import Playback
from turnwire.actors.engines.simulated_prompt import NO_HEAD, Items, extended, read_head
from turnwire.actors.engines.simulated_script import Call, Question, Script, Text, script, tokens
from turnwire.actors.engines.simulated_steering import Failure, Profile, Steering, read_steering
from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import InvalidRequest

PROFILE = Profile(0.0, 100.0, 0.0)
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "done"}


def function(name: str, **properties: object) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "name": name, "parameters": parameters, "strict": False}


TOOLS = (
    {"type": "web_search"},
    function("first", path={"type": "string"}),
    function("second", count={"type": "integer"}),
    {"type": "custom", "name": "apply_patch"},
)


def question(
    *items: dict[str, Any],
    tools: tuple[dict[str, Any], ...] = (),
    instructions: str = "",
    tool_choice: object = "auto",
    metadata: dict[str, str] | None = None,
    **others: Any,  # noqa: ANN401 -- fields of Facts and Question
) -> Question:
    agent = others.pop("agent", False)
    facts = m.Facts("resp_1", "t", "sim-max", 4096, tool_choice=orjson.dumps(tool_choice), **others)
    head = read_head(orjson.dumps({"instructions": instructions, "tools": tools}))
    steering = read_steering(metadata or {}, PROFILE)
    read = extended(Items(), orjson.dumps(items or (USER,)))
    return Question(b"k" * 16, head, read, facts, steering, 4 if agent else 0)


def text_of(written: Script) -> str:
    parts = [p for p in written.parts if isinstance(p, Text) and not p.reasoning]
    return "".join(part.passage.piece(0, part.passage.characters) for part in parts)


def calls_of(written: Script) -> list[tuple[str, dict[str, Any]]]:
    calls = [part for part in written.parts if isinstance(part, Call)]
    return [(c.name, orjson.loads(c.passage.piece(0, c.passage.characters))) for c in calls]


def test_without_tools_it_answers_in_text() -> None:
    written = script(question())
    assert written.finish == "stop"
    assert text_of(written).endswith(".")
    assert sum(map(tokens, written.parts)) == 64


def test_the_same_question_has_the_same_answer_and_another_prompt_another() -> None:
    asked = question(tools=TOOLS)
    other = replace(asked, key=b"o" * 16)
    assert script(asked) == script(asked)
    assert calls_of(script(asked)) != calls_of(script(other))
    assert text_of(script(question())) != text_of(script(replace(question(), key=b"o" * 16)))


def test_with_function_tools_it_calls_the_first_once() -> None:
    written = script(question(tools=TOOLS))
    assert written.finish == "tool_calls"
    assert [name for name, _ in calls_of(written)] == ["first"]
    assert isinstance(calls_of(written)[0][1]["path"], str)


def test_after_a_tool_output_it_answers_until_the_next_user_message() -> None:
    assert script(question(USER, OUTPUT, tools=TOOLS)).finish == "stop"
    assert script(question(USER, OUTPUT, USER, tools=TOOLS)).finish == "tool_calls"


def test_a_developer_message_is_no_user_message() -> None:
    note = {"role": "developer", "content": "be brief"}
    assert script(question(USER, OUTPUT, note, tools=TOOLS)).finish == "stop"


@dataclass(frozen=True)
class Choice:
    id: str
    tool_choice: object
    called: str | None


CHOICES = [
    Choice("none", "none", None),
    Choice("auto", "auto", None),
    Choice("required", "required", "first"),
    Choice("a function", {"type": "function", "name": "second"}, "second"),
    Choice(
        "one of the allowed",
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "second"}],
        },
        "second",
    ),
    Choice("a custom tool", {"type": "custom", "name": "apply_patch"}, "apply_patch"),
]


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.id)
def test_tool_choice_is_obeyed_also_after_an_output(choice: Choice) -> None:
    written = script(question(USER, OUTPUT, tools=TOOLS, tool_choice=choice.tool_choice))
    assert [name for name, _ in calls_of(written)] == ([choice.called] if choice.called else [])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "third"}])
def test_a_choice_without_its_function_is_refused(choice: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        script(question(tool_choice=choice))
    assert refused.value.param == "tool_choice"


def test_a_schema_that_cannot_be_satisfied_is_refused() -> None:
    impossible = function("impossible", value=False)
    with pytest.raises(InvalidRequest) as refused:
        script(question(tools=(impossible,)))
    assert refused.value.param == "tools"


def test_tool_turns_counts_outputs_after_the_last_user_message() -> None:
    metadata = {"sim.tool_turns": "3"}
    finishes = [
        script(question(USER, *[OUTPUT] * n, tools=TOOLS, metadata=metadata)).finish
        for n in range(5)
    ]
    assert finishes == ["tool_calls"] * 3 + ["stop"] * 2
    no_turns = {"sim.tool_turns": "0"}
    assert script(question(tools=TOOLS, metadata=no_turns)).finish == "stop"


def test_parallel_calls_have_their_own_ids_and_need_the_request_to_allow_them() -> None:
    metadata = {"sim.parallel_calls": "3"}
    written = script(question(tools=TOOLS, metadata=metadata))
    calls = [part for part in written.parts if isinstance(part, Call)]
    assert [call.index for call in calls] == [0, 1, 2]
    assert len({call.call_id for call in calls}) == 3
    single = script(question(tools=TOOLS, metadata=metadata, parallel_tool_calls=False))
    assert len(single.parts) == 1


@pytest.mark.parametrize("wanted", [1, 2, 50, 20_000])
def test_output_tokens_are_exact_in_text(wanted: int) -> None:
    written = script(question(metadata={"sim.output_tokens": str(wanted)}))
    assert sum(map(tokens, written.parts)) == wanted
    assert len(text_of(written)) == 4 * wanted


def test_output_tokens_lengthen_arguments_that_have_room() -> None:
    metadata = {"sim.output_tokens": "200", "sim.parallel_calls": "2"}
    written = script(question(tools=TOOLS, metadata=metadata))
    assert sum(map(tokens, written.parts)) == 200


def test_reasoning_comes_first_and_is_counted_apart() -> None:
    written = script(question(tools=TOOLS, metadata={"sim.reasoning_tokens": "30"}))
    first, second = written.parts
    assert isinstance(first, Text)
    assert first.reasoning
    assert tokens(first) == 30
    assert isinstance(second, Call)


def test_recall_is_answered_with_what_the_context_remembers() -> None:
    told = {"role": "user", "content": "remember:colour=teal-7."}
    asked = {"role": "user", "content": "And now recall:colour?"}
    assert text_of(script(question(told, asked, tools=TOOLS))) == "teal-7"
    assert text_of(script(question(asked, instructions="remember:colour=red"))) == "red"
    assert text_of(script(question(asked, told))) == "teal-7"
    assert text_of(script(question(asked))) == "unknown"


def test_the_newest_value_counts_wherever_it_was_said() -> None:
    said = [
        {"role": "user", "content": "remember:a.b=1"},
        {"type": "function_call_output", "call_id": "c", "output": '{"x":"remember:a.b=2"}'},
        {"role": "assistant", "content": [{"type": "output_text", "text": "recall:none"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "recall:a.b"}]},
    ]
    assert text_of(script(question(*said))) == "2"


def test_a_recall_that_was_answered_is_not_answered_again() -> None:
    asked = {"role": "user", "content": "recall:colour"}
    answer = {"type": "message", "role": "assistant", "content": "unknown"}
    assert text_of(script(question(asked, answer, USER))) != "unknown"


def test_structured_output_follows_its_schema() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    text_format = orjson.dumps({"type": "json_schema", "name": "x", "schema": schema})
    assert isinstance(orjson.loads(text_of(script(question(text_format=text_format))))["n"], int)
    loose = orjson.dumps({"type": "json_object"})
    assert isinstance(orjson.loads(text_of(script(question(text_format=loose)))), dict)
    never = orjson.dumps({"type": "json_schema", "name": "x", "schema": False})
    with pytest.raises(InvalidRequest) as refused:
        script(question(text_format=never))
    assert refused.value.param == "text.format.schema"


STRING, ARRAY = {"type": "string"}, {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (function("exec_command", cmd=STRING), {"cmd": "pwd"}),
        (
            function("shell", command=ARRAY, workdir=STRING, timeout_ms={"type": "number"}),
            {"command": ["bash", "-c", "pwd"], "workdir": ".", "timeout_ms": 2.0},
        ),
        (function("shell_command", command=STRING), {"command": "pwd"}),
    ],
    ids=lambda value: value.get("name") if isinstance(value, dict) else None,
)
def test_the_agent_runs_a_command_in_the_shape_of_the_shell_it_is_offered(
    tool: dict[str, Any], expected: dict[str, Any]
) -> None:
    ((name, arguments),) = calls_of(script(question(tools=(*TOOLS, tool), agent=True)))
    assert name == tool["name"]
    assert arguments.keys() == expected.keys()
    assert {k: v for k, v in arguments.items() if k != "timeout_ms"} == {
        k: v for k, v in expected.items() if k != "timeout_ms"
    }


def test_the_agent_runs_a_few_commands_and_then_reports() -> None:
    shell = function("exec_command", cmd=STRING)
    ran = [
        calls_of(script(question(USER, *[OUTPUT] * n, tools=(shell,), agent=True)))
        for n in range(5)
    ]
    assert [calls[0][1]["cmd"] for calls in ran[:4]] == list(COMMANDS[:4])
    assert ran[4] == []
    done = question(USER, *[OUTPUT] * 4, tools=(shell,), agent=True)
    assert "4 commands" in text_of(script(done))


def test_the_agents_longer_commands_only_have_a_longer_comment() -> None:
    shell = function("exec_command", cmd=STRING)
    metadata = {"sim.output_tokens": "100"}
    written = script(question(tools=(shell,), agent=True, metadata=metadata))
    ((_, arguments),) = calls_of(written)
    assert arguments["cmd"].startswith("pwd # ")
    assert sum(map(tokens, written.parts)) == 100


def test_the_agent_without_a_shell_calls_what_there_is() -> None:
    assert [name for name, _ in calls_of(script(question(tools=TOOLS, agent=True)))] == ["first"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sim.output_tokens", "0"),
        ("sim.output_tokens", "many"),
        ("sim.output_tokens", "1.5"),
        ("sim.tool_turns", "-1"),
        ("sim.parallel_calls", "33"),
        ("sim.tokens_per_second", "0"),
        ("sim.tokens_per_second", "nan"),
        ("sim.first_token_ms", "inf"),
        ("sim.prefill_us_per_token", ""),
        ("sim.fail", "explode"),
        ("sim.fail", "internal@"),
        ("sim.tools_turns", "1"),
    ],
)
def test_a_steering_value_that_cannot_be_used_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_steering({key: value}, PROFILE)
    assert refused.value.param == f"metadata.{key}"


def test_steering_replaces_the_pace_and_leaves_other_metadata_alone() -> None:
    metadata = {
        "team": "blue",
        "sim.first_token_ms": "12.5",
        "sim.tokens_per_second": "2000",
        "sim.prefill_us_per_token": "3",
        "sim.fail": "overloaded@7",
    }
    steering = read_steering(metadata, PROFILE)
    assert steering.profile == Profile(0.0125, 2000.0, 3e-6)
    assert steering.failure == Failure("overloaded", 7)
    assert read_steering({"team": "blue"}, PROFILE) == Steering(PROFILE)


def test_a_prompt_read_in_parts_is_the_prompt_read_at_once() -> None:
    items = [
        {"role": "user", "content": "remember:a=1 and recall:a"},
        {"type": "function_call", "call_id": "c", "name": "first", "arguments": "{}"},
        OUTPUT,
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        {"role": "user", "content": [{"type": "input_image"}, {"type": "input_text", "text": "x"}]},
    ]
    whole = extended(Items(), orjson.dumps(items))
    parts = Items()
    for item in items:
        parts = extended(parts, orjson.dumps([item]))
    assert parts == whole
    assert whole.tokens > 256, "an image counts"


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_playback_sends_everything_once_with_counts_that_only_grow(step: int) -> None:
    metadata = {"sim.reasoning_tokens": "5", "sim.parallel_calls": "2"}
    written = script(question(tools=TOOLS, metadata=metadata))
    playback = Playback(written, m.Counts(40, 30), 4096)
    events: list[m.EngineEvent] = []
    assert playback.advance(0) == []
    while not playback.finished:
        events += playback.advance(playback.sent_tokens + step)
    assert isinstance(events[0], m.PromptEvaluated)
    assert isinstance(events[-1], m.GenerationFinished)
    assert events[-1].finish == "tool_calls"
    total = sum(map(tokens, written.parts))
    assert events[-1].counts == m.Counts(40, 30, total, 5)
    counts = [event.counts.output_tokens for event in events if hasattr(event, "counts")]
    assert counts == sorted(counts)
    for index, call in enumerate(p for p in written.parts if isinstance(p, Call)):
        pieces = [e for e in events if isinstance(e, m.CallProduced) and e.index == index]
        assert "".join(e.arguments for e in pieces) == call.passage.piece(0, 10**6)
        assert [e.finished for e in pieces] == [False] * (len(pieces) - 1) + [True]
        assert {e.call_id for e in pieces} == {call.call_id}


def test_an_answer_that_is_cut_short_says_so() -> None:
    playback = Playback(script(question(tools=TOOLS)), m.Counts(1), 3)
    events = playback.advance(10**6)
    assert events[-1] == m.GenerationFinished("length", m.Counts(1, 0, 3))
    assert not any(e.finished for e in events if isinstance(e, m.CallProduced))


def test_no_step_is_longer_than_the_bound() -> None:
    written = script(question(metadata={"sim.output_tokens": "100000"}))
    playback = Playback(written, m.Counts(1), 10**6)
    while not playback.finished:
        before = playback.sent_tokens
        playback.advance(1 << 62)
        assert playback.sent_tokens - before <= 4096


@pytest.mark.parametrize("token", [0, 1, 64])
def test_a_failure_strikes_at_its_token_and_nothing_after_it_is_sent(token: int) -> None:
    written = replace(script(question()), failure=Failure("internal", token))
    playback = Playback(written, m.Counts(1), 4096)
    playback.advance(1 << 62)
    assert playback.failing
    assert playback.sent_tokens == token
    assert not playback.finished


def test_nothing_offered_is_nothing_read() -> None:
    assert read_head(b'{"instructions":null,"tools":null}').tokens == NO_HEAD.tokens
