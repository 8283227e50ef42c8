"""What is read from an answer, however its text was cut into pieces."""

import json
from dataclasses import dataclass, field

import pytest

from turnwire.pipelines.messages import (
    CallProduced,
    Counts,
    EngineEvent,
    Finish,
    GenerationFinished,
    Model,
    PromptEvaluated,
    ReasoningProduced,
    TextProduced,
)
from turnwire.pipelines.prompts.output import output_parser
from turnwire.pipelines.protocol.errors import Internal

TAGGED_CALLS = (
    'Wait.\n<tool_call>\n{"name": "f", "arguments": {"a": "}<"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
)
THOUGHT = "<think>\nHm <b> </thin.\n</think>\n\n"
ANALYSIS = "<|channel|>analysis<|message|>Hm <|x|>.<|end|><|start|>assistant"
F = ("call", "f", '{"a": "}<"}', True)
G = ("call", "g", "{}", True)
COMMENTARY = "<|channel|>commentary <|constrain|>json<|message|>"

Item = tuple[object, ...]


@dataclass(frozen=True)
class Case:
    id: str
    form: str
    text: str
    items: tuple[Item, ...]
    finish: Finish = "stop"
    calls: bool = True


CASES = (
    Case("text", "hermes", "a < b <tool", (("text", "a < b <tool"),)),
    Case("calls", "hermes", TAGGED_CALLS, (("text", "Wait."), F, G)),
    Case("chatml calls", "chatml", TAGGED_CALLS, (("text", "Wait."), F, G)),
    Case("gemma calls", "gemma", TAGGED_CALLS, (("text", "Wait."), F, G)),
    Case(
        "thought and text",
        "qwen3",
        f"{THOUGHT}Yes. ",
        (("thought", "Hm <b> </thin."), ("text", "Yes. ")),
    ),
    Case(
        "thought and calls",
        "qwen3",
        THOUGHT + TAGGED_CALLS,
        (("thought", "Hm <b> </thin."), ("text", "Wait."), F, G),
    ),
    Case("no thought", "qwen3", "I <think>\nso.", (("text", "I <think>\nso."),)),
    Case("empty thought", "qwen3", "<think>\n\n</think>\n\nYes.", (("text", "Yes."),)),
    Case("only thought", "qwen3", "<think>\nHm.\n</think>\n\n", (("thought", "Hm."),)),
    Case("cut in thought", "qwen3", "<think>\nHm, so", (("thought", "Hm, so"),), "length"),
    Case(
        "thought without tools",
        "qwen3",
        f"{THOUGHT}<tool_call>",
        (("thought", "Hm <b> </thin."), ("text", "<tool_call>")),
        calls=False,
    ),
    Case("template", "jinja", f"{THOUGHT}Yes.", (("thought", "Hm <b> </thin."), ("text", "Yes."))),
    Case(
        "cut in a call",
        "hermes",
        '<tool_call>\n{"name": "f", "arguments": {"a": 1',
        (("call", "f", '{"a": 1', False),),
        "length",
    ),
    Case(
        "channels",
        "harmony",
        f"{ANALYSIS}<|channel|>final<|message|>Yes <| no.",
        (("thought", "Hm <|x|>."), ("text", "Yes <| no.")),
    ),
    Case(
        "channels with calls",
        "harmony",
        f"{ANALYSIS}<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant to=functions.f"
        + COMMENTARY
        + '{"a": "}<"}<|call|><|start|>assistant to=functions.g'
        + COMMENTARY
        + "{}",
        (("thought", "Hm <|x|>."), ("text", "Wait."), F, G),
    ),
    Case(
        "recipient in the channel",
        "harmony",
        "<|channel|>commentary to=functions.g <|constrain|>json<|message|>{}",
        (G,),
    ),
    Case(
        "free text for a custom tool",
        "harmony",
        '<|channel|>commentary to=functions.p<|message|>say "hi"\n',
        (("call", "p", json.dumps({"input": 'say "hi"\n'}).replace(": ", ":"), True),),
    ),
    Case(
        "preamble and answer",
        "harmony",
        "<|channel|>commentary<|message|>A.<|end|><|start|>assistant<|channel|>final<|message|>B.",
        (("text", "A.\n\nB."),),
    ),
    Case("no channels at all", "harmony", "Yes.", (("text", "Yes."),)),
    Case("cut in a header", "harmony", "<|channel|>anal", (), "length"),
    Case(
        "cut in a channel's call",
        "harmony",
        f' to=functions.f{COMMENTARY}{{"a": 1',
        (("call", "f", '{"a": 1', False),),
        "length",
    ),
    Case("llama text", "llama3", "a {b}", (("text", "a {b}"),)),
    Case(
        "llama calls",
        "llama3",
        '<|python_tag|>{"name": "f", "parameters": {"a": "}<"}}; {"name": "g", "parameters": {}}',
        (F, G),
    ),
    Case(
        "llama typed call", "llama3", '{"type": "function", "name": "g", "parameters": {}}\n', (G,)
    ),
    Case(
        "llama object",
        "llama3",
        '{"name": "Bo", "age": 1}',
        (("text", '{"name": "Bo", "age": 1}'),),
    ),
    Case("llama other object", "llama3", '{"type": "x"}', (("text", '{"type": "x"}'),)),
    Case(
        "llama cut in a call",
        "llama3",
        '{"name": "f", "parameters": {"a": 1',
        (("call", "f", '{"a": 1', False),),
        "length",
    ),
)


@dataclass
class Read:
    """What a client would be left with."""

    items: list[Item] = field(default_factory=list)
    ids: bytes = b""
    counts: Counts = field(default_factory=Counts)

    def take(self, events: list[EngineEvent]) -> None:
        for event in events:
            match event:
                case TextProduced(text, counts, ids):
                    self.ids += ids
                    self._text("text", text)
                case ReasoningProduced(text, counts):
                    self._text("thought", text)
                case CallProduced(index, call_id, name, arguments, counts, finished):
                    assert call_id == f"call_x{index:02x}"
                    self._call(index, name, arguments, finished)
                case GenerationFinished(_, counts, ids):
                    self.ids += ids
                case PromptEvaluated(counts):
                    pass
            self.counts = counts

    def _text(self, kind: str, text: str) -> None:
        if text and self.items and self.items[-1][0] == kind:
            self.items[-1] = (kind, f"{self.items[-1][1]}{text}")
        elif text:
            self.items.append((kind, text))

    def _call(self, index: int, name: str, arguments: str, finished: bool) -> None:
        calls = [at for at, item in enumerate(self.items) if item[0] == "call"]
        if index == len(calls):
            self.items.append(("call", name, arguments, finished))
            return
        at = calls[index]
        assert self.items[at][3] is False, "nothing follows the end of a call"
        self.items[at] = ("call", name, f"{self.items[at][2]}{arguments}", finished)


def read(case: Case, *pieces: str) -> Read:
    parser = output_parser(Model("m", "tokens", case.form), "resp_x", calls=case.calls)
    result = Read()
    result.take(parser.feed(PromptEvaluated(Counts(input_tokens=9))))
    for at, piece in enumerate(pieces, 1):
        counts = Counts(input_tokens=9, output_tokens=at)
        result.take(parser.feed(TextProduced(piece, counts, b"%4d" % at)))
    last = Counts(input_tokens=9, output_tokens=len(pieces) + 1)
    result.take(parser.finish())
    result.take(parser.feed(GenerationFinished(case.finish, last, b"last")))
    assert result.ids == b"".join(b"%4d" % at for at in range(1, len(pieces) + 1)) + b"last"
    assert result.counts.output_tokens == len(pieces) + 1
    return result


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_an_answer_is_read_into_its_items(case: Case) -> None:
    assert tuple(read(case, case.text).items) == case.items


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_however_it_is_split_the_items_are_the_same(case: Case) -> None:
    for cut in range(1, len(case.text)):
        assert tuple(read(case, case.text[:cut], case.text[cut:]).items) == case.items, cut
    assert tuple(read(case, *case.text).items) == case.items


@pytest.mark.parametrize(
    ("form", "pieces", "expected"),
    [
        ("qwen3", ["<think>", "\nHm", ".", "\n</think>", "\n\n", "Yes"], 4),
        ("qwen3", ["Yes", "."], 0),
        ("qwen3", ["<think>", "\nHm"], 3),
        ("harmony", ["<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>", "<|start|>"], 3),
    ],
)
def test_the_tokens_of_a_thought_are_counted(form: str, pieces: list[str], expected: int) -> None:
    case = Case("counted", form, "", ())
    assert read(case, *pieces).counts.reasoning_tokens == expected


@pytest.mark.parametrize(
    ("form", "text", "arguments"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": [1, "x', '{"a": [1, "x"]}'),
        ("llama3", '{"name": "f", "parameters": {"a": [1', '{"a": [1]}'),
        ("harmony", f' to=functions.f{COMMENTARY}{{"a": "x', '{"a": "x"}'),
        ("harmony", f" to=functions.f{COMMENTARY}", "{}"),
    ],
)
def test_a_call_that_stops_too_early_is_repaired_once(form: str, text: str, arguments: str) -> None:
    assert read(Case("cut", form, text, ()), *text).items == [("call", "f", arguments, True)]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {a: 1}}\n</tool_call>'),
        ("llama3", '{"name": "f", "parameters": {a: 1}}'),
        ("harmony", f" to=functions.f{COMMENTARY}{{a: 1}}<|call|>"),
    ],
)
def test_a_call_that_is_no_json_fails_the_turn(form: str, text: str) -> None:
    with pytest.raises(Internal, match="not valid JSON"):
        read(Case("broken", form, text, ()), *text)


def test_a_header_that_never_ends_is_text() -> None:
    text = "word " * 200
    assert read(Case("long", "harmony", text, ()), *text).items == [("text", text)]
