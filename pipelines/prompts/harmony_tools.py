"""Functions as gpt-oss was trained to read them: TypeScript types with comments."""

from typing import Any

import msgspec

_PROPERTY_INDENT = "    "
_VARIANT_INDENT = "   "


def function_text(tool: dict[str, Any]) -> str:
    """One function of a namespace."""
    description = tool.get("description") or ""
    comment = "".join(f"// {line}\n" for line in description.split("\n")) if description else ""
    parameters = tool.get("parameters")
    given = "()" if parameters is None else f"(_: {_type(parameters, '')})"
    return f"{comment}type {tool['name']} = {given} => any;"


def _type(schema: object, indent: str) -> str:
    if not isinstance(schema, dict):
        return "any"
    if isinstance(variants := schema.get("oneOf"), list):
        inner = indent + _VARIANT_INDENT
        return "".join(f"\n{indent} | {_type(variant, inner)}" for variant in variants)
    match schema.get("type"):
        case list() as names:
            return " | ".join(_simple(name) for name in names if isinstance(name, str))
        case "object":
            return _object(schema, indent)
        case "array":
            items = schema.get("items")
            return "Array<any>" if items is None else f"{_type(items, indent)}[]"
        case "string":
            words = _words(schema)
            return " | ".join(f'"{word}"' for word in words) or "string"
        case "number" | "integer" | "boolean" as name:
            return _simple(name)
        case _:
            return "any"


def _simple(name: str) -> str:
    return "number" if name == "integer" else name


def _words(schema: dict[str, Any]) -> list[str]:
    allowed = schema.get("enum")
    return [word for word in allowed if isinstance(word, str)] if isinstance(allowed, list) else []


def _object(schema: dict[str, Any], indent: str) -> str:
    described = schema.get("description")
    comment = f"{indent}// {described}\n" if isinstance(described, str) else ""
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    properties = schema.get("properties")
    members = properties.items() if isinstance(properties, dict) else ()
    text = "".join(_property(name, value, indent, name in needed) for name, value in members)
    return f"{comment}{{\n{text}{indent}}}"


def _property(name: str, schema: object, indent: str, needed: bool) -> str:
    schema = schema if isinstance(schema, dict) else {}
    label = name if needed else f"{name}?"
    comments = _comments(schema, indent)
    variants = schema.get("oneOf")
    if not isinstance(variants, list):
        default = _default(schema)
        kind = _or_null(schema, _type(schema, indent + _PROPERTY_INDENT))
        return f"{comments}{indent}{label}: {kind},{f' // {default}' if default else ''}\n"
    if default := _default(schema):
        comments += f"{indent}// {default}\n"
    own = isinstance(schema.get("description"), str)
    lines = "".join(
        f"{indent} | {_variant(variant, indent, described=not (own and index == 0))}\n"
        for index, variant in enumerate(variants)
    )
    return f"{comments}{indent}{label}:\n{lines}{indent},\n"


def _variant(schema: object, indent: str, *, described: bool) -> str:
    kind = _type(schema, indent + _VARIANT_INDENT)
    if not isinstance(schema, dict):
        return kind
    description = schema.get("description") if described else None
    said = [part for part in (description, _default(schema)) if isinstance(part, str) and part]
    return _or_null(schema, kind) + (f" // {' '.join(said)}" if said else "")


def _comments(schema: dict[str, Any], indent: str) -> str:
    """Title, description and examples; with variants, the description comes last."""
    title, description = schema.get("title"), schema.get("description")
    titled = f"{indent}// {title}\n{indent}//\n" if isinstance(title, str) else ""
    described = f"{indent}// {description}\n" if isinstance(description, str) else ""
    examples = schema.get("examples")
    examples = examples if isinstance(examples, list) else []
    listed = f"{indent}// Examples:\n" if examples else ""
    listed += "".join(f'{indent}// - "{text}"\n' for text in examples if isinstance(text, str))
    if "oneOf" in schema:
        return titled + listed + described
    return titled + described + listed


def _default(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    if isinstance(value, str) and "enum" in schema:
        return f"default: {value}"
    return f"default: {msgspec.json.encode(value).decode()}"


def _or_null(schema: dict[str, Any], kind: str) -> str:
    return f"{kind} | null" if schema.get("nullable") is True and "null" not in kind else kind
