"""Bodies of requests as nobody should write them, for tests by example generation."""

import copy
from typing import Any

from hypothesis import strategies as st

from turnwire.pipelines.protocol.codec import Body

FIELDS = [*Body.__struct_fields__, "type", "stream_options", "client_metadata", "moderation"]
KINDS = ["message", "function_call", "function_call_output", "custom_tool_call", "reasoning"]
KINDS += ["custom_tool_call_output", "item_reference", "compaction", "web_search_call", "new"]
WORDS = st.sampled_from([*KINDS, "auto", "none", "required", "function", "allowed_tools", "user"])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, 10**40]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    WORDS,
)
KEYS = st.one_of(
    st.sampled_from(["type", "id", "name", "role", "content", "text", "tools", "format", "schema"]),
    st.sampled_from(["call_id", "arguments", "output", "parameters", "mode", "effort", "summary"]),
    st.text(max_size=4),
)
ANY = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4)
)
ITEMS = st.lists(st.dictionaries(KEYS, ANY, max_size=6), max_size=4)
RICH: dict[str, Any] = {
    "instructions": "be brief",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "message", "role": "assistant", "content": "yes?", "phase": "commentary"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c1", "name": "run", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}]},
    ],
    "tools": [
        {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {}}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
        {"type": "web_search"},
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "run"}],
    },
    "text": {
        "format": {
            "type": "json_schema",
            "name": "n",
            "schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
        "verbosity": "low",
    },
    "reasoning": {"effort": "low", "summary": "auto"},
    "metadata": {"sim.reasoning_tokens": "1", "other": "x"},
    "stream": True,
}


@st.composite
def nearly_right(draw: st.DrawFn) -> dict[str, Any]:
    """A rich body with one value in it, however deep, replaced by another."""
    body = copy.deepcopy(RICH)
    where: Any = body
    while True:
        key = draw(st.sampled_from(sorted(where) if isinstance(where, dict) else range(len(where))))
        if not (isinstance(where[key], dict | list) and where[key] and draw(st.booleans())):
            where[key] = draw(ANY)
            return body
        where = where[key]


BODIES = st.dictionaries(st.sampled_from(FIELDS), ANY | ITEMS, max_size=4) | nearly_right()
