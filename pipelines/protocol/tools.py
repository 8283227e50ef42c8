"""Tools and instructions of a request: parsed once, then known by the hash of their raw bytes.

Every client sends them again with every turn, 19-38 KB that rarely change.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta, Raw

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.codec import fingerprint, read
from turnwire.pipelines.protocol.errors import InvalidRequest


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
    """The list as the model may see it: function tools only."""
    names: frozenset[tuple[str, str]]
    """Kind and name of every named tool."""
    unsupported: int


class _Kind(msgspec.Struct, frozen=True):
    type: str
    name: Any = None


Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]


class _Function(msgspec.Struct, frozen=True):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Choice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[dict[str, Any]] | None = None


_lists = msgspec.json.Decoder(list[Raw] | None)
_kinds = msgspec.json.Decoder(_Kind)
_functions = msgspec.json.Decoder(_Function)
_choices = msgspec.json.Decoder(_Choice)
_texts = msgspec.json.Decoder(str | None)


def parse_instructions(raw: Json) -> Instructions:
    return Instructions(fingerprint(raw), read(_texts.decode, raw, "instructions"), raw)


def parse_tools(raw: Json) -> Tools:
    """Any kind of tool is legal; only functions reach the model."""
    echo: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    names: set[tuple[str, str]] = set()
    tools: list[Raw] | None = read(_lists.decode, raw, "tools")
    for index, tool in enumerate(tools or ()):
        at = f"tools[{index}]"
        kind = read(_kinds.decode, tool, at)
        members = read(msgspec.json.decode, tool, at)
        if kind.type == "function":
            members = _function(tool, members, at)
            shown.append(members)
        if isinstance(kind.name, str):
            names.add((kind.type, kind.name))
        echo.append(members)
    return Tools(
        key=fingerprint(msgspec.json.encode(echo, order="sorted")),
        echo=msgspec.json.encode(echo),
        shown=msgspec.json.encode(shown),
        names=frozenset(names),
        unsupported=len(echo) - len(shown),
    )


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


def parse_tool_choice(raw: Json, tools: Tools) -> Json:
    """`auto`, `none`, `required`, a named tool, `allowed_tools`, or a hosted kind."""
    if raw == b"null":
        return b'"auto"'
    if raw in (b'"auto"', b'"none"', b'"required"'):
        return raw
    if raw.startswith(b'"'):
        raise InvalidRequest(
            "Invalid 'tool_choice': expected 'auto', 'none', 'required' or an object.",
            "tool_choice",
        )
    choice = read(_choices.decode, raw, "tool_choice")
    if choice.type in ("function", "custom"):
        if choice.name is None:
            raise InvalidRequest("Invalid 'tool_choice.name': it is required.", "tool_choice.name")
        if (choice.type, choice.name) not in tools.names:
            raise InvalidRequest(
                "Invalid 'tool_choice': it names a tool that is not in 'tools'.", "tool_choice"
            )
    elif choice.type == "allowed_tools" and (choice.tools is None or choice.mode is None):
        raise InvalidRequest(
            "Invalid 'tool_choice': 'allowed_tools' needs 'mode' and 'tools'.", "tool_choice"
        )
    return raw


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
