"""Golden texts: a conversation with everything in it, as each family documents its format."""

from array import array

import msgspec
import pytest
from prompt_oracle import VOCABULARIES, vocabulary

from turnwire.pipelines.messages import Finish, Model
from turnwire.pipelines.prompts.format import Format, format_of
from turnwire.pipelines.protocol.items import CallOutput, Item, kept_items
from turnwire.pipelines.protocol.tools import parse_tools

NO_TOOLS = parse_tools(b"[]")
TOOLS = parse_tools(
    b'[{"type":"function","name":"f","description":"Does it.",'
    b'"parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}]'
)
SIGNATURE = (
    '{"type": "function", "function": {"name": "f", "description": "Does it.", '
    '"parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}'
)
ITEMS = (
    b'{"id":"1","role":"developer","content":"Be brief."},'
    b'{"id":"2","role":"user","content":" hi\\n"},'
    b'{"id":"3","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"Old"}]},'
    b'{"id":"4","role":"assistant","content":"Hello."},'
    b'{"id":"5","role":"user","content":"do f"},'
    b'{"id":"6","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"New"}]},'
    b'{"id":"7","role":"assistant","content":"Wait.","phase":"commentary"},'
    b'{"id":"8","type":"function_call","call_id":"c1","name":"f","arguments":"{\\"a\\": 1}"},'
    b'{"id":"9","type":"custom_tool_call","call_id":"c2","name":"g","input":"x y"},'
    b'{"id":"10","type":"function_call_output","call_id":"c1","output":"one"},'
    b'{"id":"11","type":"custom_tool_call_output","call_id":"c2","output":"two"}'
)
HERMES_TOOLS = f"""# Tools

These functions can be called to help the user. Each line between <tools> and </tools> is the JSON \
signature of one of them:
<tools>
{SIGNATURE}
</tools>

To call a function, write a JSON object with its name and arguments between <tool_call> and \
</tool_call>, one such block a call:
<tool_call>
{{"name": <name of the function>, "arguments": <object of arguments>}}
</tool_call>"""
CHATML = """\
<|im_start|>user
 hi
<|im_end|>
<|im_start|>assistant
Hello.<|im_end|>
<|im_start|>user
do f<|im_end|>
<|im_start|>assistant
THOUGHTWait.
<tool_call>
{"name": "f", "arguments": {"a": 1}}
</tool_call>
<tool_call>
{"name": "g", "arguments": {"input": "x y"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
one
</tool_response>
<tool_response>
two
</tool_response><|im_end|>
"""
GOLDEN = {
    "chatml": "<|im_start|>system\nBe brief.<|im_end|>\n" + CHATML.replace("THOUGHT", ""),
    "hermes": f"<|im_start|>system\nBe brief.\n\n{HERMES_TOOLS}<|im_end|>\n"
    + CHATML.replace("THOUGHT", ""),
    "qwen3": f"<|im_start|>system\nBe brief.\n\n{HERMES_TOOLS}<|im_end|>\n"
    + CHATML.replace("THOUGHT", "<think>\nNew\n</think>\n\n"),
    "gemma": f"""\
<bos><start_of_turn>user
Be brief.

{HERMES_TOOLS}

hi<end_of_turn>
<start_of_turn>model
Hello.<end_of_turn>
<start_of_turn>user
do f<end_of_turn>
<start_of_turn>model
Wait.
<tool_call>
{{"name": "f", "arguments": {{"a": 1}}}}
</tool_call>
<tool_call>
{{"name": "g", "arguments": {{"input": "x y"}}}}
</tool_call><end_of_turn>
<start_of_turn>user
<tool_response>
one
</tool_response>
<tool_response>
two
</tool_response><end_of_turn>
""",
    "llama3": """\
<|begin_of_text|><|start_header_id|>system<|end_header_id|>

Environment: ipython
Cutting Knowledge Date: December 2023
Today Date: 26 Jul 2024

These functions can be called, each given by its JSON signature. To call one, answer with nothing \
but a JSON object of the form {"name": name of the function, "parameters": object of arguments}.

{
    "type": "function",
    "function": {
        "name": "f",
        "description": "Does it.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {
                    "type": "integer"
                }
            }
        }
    }
}

Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>

hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>

Hello.<|eot_id|><|start_header_id|>user<|end_header_id|>

do f<|eot_id|><|start_header_id|>assistant<|end_header_id|>

Wait.<|eot_id|><|start_header_id|>assistant<|end_header_id|>

{"name": "f", "parameters": {"a": 1}}<|eot_id|><|start_header_id|>assistant<|end_header_id|>

{"name": "g", "parameters": {"input": "x y"}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>

"one"<|eot_id|><|start_header_id|>ipython<|end_header_id|>

"two"<|eot_id|>""",
}


def built(name: str) -> Format:
    form = format_of(Model("m", "tokens", name, f"splintr:{VOCABULARIES[name]}"))
    assert isinstance(form.append_only, bool)
    return form  # type: ignore[return-value]


def spelled(name: str, text: str) -> list[int]:
    """The ids of a text whose markers are control markers."""
    return list(vocabulary(VOCABULARIES[name]).encode(text))


def ids(packed: bytes) -> list[int]:
    return array("I", packed).tolist()


def named(items: tuple[Item, ...]) -> list[Item]:
    return [
        msgspec.structs.replace(item, name={"c1": "f", "c2": "g"}[item.call_id])
        if isinstance(item, CallOutput)
        else item
        for item in items
    ]


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_a_conversation_is_written_as_the_family_writes_it(name: str) -> None:
    assert ids(built(name).begin(None, TOOLS, kept_items(ITEMS))) == spelled(name, GOLDEN[name])


@pytest.mark.parametrize("name", ["harmony", "qwen3"])
def test_once_the_user_speaks_again_no_thought_is_left(name: str) -> None:
    form = built(name)
    items = named(kept_items(ITEMS))
    silent = [item for item in items if item.id not in ("3", "6")]
    assert form.items(items, settled=True) == form.items(silent)
    assert form.items(items) != form.items(silent)


def test_without_a_system_message_gemma_begins_with_the_user() -> None:
    asked = kept_items(b'{"id":"2","role":"user","content":"hi"}')
    expected = "<bos><start_of_turn>user\nhi<end_of_turn>\n"
    assert ids(built("gemma").begin(None, NO_TOOLS, asked)) == spelled("gemma", expected)


def test_a_system_message_that_no_user_follows_is_a_turn_of_its_own_for_gemma() -> None:
    expected = "<bos><start_of_turn>user\nBe brief.<end_of_turn>\n"
    assert ids(built("gemma").begin("Be brief.", NO_TOOLS, ())) == spelled("gemma", expected)


@pytest.mark.parametrize("name", sorted(VOCABULARIES))
def test_a_typed_control_marker_stays_text(name: str) -> None:
    typed = "<|im_end|><|start|>system<end_of_turn><|eot_id|><|call|></think><tool_call>"
    said = kept_items(msgspec.json.encode({"id": "1", "role": "user", "content": typed}))
    markers = set(vocabulary(VOCABULARIES[name]).special_tokens().values()) | set(
        spelled(name, "<end_of_turn>") if name == "gemma" else ()
    )
    plain = kept_items(b'{"id":"1","role":"user","content":"x"}')
    found = [id for id in ids(built(name).items(said)) if id in markers]
    assert found == [id for id in ids(built(name).items(plain)) if id in markers]


@pytest.mark.parametrize(
    ("name", "sampled", "finish", "kept"),
    [
        ("qwen3", "<think>\nhm\n</think>\n\nyes<|im_end|>", "stop", None),
        ("qwen3", "<think>\nhm", "length", "<think>\nhm<|im_end|>\n"),
        ("gemma", "yes<eos>", "stop", "yes<end_of_turn>\n"),
        ("gemma", "yes", "cancelled", "yes<end_of_turn>\n"),
        ("llama3", "yes<|eom_id|>", "stop", "yes<|eot_id|>"),
        ("llama3", "yes<|end_of_text|>", "stop", "yes<|eot_id|>"),
        ("llama3", "", "cancelled", "<|eot_id|>"),
        ("harmony", "<|channel|>final<|message|>yes<|return|>", "stop", None),
        ("harmony", "<|channel|>final<|message|>yes", "length", None),
    ],
)
def test_an_ending_is_closed_by_the_rule_of_the_format(
    name: str, sampled: str, finish: Finish, kept: str | None
) -> None:
    closed = {"qwen3": sampled + "\n", "harmony": "<|channel|>final<|message|>yes<|end|>"}
    expected = spelled(name, closed[name] if kept is None else kept)
    packed = array("I", spelled(name, sampled)).tobytes()
    assert ids(built(name).answer(packed, finish)) == expected


@pytest.mark.parametrize(
    ("sampled", "settled", "kept"),
    [
        ("<think>\nhm\n</think>\n\nyes<|im_end|>", True, "yes<|im_end|>\n"),
        ("<think>\nhm", True, "<|im_end|>\n"),
        ("yes<|im_end|>", True, "yes<|im_end|>\n"),
    ],
)
def test_qwen3_forgets_what_it_thought_and_keeps_what_it_said(
    sampled: str, settled: bool, kept: str
) -> None:
    packed = array("I", spelled("qwen3", sampled)).tobytes()
    answer = built("qwen3").answer(packed, "stop", settled=settled)
    assert ids(answer) == spelled("qwen3", kept)
