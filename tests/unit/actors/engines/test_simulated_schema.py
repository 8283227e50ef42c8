"""Arguments made for a JSON schema satisfy it, as an independent validator sees it."""

import re
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from turnwire.actors.engines.simulated_pattern import UnsupportedPattern, matching
from turnwire.actors.engines.simulated_schema import Unsatisfiable, instance

Schema = dict[str, Any]
VALIDATOR = Draft202012Validator
FORMATS = VALIDATOR.FORMAT_CHECKER


def satisfied(schema: object, value: object) -> bool:
    return VALIDATOR(schema, format_checker=FORMATS).is_valid(value)


def bounds(least: str, most: str, top: int) -> st.SearchStrategy[Schema]:
    pair = st.tuples(st.integers(0, top), st.integers(0, top)).map(sorted)
    both = pair.map(lambda two: {least: two[0], most: two[1]})
    return st.one_of(st.just({}), both, pair.map(lambda two: {least: two[0]}))


def numbers(kind: str) -> st.SearchStrategy[Schema]:
    number: st.SearchStrategy[float] = st.integers(-1000, 1000)
    if kind == "number":
        number |= st.floats(-1e6, 1e6).map(lambda value: round(value, 3))
    wide = st.tuples(number, st.integers(100, 1000))
    low_names, high_names = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
    bounded = st.builds(
        lambda low, high, two: {low: two[0], high: two[0] + two[1]},
        st.sampled_from(low_names),
        st.sampled_from(high_names),
        wide,
    )
    one_side = st.builds(lambda n, v: {n: v}, st.sampled_from(low_names + high_names), number)
    multiple = st.one_of(st.just({}), st.integers(1, 50).map(lambda n: {"multipleOf": n}))
    return st.builds(
        lambda a, b: {"type": kind, **a, **b}, st.one_of(st.just({}), bounded, one_side), multiple
    )


TEXTS = st.one_of(
    bounds("minLength", "maxLength", 60),
    st.sampled_from(["date", "date-time", "email", "ipv4", "ipv6", "uuid", "time"]).map(
        lambda name: {"format": name}
    ),
    st.sampled_from([r"^[a-z]{3,8}$", r"\d+", r"^(GET|POST) /\w*$", r"[^a-z]x?"]).map(
        lambda pattern: {"pattern": pattern}
    ),
).map(lambda rest: {"type": "string", **rest})

VALUES = st.one_of(
    st.lists(st.one_of(st.integers(), st.text(max_size=5), st.none()), min_size=1).map(
        lambda values: {"enum": values}
    ),
    st.text(max_size=8).map(lambda value: {"const": value}),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, True, {}]),
)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    members = st.dictionaries(NAMES, inner, max_size=4)
    objects = members.flatmap(
        lambda properties: (
            st.lists(st.sampled_from(sorted(properties) or ["alone"]), unique=True)
            .map(lambda names: [name for name in names if name in properties])
            .map(
                lambda required: {
                    "type": "object",
                    "properties": properties,
                    "required": required,
                    "additionalProperties": False,
                }
            )
        )
    )
    arrays = st.builds(
        lambda items, size: {"type": "array", "items": items, **size},
        inner,
        bounds("minItems", "maxItems", 4),
    )
    nullable = inner.map(lambda schema: {"anyOf": [schema, {"type": "null"}]})
    return st.one_of(objects, arrays, nullable)


LEAVES = st.one_of(TEXTS, numbers("integer"), numbers("number"), VALUES)
SCHEMAS = st.recursive(LEAVES, nested, max_leaves=12)


@settings(max_examples=150, deadline=None)
@given(SCHEMAS, st.integers(0, 2**56), st.sampled_from([0, 100]))
def test_a_value_satisfies_the_schema_it_was_made_for(
    schema: object, seed: int, filler_characters: int
) -> None:
    value = instance(schema, seed, filler_characters)
    assert satisfied(schema, value), (schema, value)
    assert instance(schema, seed, filler_characters) == value


KEYWORDS = [
    *("type", "enum", "const", "properties", "required", "items", "anyOf", "allOf", "prefixItems"),
    *("$ref", "pattern", "minLength", "minItems", "minimum", "multipleOf", "format", "contains"),
]
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=6)
    | st.sampled_from(KEYWORDS),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYWORDS), inner),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(ANYTHING)
def test_what_is_no_schema_is_answered_or_refused_and_nothing_else(schema: object) -> None:
    try:
        value = instance(schema)
    except Unsatisfiable:
        return
    orjson.dumps(value)


@dataclass(frozen=True)
class Case:
    id: str
    schema: Schema


TREE: Schema = {
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

CASES = [
    Case("a recursion with a way out", TREE),
    Case("unique items", {"type": "array", "minItems": 3, "uniqueItems": True, "items": True}),
    Case(
        "an enum of unique items",
        {
            "type": "array",
            "minItems": 3,
            "uniqueItems": True,
            "items": {"enum": [1, 2, 3]},
        },
    ),
    Case(
        "a tuple",
        {
            "type": "array",
            "prefixItems": [{"type": "string"}, {"type": "integer"}],
            "items": {"type": "boolean"},
            "minItems": 3,
        },
    ),
    Case("contains", {"type": "array", "contains": {"const": "here"}}),
    Case("members by count", {"type": "object", "minProperties": 3, "maxProperties": 3}),
    Case(
        "allOf",
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"minimum": 3}}, "required": ["a"]},
                {
                    "properties": {"a": {"type": "integer", "maximum": 3}, "b": {}},
                    "required": ["b"],
                },
            ]
        },
    ),
    Case(
        "oneOf by a tag",
        {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": k}}, "required": ["kind"]}
                for k in ("a", "b")
            ]
        },
    ),
    Case(
        "anyOf beside members",
        {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "anyOf": [{"required": ["b"]}, {"required": ["a"]}],
        },
    ),
    Case("an alternative that cannot be", {"anyOf": [False, {"type": "string", "minLength": 9}]}),
    Case("a type to guess", {"properties": {"a": {"minItems": 1}}, "required": ["a"]}),
    Case("types to choose from", {"type": ["null", "array"], "minItems": 1}),
    Case("a number beyond the whole ones", {"type": "integer", "minimum": 2**60}),
    Case("a narrow number", {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-9}),
    Case("a multiple of a fraction", {"type": "number", "minimum": 0.25, "multipleOf": 0.1}),
    Case("a whole multiple of a fraction", {"type": "integer", "minimum": 1, "multipleOf": 1.5}),
    Case("a pattern of a length", {"type": "string", "pattern": "^[a-f]+$", "minLength": 20}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_schema_is_satisfied(case: Case) -> None:
    value = instance(case.schema, 7)
    assert satisfied(case.schema, value), value


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "string", "minLength": 5, "maxLength": 2},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"$ref": "#"},
        {"$ref": "https://example.com/schema"},
        {"enum": []},
        {"type": "array", "minItems": 3, "uniqueItems": True, "items": {"const": 1}},
        {"type": "array", "minItems": 1_000_000},
        {"type": "string", "minLength": 1_000_000_000},
        {"type": "string", "pattern": "^(?=a)b$"},
        {"type": "object", "properties": {}, "required": ["a"], "additionalProperties": False},
        {"type": "spaceship"},
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_satisfied_is_refused(schema: object) -> None:
    with pytest.raises(Unsatisfiable):
        instance(schema)


def test_a_schema_that_branches_without_end_is_given_up_soon() -> None:
    loop = {"$ref": "#/$defs/a"}
    schema = {
        "$defs": {"a": {"anyOf": [{"allOf": [loop], "title": t} for t in "abcdefgh"]}},
        **loop,
    }
    with pytest.raises(Unsatisfiable):
        instance(schema)


def test_the_filler_goes_into_the_first_free_text() -> None:
    schema = {
        "type": "object",
        "properties": {"mode": {"enum": ["a"]}, "one": {"type": "string"}, "two": {}},
        "required": ["mode", "one", "two"],
    }
    short, long = instance(schema, 1), instance(schema, 1, 100)
    assert len(long["one"]) == len(short["one"]) + 100
    assert (long["mode"], long["two"]) == (short["mode"], short["two"])


@pytest.mark.parametrize(
    "pattern",
    [
        "abc",
        r"^\d{4}-\d{2}-\d{2}$",
        r"^[A-Z][a-z]*( [A-Z][a-z]*)?$",
        r"^(?:foo|bar)+baz$",
        r"^(?P<name>x{2,})y??$",
        r"a|b$",
        r"^[^\s]+@[^\s]+\.[a-z]{2,}$",
        r"[]a]",
        r"^[\w.-]+$",
        r"\.\*\\",
        "",
    ],
)
def test_a_text_matches_the_pattern(pattern: str) -> None:
    for least in (0, 7):
        try:
            found = matching(pattern, least)
        except UnsupportedPattern:
            assert least, "only a length can be too much for these"
        else:
            assert re.search(pattern, found)
            assert len(found) >= least


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "[a",
        "a)",
        "(?=a)",
        r"(a)\1",
        "*a",
        "a^b",
        "(^a)",
        r"\bword",
        "x{99999}",
        "a{2000}" * 99,
    ],
)
def test_a_pattern_beyond_us_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedPattern):
        matching(pattern)
