import json
from typing import Any

import msgspec
import pytest

from turnwire.pipelines.protocol.items import (
    Call,
    CallOutput,
    Compaction,
    Foreign,
    Item,
    Message,
    Reasoning,
    Reference,
    call_of,
    new_text,
    parse_items,
    role_of,
)


def one(**members: object) -> Item:
    (item,) = parse_items(json.dumps([members]).encode(), bytes, "input")
    assert not isinstance(item, Reference)
    return item


def test_a_bare_message_is_given_its_type_and_an_id() -> None:
    item = one(role="user", content="hi", phase="x")
    assert isinstance(item, Message)
    assert json.loads(item.json) == {
        "type": "message",
        "id": item.id,
        "role": "user",
        "content": "hi",
        "phase": "x",
    }
    assert item.id.startswith("msg_")


@pytest.mark.parametrize("empty", [None, ""])
def test_an_empty_id_or_type_is_replaced_once(empty: str | None) -> None:
    item = one(type=empty, id=empty, role="user", content="hi")
    assert item.json.count(b'"id"') == item.json.count(b'"type"') == 1
    assert json.loads(item.json)["id"] == item.id != ""


def test_an_item_with_type_and_id_is_kept_byte_for_byte() -> None:
    raw = b'{ "type" : "message", "id":"msg_x", "role":"user","content":"\\u00e9" }'
    (item,) = parse_items(b"[" + raw + b"]", bytes, "input")
    assert isinstance(item, Message)
    assert (item.id, item.json, item.text) == ("msg_x", raw, "é")


def test_parts_are_a_line_each_and_what_is_no_text_leaves_a_note() -> None:
    item = one(
        role="user",
        content=[
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
            {"type": "refusal", "refusal": "no"},
        ],
    )
    assert isinstance(item, Message)
    assert item.text == "look\n[input_image omitted: this model reads text only]\nno"


def test_tool_outputs_may_be_text_or_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    for output, text in (("a", "a"), (parts, "a\nb"), ([], "")):
        item = one(type="function_call_output", call_id="c", output=output)
        assert isinstance(item, CallOutput)
        assert item.text == text
        assert item.id.startswith("fco_")


@pytest.mark.parametrize(
    ("members", "kind", "prefix"),
    [
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, Call, "fc_"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": ""}, Call, "ctc_"),
        ({"type": "reasoning", "summary": [], "encrypted_content": None}, Reasoning, "rs_"),
        ({"type": "compaction", "encrypted_content": "x"}, Compaction, "cmp_"),
        ({"type": "web_search_call", "action": {"name": 3}}, Foreign, "item_"),
        ({"type": "local_shell_call", "call_id": 3, "content": {}}, Foreign, "item_"),
    ],
)
def test_every_kind_gets_an_id_of_its_own_prefix(
    members: dict[str, Any], kind: type, prefix: str
) -> None:
    item = one(**members)
    assert isinstance(item, kind)
    assert item.id.startswith(prefix)
    assert json.loads(item.json) == members | {"id": item.id}


def test_a_reference_is_only_an_id() -> None:
    raw = b'[{"type":"item_reference","id":"msg_1"}]'
    assert parse_items(raw, bytes, "input") == (Reference("msg_1"),)


def test_calls_of_kinds_not_known_here_can_be_answered() -> None:
    assert call_of(one(type="local_shell_call", call_id="c")) == "c"
    assert call_of(one(type="local_shell_call_output", call_id="c")) is None
    assert call_of(one(type="web_search_call")) is None


def test_people_and_tools_write_what_is_screened() -> None:
    assert new_text(one(role="user", content="a")) == "a"
    assert new_text(one(role="developer", content="b")) == "b"
    assert new_text(one(type="function_call_output", call_id="c", output="d")) == "d"
    assert new_text(one(role="assistant", content="e")) is None
    assert new_text(one(type="reasoning", summary=[])) is None


def test_nobody_speaks_in_what_is_not_shown() -> None:
    assert role_of(one(role="developer", content="")) == "developer"
    assert role_of(one(type="function_call", call_id="c", name="f", arguments="")) == "assistant"
    assert role_of(one(type="function_call_output", call_id="c", output="")) == "tool"
    assert role_of(one(type="reasoning")) == role_of(one(type="web_search_call")) == ""


def test_raw_input_is_accepted_as_it_comes_from_a_body() -> None:
    raw = msgspec.Raw(b'[{"role":"user","content":"x"}]')
    (item,) = parse_items(raw, bytes, "input")
    assert isinstance(item, Message)


def test_the_model_knows_a_call_into_a_namespace_by_its_flat_name() -> None:
    call = one(type="function_call", call_id="c", namespace="crm", name="find", arguments="{}")
    assert isinstance(call, Call)
    assert call.name == "crm__find"
    assert json.loads(call.json)["namespace"] == "crm"
