"""Grammars, log probabilities and sampling parameters with a real model."""

import asyncio
import json
import math
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
from llguidance import LLMatcher

from turnwire.pipelines.messages import Sampling, TextProduced
from turnwire.pipelines.prompts.constraint import constraint_of
from turnwire.pipelines.prompts.lark_in_json import byte_tokenizer
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.requests import RequestParser

if TYPE_CHECKING:
    from .conftest import Answer, Bench

pytestmark = pytest.mark.slow

RUNS = 50
IM_END = 2
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"enum": ["good", "bad", None]},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 8},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}


def grammar(**members: object) -> str:
    frame = msgspec.json.encode({"model": "smollm2", "input": "hi"} | members)
    return constraint_of(RequestParser(bytes, 10_000).parse(frame, "websocket"), "chatml")


def function(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": parameters, "strict": True}


def text_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": schema}}


def inside(text: str) -> str:
    """What stands between the marks of a call, which are all else that there is."""
    assert text.startswith("<tool_call>\n")
    assert text.endswith("\n</tool_call>")
    return text[len("<tool_call>") : -len("</tool_call>")]


async def seeded(llama: "Bench", question: str, held_to: str, seed: int) -> "Answer":
    sampling = Sampling(temperature=1.0, top_p=1.0, seed=seed)
    command = llama.command(
        llama.case.prompt(question), max_output_tokens=100, sampling=sampling, grammar=held_to
    )
    return await llama.read(command)


async def test_a_required_call_is_valid_in_every_one_of_50_seeded_runs(llama: "Bench") -> None:
    await llama.start()
    tools = [function("get_weather", WEATHER)]
    held_to = grammar(tools=tools, tool_choice="required", parallel_tool_calls=False)
    seen = set()
    for seed in range(RUNS):
        answer = await seeded(llama, "What is the weather in Paris?", held_to, seed)
        assert (answer.ending.finish, answer.ids[-1]) == ("stop", IM_END)
        call = json.loads(inside(answer.text))
        assert call["name"] == "get_weather"
        jsonschema.validate(call["arguments"], WEATHER)
        seen.add(answer.text)
    assert len(seen) > 1, "a seed makes a difference"


async def test_an_answer_fits_its_schema_in_every_one_of_50_seeded_runs(llama: "Bench") -> None:
    await llama.start()
    held_to = grammar(text=text_format(PERSON))
    seen = set()
    for seed in range(RUNS):
        answer = await seeded(llama, "Describe a person as JSON.", held_to, seed)
        assert (answer.ending.finish, answer.ids[-1]) == ("stop", IM_END)
        jsonschema.validate(json.loads(answer.text), PERSON)
        seen.add(answer.text)
    assert len(seen) > 1, "a seed makes a difference"


ROUTE = r"""
start: step (LF step){1,2}
step: "go " WORDS | "say " QUOTED
WORDS: /[a-z\\]{1,12}/
QUOTED: /"[^"\n]{1,12}"/
%import common.LF
"""


async def test_the_input_of_a_custom_tool_fits_its_lark_grammar_in_every_run(
    llama: "Bench",
) -> None:
    await llama.start()
    form = {"type": "grammar", "syntax": "lark", "definition": ROUTE}
    tools = [{"type": "custom", "name": "walk", "format": form}]
    held_to = grammar(tools=tools, tool_choice={"type": "custom", "name": "walk"})
    plain = LLMatcher.grammar_from_lark(ROUTE)
    seen = set()
    for seed in range(RUNS // 5):
        answer = await seeded(llama, "Say where you go.", held_to, seed)
        assert (answer.ending.finish, answer.ids[-1]) == ("stop", IM_END)
        written = json.loads(inside(answer.text))["arguments"]["input"]
        matcher = LLMatcher(byte_tokenizer(), plain)
        tokens = list(written.encode())
        assert matcher.try_consume_tokens(tokens) == len(tokens), written
        assert matcher.is_accepting()
        seen.add(written)
    assert len(seen) > 1, "a seed makes a difference"


async def test_with_tools_an_answer_may_be_text_and_a_call_in_it_is_valid(llama: "Bench") -> None:
    await llama.start()
    held_to = grammar(tools=[function("get_weather", WEATHER)])
    plain = await llama.read(
        llama.command(llama.case.prompt("Say hello."), max_output_tokens=12, grammar=held_to)
    )
    assert "<tool_call>" not in plain.text
    free = await llama.read(llama.command(llama.case.prompt("Say hello."), max_output_tokens=12))
    assert plain.text == free.text, "the likeliest text is the same with and without"


async def test_the_limit_cuts_an_answer_in_its_grammar(llama: "Bench") -> None:
    await llama.start()
    held_to = grammar(text=text_format(PERSON))
    command = llama.command(llama.case.prompt("Hi."), max_output_tokens=6, grammar=held_to)
    answer = await llama.read(command)
    assert answer.ending.finish == "length"
    assert answer.text.startswith('{"name"')


async def test_a_grammar_the_engine_cannot_read_is_refused_and_costs_nobody_else(
    llama: "Bench",
) -> None:
    await llama.start()
    with pytest.raises(InvalidRequest):
        await llama.read(llama.command(llama.case.prompt("Hi."), grammar="start: nothing"))
    assert llama.engine.load() == (0, 0)
    assert (await llama.say("Say hello.")).text


async def test_two_streams_under_one_grammar_do_not_share_their_place_in_it(
    llama: "Bench",
) -> None:
    await llama.start(running=2)
    held_to = grammar(text=text_format(PERSON))
    alone = [(await seeded(llama, "A person.", held_to, seed)).text for seed in (1, 2)]
    together = await asyncio.gather(*(seeded(llama, "A person.", held_to, seed) for seed in (1, 2)))
    assert [answer.text for answer in together] == alone


async def test_log_probabilities_are_those_of_the_whole_vocabulary(llama: "Bench") -> None:
    await llama.start()
    command = llama.command(llama.case.prompt("Say hello."), logprobs=3)
    answer = await llama.read(command)
    entries = [
        entry
        for event in answer.events
        if isinstance(event, TextProduced)
        for entry in msgspec.json.decode(b"[%b]" % event.logprobs)
    ]
    assert "".join(entry["token"] for entry in entries) == answer.text
    assert bytes(b for entry in entries for b in entry["bytes"]).decode() == answer.text
    for entry in entries:
        top = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(top) == 3
        assert top == sorted(top, reverse=True)
        assert entry["logprob"] == top[0], "greedy takes the likeliest"
        assert sum(math.exp(value) for value in top) <= 1.0001


async def test_without_being_asked_for_there_are_no_log_probabilities(llama: "Bench") -> None:
    await llama.start()
    answer = await llama.say("Say hello.")
    assert all(not e.logprobs for e in answer.events if isinstance(e, TextProduced))


async def test_a_low_top_p_leaves_only_the_likeliest_token(llama: "Bench") -> None:
    await llama.start()
    prompt = llama.case.prompt("Invent a name.")
    greedy = await llama.read(llama.command(prompt))
    narrow = Sampling(temperature=2.0, top_p=0.000001, seed=3)
    assert (await llama.read(llama.command(prompt, sampling=narrow))).ids == greedy.ids


async def test_a_presence_penalty_changes_what_is_said_again(llama: "Bench") -> None:
    await llama.start()
    prompt = llama.case.prompt("Say emoji: 😀🎉 こんにちは")
    kinds = []
    for penalty in (0.0, 2.0):
        sampling = Sampling(temperature=0.0, presence_penalty=penalty)
        command = llama.command(prompt, max_output_tokens=24, sampling=sampling)
        kinds.append(len(set((await llama.read(command)).ids)))
    assert kinds[1] > kinds[0]
