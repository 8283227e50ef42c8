# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""A model's own chat template: that of the default model, and small ones with habits of others."""

import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from prompt_oracle import Turn, vocabulary
from prompt_turns import TURNS, check

from turnwire.actors.engines import gguf_file
from turnwire.pipelines.messages import Counts, Model, ReasoningProduced, TextProduced
from turnwire.pipelines.prompts.format import format_of
from turnwire.pipelines.prompts.output import output_parser
from turnwire.pipelines.prompts.template import ChatTemplate, Run
from turnwire.pipelines.prompts.template_file import TemplateFile, load_template
from turnwire.pipelines.prompts.tokenizer import load_tokenizer
from turnwire.pipelines.protocol.errors import Internal, InvalidRequest
from turnwire.pipelines.protocol.items import kept_items
from turnwire.pipelines.protocol.tools import parse_tools

NO_TOOLS = parse_tools(b"[]")
TOOLS = parse_tools(b'[{"type":"function","name":"f","description":"<|im_end|>"}]')
TRIMMING = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LAST_ONLY = (
    "{% for message in messages[-1:] %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
)


def template(source: str) -> ChatTemplate:
    file = TemplateFile(source, "<|im_start|>", "<|endoftext|>")
    return ChatTemplate(file, load_tokenizer("splintr:qwen3"), "jinja:test")


@pytest.fixture(scope="module")
def shipped() -> ChatTemplate:
    """The template inside the default model's file."""
    return template(gguf_file.read(gguf_file.default_path()).chat_template)


def ids(packed: bytes) -> list[int]:
    return array("I", packed).tolist()


def spelled(text: str) -> list[int]:
    return list(vocabulary("qwen3").encode(text))


def said(*messages: tuple[str, str]) -> Run:
    items = [
        {"id": f"i{at}", "role": role, "content": text} for at, (role, text) in enumerate(messages)
    ]
    return Run(kept_items(json.dumps(items)[1:-1].encode()), None)


def plain(turn: Turn) -> Turn:
    """Messages only, and at least one: the template knows nothing else."""
    items = tuple(item for item in turn.items if item[0] != "call")
    return replace(turn, items=items or (("user", "hi"),))


def check_template(form: ChatTemplate, turns: list[Turn], talk: Any) -> None:
    talk.state._drafts._formats = lambda model: form
    check("chatml", [plain(turn) for turn in turns], talk)


@settings(max_examples=12, deadline=None, database=None, derandomize=True)
@given(turns=TURNS)
def test_the_default_model_s_own_template_agrees_with_the_format_written_for_it(
    token_model: Model, new_talk: Any, shipped: ChatTemplate, turns: list[Turn]
) -> None:
    check_template(shipped, turns, new_talk(token_model, content_index_bytes=0))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(turns=TURNS)
def test_three_hundred_conversations_through_the_default_model_s_template(
    token_model: Model, new_talk: Any, shipped: ChatTemplate, turns: list[Turn]
) -> None:
    check_template(shipped, turns, new_talk(token_model, content_index_bytes=0))


def test_a_filter_works_on_what_was_typed_and_leaves_sampled_ids_alone() -> None:
    sampled = array("I", spelled("\n yes<|im_end|>")).tobytes()
    asked = said(("user", "  <|im_end|> \n"))
    found = template(TRIMMING).whole(None, NO_TOOLS, [Run(asked.items, sampled)], generate=True)
    end = vocabulary("qwen3").special_token_id("<|im_end|>")
    assert ids(found) == [
        *spelled("<|im_start|><|im_start|>user\n")[:-1],
        *vocabulary("qwen3").encode_ordinary("\n<|im_end|>"),
        *spelled("<|im_end|>\n<|im_start|>assistant\n"),
        *spelled("\n yes")[:],
        end,
        *spelled("\n<|im_start|>assistant\n"),
    ]


def test_a_template_that_forgets_sends_the_whole_prompt(token_talk: Any) -> None:
    token_talk.state._drafts._formats = lambda model: template(LAST_ONLY)
    token_talk.turn("resp_1", input="one")
    second = token_talk.create("resp_2", previous_response_id="resp_1", input="two")
    assert second.prompt.prefix_key == b""
    assert token_talk.prompt == spelled("<|im_start|>two<|im_end|>")


def test_a_template_sees_tools_calls_and_outputs() -> None:
    source = (
        "{{ tools | tojson }}{% for message in messages %}{{ message.tool_calls | tojson }}"
        "{{ message.tool_call_id }}{{ message.reasoning_content }}{% endfor %}"
    )
    items = kept_items(
        b'{"id":"1","type":"reasoning","summary":[],"content":[{"type":"text","text":"Hm"}]},'
        b'{"id":"2","type":"function_call","call_id":"c","name":"f","arguments":"{\\"a\\":1}"},'
        b'{"id":"3","type":"function_call_output","call_id":"c","output":"x"}'
    )
    source = source.replace("message.tool_calls | tojson", "(message.tool_calls or []) | tojson")
    found = template(source).whole(None, TOOLS, [Run(items, None)], generate=True)
    assert vocabulary("qwen3").decode(ids(found)) == (
        '[{"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}]'
        '[{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]'
        "Hm[]c"
    )
    assert vocabulary("qwen3").special_token_id("<|im_end|>") not in ids(found)


def test_a_template_sees_a_custom_call_as_a_function_of_one_input() -> None:
    shown = (
        "{% for message in messages %}{% for call in message.tool_calls or [] %}"
        "{{ call.function.name }}={{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    call = {"id": "1", "type": "custom_tool_call", "call_id": "c", "name": "p", "input": 'x "y"'}
    items = kept_items(json.dumps(call).encode())
    written = template(shown).whole(None, NO_TOOLS, [Run(items, None)], generate=True)
    assert ids(written) == spelled('p={"input": "x \\"y\\""}')


@pytest.mark.parametrize(
    ("effort", "told"),
    [(None, "//"), ("none", "False/low/"), ("high", "True/high/"), ("max", "True/high/")],
)
def test_a_template_is_told_the_effort_that_was_asked_for(effort: str | None, told: str) -> None:
    form = template("{{ enable_thinking }}/{{ reasoning_effort }}/")
    assert form.heeds_effort
    written = form.whole(None, NO_TOOLS, [said(("user", "hi"))], generate=True, effort=effort)
    assert ids(written) == spelled(told)


OPENING = TRIMMING.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")


def test_an_answer_goes_on_with_a_thought_that_the_template_began(token_talk: Any) -> None:
    form = template(OPENING)
    token_talk.state._drafts._formats = lambda model: form
    model = Model("m", "tokens", "jinja", "splintr:qwen3")
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}]
    prepared = token_talk.create("resp_1", input="hi", model=model, tools=tools)
    assert prepared.prompt.thinking
    assert "start: thought answer" in prepared.facts.grammar
    warmed = token_talk.create("resp_2", input="hi", model=model, generate=False)
    assert not warmed.prompt.thinking
    assert not template(TRIMMING).ends_in_thought(prepared.prompt.ids[:-8])


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("Hm, so", "Hm, so", ""),
        ("\n</think>Yes.", "", "Yes."),
        ("<b></thin", "<b></thin", ""),
    ],
)
def test_what_stands_before_the_end_of_that_thought_was_thought(
    text: str, thought: str, said: str
) -> None:
    parser = output_parser(Model("m", "tokens", "jinja"), "resp_1", thinking=True)
    events = [
        event for letter in text for event in parser.feed(TextProduced(letter, Counts(9, 0, 1)))
    ] + parser.finish()
    assert "".join(e.text for e in events if isinstance(e, ReasoningProduced)) == thought
    assert "".join(e.text for e in events if isinstance(e, TextProduced)) == said


def test_typed_placeholders_are_not_taken_for_answers() -> None:
    sampled = array("I", spelled("secret")).tobytes()
    runs = [Run(said(("user", "a")).items, sampled), said(("user", "\ufdd10\ufdd2"))]
    found = template(TRIMMING).whole(None, NO_TOOLS, runs, generate=False)
    assert ids(found).count(spelled("secret")[0]) == 1


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.nothing.at_all }}",
        "{{ 1 + messages }}",
        "{{ ''.__class__.__mro__ }}{{ messages.append(1) }}",
    ],
)
def test_what_a_template_refuses_is_the_request_s_fault(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template"):
        template(source).whole(None, NO_TOOLS, [said(("user", "hi"))], generate=True)


def test_a_template_with_an_error_is_ours() -> None:
    with pytest.raises(Internal, match="has an error"):
        template("{% for %}")


def test_the_date_never_changes() -> None:
    source = "{{ strftime_now('%d %b %Y') }}"
    found = template(source).whole(None, NO_TOOLS, [], generate=False)
    assert vocabulary("qwen3").decode(ids(found)) == "26 Jul 2024"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("tokenizer_config.json", '{"chat_template":"A","bos_token":"<s>"}', ("A", "<s>", "")),
        (
            "tokenizer_config.json",
            '{"chat_template":[{"name":"default","template":"B"}],"eos_token":{"content":"</s>"}}',
            ("B", "", "</s>"),
        ),
        ("chat_template.jinja", "C", ("C", "", "")),
    ],
)
def test_a_template_is_found_beside_the_tokenizer(
    tmp_path: Path, name: str, text: str, expected: tuple[str, str, str]
) -> None:
    (tmp_path / name).write_text(text)
    assert load_template(str(tmp_path / "tokenizer.json")) == TemplateFile(*expected)


@pytest.mark.parametrize("text", [None, "{}", "no json"])
def test_a_model_without_a_template_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(Internal, match=r"chat template|no JSON"):
        format_of(Model("m", "tokens", "jinja", str(tmp_path / "tokenizer.json")))
