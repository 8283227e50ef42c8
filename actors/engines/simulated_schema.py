"""A value that satisfies a JSON schema: what the simulated models call tools with. Pure.

Understood: types, enum, const, objects with their required members, arrays, bounds of numbers,
texts and arrays, `pattern`, common `format`s, allOf, anyOf, oneOf and local `$ref`. Of anyOf and
oneOf the first alternative that can be satisfied is taken. `not`, `if` and the dependent keywords
are not looked at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from turnwire.actors.engines import simulated_merge as merge
from turnwire.actors.engines.simulated_number import NoNumber, number
from turnwire.actors.engines.simulated_pattern import UnsupportedPattern, matching
from turnwire.actors.engines.simulated_text import prose

Schema = Mapping[str, Any]

_DEPTHS: Final = (4, 8, 16, 32)
_MAX_NODES: Final = 4096
_MAX_ITEMS: Final = 256
_MAX_CHARACTERS: Final = 65_536
_WORD_CHARACTERS: Final = 24

_FORMATS: Final[dict[str, str]] = {
    "date-time": "2026-01-{:02d}T12:00:00Z",
    "date": "2026-01-{:02d}",
    "time": "12:{:02d}:00Z",
    "duration": "PT{}M",
    "email": "agent{}@example.com",
    "hostname": "host{}.example.com",
    "ipv4": "192.0.2.{}",
    "ipv6": "2001:db8::{}",
    "uri": "https://example.com/{}",
    "uri-reference": "https://example.com/{}",
    "uuid": "00000000-0000-4000-8000-{:012d}",
}


class Unsatisfiable(ValueError):
    """No value was found that satisfies the schema."""


def instance(schema: object, seed: int = 0, filler_characters: int = 0) -> Any:  # noqa: ANN401 -- JSON
    """A value for `schema`: the same for the same arguments.

    The first text that is free to be anything is made `filler_characters` longer.
    Raises `Unsatisfiable`. Work is bounded whatever the schema says.
    """
    for depth in _DEPTHS:
        try:
            return _Maker(schema, seed, filler_characters, depth).value(schema, 0, seed)
        except Unsatisfiable as error:
            refusal = error
        except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
            raise Unsatisfiable("not a JSON schema") from error
    raise refusal


@dataclass
class _Maker:
    """One attempt, with a limit on how deep values may nest."""

    root: object
    seed: int
    filler_characters: int
    max_depth: int
    nodes: int = 0
    characters: int = 0

    def value(self, schema: object, depth: int, variant: int) -> Any:  # noqa: ANN401 -- JSON
        self.nodes += 1
        if depth > self.max_depth or self.nodes > _MAX_NODES:
            raise Unsatisfiable("nests too deep")
        resolved = self._resolved(schema)
        for keyword in ("anyOf", "oneOf"):
            if isinstance(alternatives := resolved.get(keyword), Sequence):
                rest = {k: v for k, v in resolved.items() if k != keyword}
                return self._first_of(rest, alternatives, depth, variant)
        if "const" in resolved:
            return resolved["const"]
        if "enum" in resolved:
            return self._enumerated(resolved, variant)
        return self._typed(resolved, depth, variant)

    def _resolved(self, schema: object) -> Schema:
        """The schema with `$ref` and `allOf` folded in."""
        if schema is True:
            return {}
        if not isinstance(schema, Mapping):
            raise Unsatisfiable("a schema that nothing satisfies")
        for _ in range(self.max_depth):
            if "$ref" in schema:
                rest = {k: v for k, v in schema.items() if k != "$ref"}
                schema = _merged(self._referenced(schema["$ref"]), rest)
            elif isinstance(parts := schema.get("allOf"), Sequence):
                schema = {k: v for k, v in schema.items() if k != "allOf"}
                for part in parts:
                    schema = _merged(schema, {} if part is True else part)
            else:
                return schema
        raise Unsatisfiable("references without an end")

    def _referenced(self, reference: object) -> object:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise Unsatisfiable(f"cannot resolve {reference!r}")
        found: Any = self.root
        for part in reference.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise Unsatisfiable(f"cannot resolve {reference!r}") from error
        return found

    def _first_of(self, rest: Schema, options: Sequence[object], depth: int, variant: int) -> Any:  # noqa: ANN401 -- JSON
        for option in options:
            try:
                both = rest if option is True else _merged(rest, self._resolved(option))
                return self.value(both, depth + 1, variant)
            except Unsatisfiable:
                continue
        raise Unsatisfiable("no alternative can be satisfied")

    def _enumerated(self, schema: Schema, variant: int) -> Any:  # noqa: ANN401 -- JSON
        allowed = [v for v in schema["enum"] if merge.has_type(v, schema.get("type"))]
        if not allowed:
            raise Unsatisfiable("an empty enum")
        return allowed[(variant - self.seed) % len(allowed)]

    def _typed(self, schema: Schema, depth: int, variant: int) -> Any:  # noqa: ANN401 -- JSON
        refusal = Unsatisfiable("a schema without a known type")
        for name in merge.types(schema):
            try:
                return self._of_type(name, schema, depth, variant)
            except Unsatisfiable as error:
                refusal = error
        raise refusal

    def _of_type(self, name: str, schema: Schema, depth: int, variant: int) -> Any:  # noqa: ANN401 -- JSON
        match name:
            case "object":
                return self._object(schema, depth, variant)
            case "array":
                return self._array(schema, depth, variant)
            case "string":
                return self._text(schema, variant)
            case "integer" | "number":
                return _number(schema, variant - self.seed, whole=name == "integer")
            case "boolean":
                return (variant - self.seed) % 2 == 0
            case "null":
                return None
        raise Unsatisfiable("a schema without a known type")

    def _object(self, schema: Schema, depth: int, variant: int) -> dict[str, object]:
        known = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        names = list(dict.fromkeys(schema.get("required", ())))
        least = schema.get("minProperties", 0)
        names += [name for name in known if name not in names][: max(0, least - len(names))]
        names += [f"member_{n}" for n in range(min(_MAX_ITEMS, least) - len(names))]
        if not all(isinstance(name, str) for name in names):
            raise Unsatisfiable("members without a name")
        if len(names) > schema.get("maxProperties", len(names)):
            raise Unsatisfiable("more members required than allowed")
        return {name: self.value(known.get(name, others), depth + 1, variant) for name in names}

    def _array(self, schema: Schema, depth: int, variant: int) -> list[object]:
        first, rest = schema.get("prefixItems", ()), schema.get("items", True)
        least = max(schema.get("minItems", 0), 1 if "contains" in schema else 0)
        if least > min(_MAX_ITEMS, schema.get("maxItems", _MAX_ITEMS)):
            raise Unsatisfiable("more items required than allowed")
        made: list[object] = []
        step = 0
        while len(made) < least and step < 2 * least + 8:
            shape = first[len(made)] if len(made) < len(first) else rest
            if len(made) == len(first) and "contains" in schema:
                shape = _merged(schema["contains"], {} if rest is True else rest)
            item = self.value(shape, depth + 1, variant + step)
            step += 1
            if not schema.get("uniqueItems") or item not in made:
                made.append(item)
        if len(made) < least:
            raise Unsatisfiable("not enough different items")
        return made

    def _text(self, schema: Schema, variant: int) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if least > min(_MAX_CHARACTERS, _MAX_CHARACTERS if most is None else most):
            raise Unsatisfiable("a text that is too long")
        if isinstance(pattern := schema.get("pattern"), str):
            try:
                return matching(pattern, least, most)
            except UnsupportedPattern as error:
                raise Unsatisfiable(f"the pattern {pattern!r}") from error
        if template := _FORMATS.get(schema.get("format", "")):
            text = template.format((variant - self.seed) % 28 + 1)
            if least <= len(text) <= (len(text) if most is None else most):
                return text
            raise Unsatisfiable("a format that does not fit the bounds")
        if most is not None:
            return self._free(variant, min(most, max(least, _WORD_CHARACTERS)))
        extra, self.filler_characters = self.filler_characters, 0
        return self._free(variant, max(least, _WORD_CHARACTERS)) + prose(variant + 1, extra)

    def _free(self, variant: int, characters: int) -> str:
        self.characters += characters
        if self.characters > _MAX_CHARACTERS:
            raise Unsatisfiable("texts that are too long")
        return prose(variant, characters)


def _number(schema: Schema, variant: int, *, whole: bool) -> int | float:
    try:
        return number(schema, variant, whole=whole)
    except NoNumber as error:
        raise Unsatisfiable(str(error)) from error


def _merged(left: object, right: object) -> Schema:
    try:
        return merge.merged(left, right)
    except merge.Conflict as error:
        raise Unsatisfiable(str(error)) from error
