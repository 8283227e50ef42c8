"""A JSON schema as a term of a grammar that llguidance reads. Pure.

A strict schema is kept to the letter or refused by name. Otherwise what cannot be constrained is
left out, and a schema that cannot be read at all stands for any object: the API promises no more.
"""

from typing import Any, cast

import msgspec
from llguidance import LLMatcher, LLParserLimits

_OPTIONS: dict[str, Any] = {
    # One way to write each value: given the choice, small models write white space for ever.
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # Nothing checks that just one alternative fits; that one of them does is kept.
    "coerce_one_of": True,
}
_LENIENT: dict[str, Any] = _OPTIONS | {"lenient": True}
_MAX_BYTES = 256 * 1024
_REASON_CHARACTERS = 200
_LIMITS = LLParserLimits(verbose_errors=False)

ANY_OBJECT: dict[str, Any] = {"type": "object"}


class SchemaRefused(Exception):
    """The schema cannot be kept to the letter; the message says why."""


def schema_term(schema: dict[str, Any], *, strict: bool) -> str:
    """`%json {...}`. Raises SchemaRefused when `strict`, or when it is too large either way."""
    if len(msgspec.json.encode(schema)) > _MAX_BYTES:
        raise SchemaRefused(f"it has more than {_MAX_BYTES} bytes")
    reason = _complaint(schema, _OPTIONS)
    if not reason:
        return _term(schema, _OPTIONS)
    if strict:
        raise SchemaRefused(reason)
    schema = ANY_OBJECT if _complaint(schema, _LENIENT) else schema
    return _term(schema, _LENIENT)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with no further members in objects that list theirs and leave this open.

    What fits it fits `schema`. It is for models that would go on inventing members.
    """
    if b'"allOf"' in msgspec.json.encode(schema):
        return schema  # each of the parts would forbid the members of the others
    return cast(dict[str, Any], _close(schema))


_OPENERS = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "$ref"}
)
_LITERAL = frozenset({"const", "enum", "default", "examples", "required"})


def _close(node: object) -> object:
    if isinstance(node, list):
        return [_close(part) for part in node]
    if not isinstance(node, dict):
        return node
    parts = {key: value if key in _LITERAL else _close(value) for key, value in node.items()}
    if isinstance(node.get("properties"), dict) and _OPENERS.isdisjoint(node):
        parts["additionalProperties"] = False
    return parts


def _complaint(schema: dict[str, Any], options: dict[str, Any]) -> str:
    """Why the schema cannot be a grammar, in one line; empty: it can."""
    try:
        grammar = LLMatcher.grammar_from_json_schema(_text(schema), overrides=cast(Any, options))
    except ValueError as error:
        return str(error).partition(" at line ")[0]
    found = LLMatcher.validate_grammar(grammar, None, limits=_LIMITS)
    return "" if found.startswith("WARNING") else " ".join(found.split())[:_REASON_CHARACTERS]


def _term(schema: dict[str, Any], options: dict[str, Any]) -> str:
    return "%json " + _text(schema | {"x-guidance": options})


def _text(schema: dict[str, Any]) -> str:
    return msgspec.json.encode(schema).decode()
