"""JSON schemas that must hold together, made into one. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

Schema = Mapping[str, Any]

_LARGER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_BY_KEYWORD: Final = {
    "object": ("properties", "required", "additionalProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems", "uniqueItems", "contains"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


class Conflict(ValueError):
    """Nothing satisfies both, or this module cannot tell what does."""


def merged(left: object, right: object) -> Schema:
    """One schema for both; keywords that cannot be folded become a nested `allOf`."""
    if left is True:
        left = {}
    if right is True:
        right = {}
    if not isinstance(left, Mapping) or not isinstance(right, Mapping):
        raise Conflict("a schema that nothing satisfies")
    both = dict(left)
    for keyword, value in right.items():
        both[keyword] = _both(keyword, both[keyword], value) if keyword in both else value
    return both


def _both(keyword: str, left: Any, right: Any) -> Any:  # noqa: ANN401 -- JSON
    if left == right:
        return left
    if keyword in _LARGER:
        return max(left, right)
    if keyword in _SMALLER:
        return min(left, right)
    match keyword:
        case "type":
            return _common(names(left), names(right))
        case "enum":
            return _common(left, right)
        case "required":
            return list(dict.fromkeys([*left, *right]))
        case "properties" | "$defs" | "definitions":
            shared = {k: {"allOf": [left[k], right[k]]} for k in left.keys() & right.keys()}
            return {**left, **right, **shared}
        case "items" | "contains" | "additionalProperties":
            return {"allOf": [left, right]}
        case "title" | "description" | "default" | "examples":
            return right
        case _:
            raise Conflict(f"two values of {keyword}")


def _common(left: Sequence[object], right: Sequence[object]) -> list[object]:
    common = [value for value in left if value in right]
    if not common:
        raise Conflict("alternatives without a common one")
    return common


def names(kind: object) -> list[str]:
    """The value of `type` as a list."""
    return [kind] if isinstance(kind, str) else list(kind) if isinstance(kind, Sequence) else []


def types(schema: Schema) -> list[str]:
    """Types to try, the likeliest first: those named, else those the other keywords speak of."""
    if named := names(schema.get("type")):
        return sorted(named, key=lambda name: name == "null")
    spoken = [name for name, words in _BY_KEYWORD.items() if any(w in schema for w in words)]
    return spoken or ["string"]


def has_type(value: object, kind: object) -> bool:
    """Is `value` of (one of) the named JSON type(s)? Without a name everything is."""
    allowed = names(kind)
    return not allowed or any(_is(value, name) for name in allowed)


def _is(value: object, name: str) -> bool:
    match value:
        case bool():
            return name == "boolean"
        case int():
            return name in ("integer", "number")
        case float():
            return name == "number" or (name == "integer" and value.is_integer())
        case str():
            return name == "string"
        case None:
            return name == "null"
        case list():
            return name == "array"
        case _:
            return name == "object"
