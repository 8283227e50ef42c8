from array import array
from collections.abc import Callable

import pytest

from turnwire.pipelines.messages import Finish, Model
from turnwire.pipelines.prompts.chatml import DEFAULT_SYSTEM
from turnwire.pipelines.prompts.format import Format, format_of
from turnwire.pipelines.prompts.tokenizer import load_tokenizer, pack
from turnwire.pipelines.protocol.errors import Internal
from turnwire.pipelines.protocol.items import kept_items
from turnwire.pipelines.protocol.tools import parse_tools

Encode = Callable[[str], bytes]
END_OF_TEXT, START, END = pack(0), pack(1), pack(2)
TOOLS = parse_tools(b"[]")


@pytest.fixture
def chatml(token_model: Model) -> Format:
    return format_of(token_model)


@pytest.fixture
def encode(tokenizer_path: str) -> Encode:
    return load_tokenizer(tokenizer_path).encode


def rendered(form: Format, item: bytes) -> bytes:
    return form.items(kept_items(item))


def test_a_conversation_without_system_message_gets_the_default_one(
    chatml: Format, encode: Encode
) -> None:
    expected = START + encode(f"system\n{DEFAULT_SYSTEM}") + END + encode("\n")
    assert chatml.begin(None, TOOLS, ()) == expected
    asked = kept_items(b'{"id":"i","role":"user","content":"hi"}')
    assert chatml.begin(None, TOOLS, asked) == expected + chatml.items(asked)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_message_of_the_client_replaces_the_default_one(chatml: Format, role: str) -> None:
    told = kept_items(b'{"id":"i","role":"%b","content":"hi"}' % role.encode())
    assert chatml.begin(None, TOOLS, told) == chatml.items(told)


def test_instructions_are_the_system_message(chatml: Format, encode: Encode) -> None:
    expected = START + encode("system\nBe brief.") + END + encode("\n")
    told = kept_items(b'{"id":"i","role":"developer","content":"hi"}')
    assert chatml.begin("Be brief.", TOOLS, told) == expected + chatml.items(told)


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (b'{"id":"i","role":"user","content":"hi"}', "user\nhi"),
        (b'{"id":"i","role":"developer","content":"hi"}', "system\nhi"),
        (b'{"id":"i","role":"user","content":"a<|im_end|>"}', "user\na<|im_end|>"),
        (
            b'{"id":"i","type":"function_call","call_id":"c","name":"f","arguments":"{}"}',
            'assistant\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        ),
        (
            b'{"id":"i","type":"custom_tool_call","call_id":"c","name":"f","input":"a\\"b"}',
            'assistant\n<tool_call>\n{"name": "f", "arguments": {"input": "a\\"b"}}\n</tool_call>',
        ),
        (
            b'{"id":"i","type":"function_call_output","call_id":"c","output":"42"}',
            "user\n<tool_response>\n42\n</tool_response>",
        ),
    ],
)
def test_each_item_is_one_closed_message(
    chatml: Format, encode: Encode, item: bytes, text: str
) -> None:
    assert rendered(chatml, item) == START + encode(text) + END + encode("\n")


@pytest.mark.parametrize(
    "item", [b'{"id":"i","type":"reasoning","summary":[]}', b'{"id":"i","type":"web_search_call"}']
)
def test_reasoning_and_foreign_items_leave_no_trace(chatml: Format, item: bytes) -> None:
    assert rendered(chatml, item) == b""


@pytest.mark.parametrize(
    ("sampled", "finish", "kept"),
    [
        (pack(7, 8) + END, "stop", pack(7, 8) + END),
        (pack(7, 8) + END_OF_TEXT, "stop", pack(7, 8) + END),
        (pack(7, 8), "length", pack(7, 8) + END),
        (pack(7, 8), "cancelled", pack(7, 8) + END),
        (b"", "cancelled", END),
    ],
)
def test_every_ending_is_closed_by_exactly_one_end_marker(
    chatml: Format, encode: Encode, sampled: bytes, finish: Finish, kept: bytes
) -> None:
    assert chatml.answer(sampled, finish) == kept + encode("\n")


def test_the_header_invites_the_assistant(chatml: Format, encode: Encode) -> None:
    assert chatml.header == START + encode("assistant\n")
    assert len(array("I", chatml.header)) < 5


def test_an_unknown_format_is_refused(tokenizer_path: str) -> None:
    with pytest.raises(Internal, match="no prompt format"):
        format_of(Model("x", "tokens", "smoke", tokenizer_path))
