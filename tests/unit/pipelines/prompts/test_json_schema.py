"""Whatever is written under a schema's grammar fits the schema."""

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from turnwire.pipelines.prompts.json_schema import SchemaRefused, closed, schema_term


class Bytes:
    """A vocabulary of all bytes, and an end."""

    bos_token_id = None
    eos_token_id = 256
    special_token_ids: Sequence[int] = (256,)
    tokens: Sequence[bytes] = (*(bytes([value]) for value in range(256)), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


VOCABULARY = LLTokenizer(TokenizerWrapper(Bytes()))
PATIENCE = 120
"""Bytes after which a writer takes the shortest way out."""
NAMES = st.sampled_from(["a", "b", "key", "naïve", 'q"uote'])

LEAVES = st.one_of(
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"type": ["string", "null"]},
            {"type": "string", "pattern": "^[a-c]{1,3}$"},
            {"type": "number", "minimum": -1.5, "maximum": 2.25},
            {"type": "string", "format": "date"},
            {"type": "string", "format": "uuid"},
            {"const": {"x": [1, None, "y"]}},
            {"enum": ["red", 7, None, 1.5]},
        ]
    ),
    st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
        st.integers(0, 4),
        st.integers(0, 4),
    ),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-300, 300),
        st.integers(0, 500),
    ),
)


def objects(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(NAMES, parts, max_size=3).flatmap(
        lambda members: (
            st.lists(st.sampled_from(sorted(members)), unique=True).map(
                lambda required: {
                    "type": "object",
                    "properties": members,
                    "required": required,
                    "additionalProperties": False,
                }
            )
            if members
            else st.just({"type": "object", "additionalProperties": False})
        )
    )


SCHEMAS = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        objects(parts),
        st.builds(
            lambda items, low, more: {
                "type": "array",
                "items": items,
                "minItems": low,
                "maxItems": low + more,
            },
            parts,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.lists(parts, min_size=1, max_size=3).map(lambda choices: {"anyOf": choices}),
    ),
    max_leaves=6,
).map(lambda value: {"allOf": [value]} if "type" not in value and "anyOf" not in value else value)


def written(schema: dict[str, Any], chance: random.Random) -> object:
    """A document that somebody wrote under the grammar who knows nothing of the schema."""
    term = schema_term(schema, strict=True)
    matcher = LLMatcher(VOCABULARY, LLMatcher.grammar_from_lark(f"%llguidance {{}}\nstart: {term}"))
    text = bytearray()
    while not matcher.is_stopped():
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        assert not matcher.is_error(), matcher.get_error()
        allowed = [token for token in range(257) if mask >> token & 1]
        assert allowed, "no way on"
        out = [token for token in allowed if token == 256 or chr(token) in '"]}']
        hurried = out and (len(text) > PATIENCE or chance.random() < 0.3)
        token = chance.choice(out if hurried else allowed)
        assert matcher.consume_token(token)
        if token == 256:
            break
        text.append(token)
        assert len(text) < 5000
    document: object = json.loads(text)
    return document


@settings(max_examples=80, deadline=None)
@given(SCHEMAS, st.integers(0, 2**32))
def test_what_is_written_under_a_grammar_fits_its_schema(schema: dict[str, Any], seed: int) -> None:
    jsonschema.validate(written(schema, random.Random(seed)), schema)


@settings(max_examples=100, deadline=None)
@given(SCHEMAS, st.integers(0, 2**32))
def test_what_fits_a_closed_schema_fits_the_open_one(schema: dict[str, Any], seed: int) -> None:
    text = json.dumps(schema).replace(', "additionalProperties": false', "")
    opened = json.loads(text)
    jsonschema.validate(written(closed(opened), random.Random(seed)), opened)


def test_a_schema_that_refers_to_itself_is_kept() -> None:
    tree = {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    }
    for seed in range(5):
        jsonschema.validate(written(tree, random.Random(seed)), tree)


def test_options_that_a_schema_brings_along_are_not_taken_over() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "x-guidance": {"lenient": True}}
    assert '"lenient"' not in schema_term(schema, strict=True)


def test_members_and_values_are_no_place_for_a_closed_object() -> None:
    kept = {"const": {"properties": {"a": 1}}}
    assert closed(kept) == kept


def test_what_cannot_be_kept_is_refused_in_a_line() -> None:
    with pytest.raises(SchemaRefused, match="look-around"):
        schema_term({"type": "string", "pattern": "(?!x)y"}, strict=True)
