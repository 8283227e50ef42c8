"""Tools and instructions of a request: parsed once, then known by the hash of their raw bytes.

Every client sends them again with every turn, 19-38 KB that rarely change.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta, Raw

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.codec import check_portable, fingerprint, read


class Instructions(msgspec.Struct, frozen=True):
    """`instructions`; `text` is None when there are none."""

    key: bytes
    text: str | None
    json: Json


class Tools(msgspec.Struct, frozen=True):
    """`tools`."""

    key: bytes
    """The same for lists that differ only in the order of members."""
    echo: Json
    """The list as the response repeats it: function tools have all five members."""
    shown: Json
    """The list as the model may see it: functions, those of namespaces flattened, and custom
    tools with `parameters` like those of a function of one string."""
    names: frozenset[tuple[str, str]]
    """Kind and name of every named tool."""
    dropped: tuple[str, ...]
    """Kind of each tool that nothing here could run: the model does not see it."""
    namespaced: dict[str, tuple[str, str]] = {}
    """Namespace and name of each tool that is shown under another name."""
    custom: tuple[str, ...] = ()
    """Names of custom tools."""


class _Kind(msgspec.Struct, frozen=True):
    type: str
    name: Any = None


Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]


class _Function(msgspec.Struct, frozen=True):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _InputFormat(msgspec.Struct, frozen=True):
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] = "lark"
    definition: str = ""


class _Custom(msgspec.Struct, frozen=True):
    name: Name
    description: str | None = None
    format: _InputFormat | None = None


class _Namespace(msgspec.Struct, frozen=True):
    name: Name
    tools: list[Raw] = []


_lists = msgspec.json.Decoder(list[Raw] | None)
_kinds = msgspec.json.Decoder(_Kind)
_functions = msgspec.json.Decoder(_Function)
_customs = msgspec.json.Decoder(_Custom)
_namespaces = msgspec.json.Decoder(_Namespace)
_texts = msgspec.json.Decoder(str | None)


def parse_instructions(raw: Json) -> Instructions:
    return Instructions(fingerprint(raw), read(_texts.decode, raw, "instructions"), raw)


def parse_tools(raw: Json) -> Tools:
    """Any kind of tool is legal; functions, also in namespaces, and custom ones reach the model."""
    echo: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    names: set[tuple[str, str]] = set()
    namespaced: dict[str, tuple[str, str]] = {}
    dropped: list[str] = []
    tools: list[Raw] | None = read(_lists.decode, raw, "tools")
    for index, tool in enumerate(tools or ()):
        at = f"tools[{index}]"
        kind = read(_kinds.decode, tool, at)
        members = read(msgspec.json.decode, tool, at)
        check_portable(tool, at)
        if kind.type == "function":
            members = _function(tool, members, at)
            shown.append(members)
        elif kind.type == "custom" and kind.name is not None:
            shown.append(_custom(tool, at))
        elif kind.type == "namespace":
            dropped += _flatten(tool, at, shown, namespaced)
        else:
            dropped.append(kind.type)
        if isinstance(kind.name, str):
            names.add((kind.type, kind.name))
        echo.append(members)
    return Tools(
        key=fingerprint(msgspec.json.encode(echo, order="sorted")),
        echo=msgspec.json.encode(echo),
        shown=msgspec.json.encode(shown),
        names=frozenset(names),
        dropped=tuple(dropped),
        namespaced=namespaced,
        custom=tuple(tool["name"] for tool in shown if tool["type"] == "custom"),
    )


def flat_name(namespace: str, name: str) -> str:
    """A tool of a namespace, as the model knows it."""
    return f"{namespace}__{name}"


def _flatten(
    tool: Raw, at: str, shown: list[dict[str, Any]], namespaced: dict[str, tuple[str, str]]
) -> list[str]:
    """Show the functions and custom tools of a namespace; the kinds of all others."""
    namespace = read(_namespaces.decode, tool, at)
    others: list[str] = []
    for index, inner in enumerate(namespace.tools):
        inside = f"{at}.tools[{index}]"
        kind = read(_kinds.decode, inner, inside)
        if kind.type == "function":
            made = _function(inner, read(msgspec.json.decode, inner, inside), inside)
        elif kind.type == "custom":
            made = _custom(inner, inside)
        else:
            others.append(kind.type)
            continue
        name = flat_name(namespace.name, made["name"])
        namespaced[name] = namespace.name, made["name"]
        shown.append(made | {"name": name})
    return others


def _custom(tool: Raw, at: str) -> dict[str, Any]:
    """A custom tool as models can call it. `lark`: the grammar of its input, if that is one."""
    custom = read(_customs.decode, tool, at)
    given: dict[str, Any] = {"type": "string"}
    said = [custom.description] if custom.description else []
    lark = {}
    if custom.format is not None and custom.format.type == "grammar":
        if custom.format.syntax == "regex":
            given["pattern"] = f"^(?:{custom.format.definition})$"
        else:
            lark["lark"] = custom.format.definition
        said.append(f"The input follows this {custom.format.syntax} grammar:")
        said.append(custom.format.definition)
    return lark | {
        "type": "custom",
        "name": custom.name,
        "description": "\n".join(said) or None,
        "parameters": {
            "type": "object",
            "properties": {"input": given},
            "required": ["input"],
            "additionalProperties": False,
        },
        "strict": True,
    }


def _function(tool: Raw, members: dict[str, Any], at: str) -> dict[str, Any]:
    """Clients that validate the echo need all five members."""
    function = read(_functions.decode, tool, at)
    return {
        "type": "function",
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
        "strict": function.strict,
    } | members


class _Keyed(Protocol):
    @property
    def key(self) -> bytes: ...


V = TypeVar("V", bound=_Keyed)


class Parsed(Generic[V]):
    """Results of `parse` by the raw bytes they came from; the least recently used are dropped.

    Documents whose results have the same key share one result, so that a caller can compare by
    identity.
    """

    def __init__(
        self, parse: Callable[[Json], V], max_entries: int = 8, max_bytes: int = 4 << 20
    ) -> None:
        self._parse = parse
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._by_hash: OrderedDict[bytes, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._latest: tuple[Json, V] | None = None

    def get(self, raw: Raw) -> V:
        """The parsed document. Raises what `parse` raises."""
        document = bytes(raw)
        # Comparing is twenty times cheaper than hashing, and almost always enough.
        if self._latest is not None and self._latest[0] == document:
            return self._latest[1]
        value = self._look_up(document)
        self._latest = document, value
        return value

    def _look_up(self, document: Json) -> V:
        hashed = fingerprint(document)
        if known := self._by_hash.get(hashed):
            self._by_hash.move_to_end(hashed)
            return known[0]
        value = self._parse(document)
        value = next((old for old, _ in self._by_hash.values() if old.key == value.key), value)
        self._by_hash[hashed] = value, len(document)
        self._bytes += len(document)
        while len(self._by_hash) > 1 and (
            len(self._by_hash) > self._max_entries or self._bytes > self._max_bytes
        ):
            self._bytes -= self._by_hash.popitem(last=False)[1][1]
        return value
