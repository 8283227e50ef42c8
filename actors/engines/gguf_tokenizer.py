"""Builds a tokenizer.json (the Hugging Face form) from the vocabulary inside a GGUF file, once.

Byte-level BPE only. The ids are those of llama.cpp's own tokenizer.
"""

import hashlib
import tempfile
from pathlib import Path
from typing import Any, Final

import orjson

from turnwire.actors.engines.gguf_file import GgufFacts
from turnwire.pipelines.protocol.errors import Internal

_CONTROL: Final = 3
_USER_DEFINED: Final = 4

_BYTES_ONLY: Final = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}
_GPT2: Final = _BYTES_ONLY | {"use_regex": True}


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": False,
            },
            _BYTES_ONLY,
        ],
    }


def _contractions(digits: str) -> str:
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + digits + r"|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


PRE_TOKENIZERS: Final[dict[str, dict[str, Any]]] = {
    "gpt-2": _GPT2,
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _GPT2],
    },
    "llama-bpe": _split(_contractions("{1,3}")),
    "qwen2": _split(_contractions("")),
}
"""`tokenizer.ggml.pre` and how it cuts text before the merges."""


def build_tokenizer(facts: GgufFacts, folder: Path) -> Path:
    """The tokenizer file of this GGUF in `folder`, written if it is not there yet.

    A `tokenizer_config.json` with the chat template stands beside it.

    Safe for any number of processes at once: the file appears complete or not at all.
    """
    target = folder / f"{_identity(facts.path)}.tokenizer.json"
    config = target.with_name(target.name.replace("tokenizer.json", "tokenizer_config.json"))
    if target.exists() and config.exists():
        return target
    document = orjson.dumps(_document(facts))
    folder.mkdir(parents=True, exist_ok=True)
    _write(config, _config(facts))
    _write(target, document)
    return target


def _config(facts: GgufFacts) -> bytes:
    """The chat template, in the file that stands beside a tokenizer in the Hugging Face form."""
    markers = {
        f"{name}_token": facts.tokens[facts.special_ids[name]]
        for name in ("bos", "eos")
        if facts.special_ids.get(name, len(facts.tokens)) < len(facts.tokens)
    }
    return orjson.dumps(markers | {"chat_template": facts.chat_template})


def _write(target: Path, document: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".part", delete=False) as part:
        part.write(document)
    Path(part.name).replace(target)


def _identity(path: Path) -> str:
    status = path.stat()
    facts = f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}"
    return f"{path.stem}-{hashlib.blake2b(facts.encode(), digest_size=6).hexdigest()}"


def _document(facts: GgufFacts) -> dict[str, Any]:
    if facts.vocabulary_kind != "gpt2" or facts.pre_tokenizer not in PRE_TOKENIZERS:
        raise Internal(
            f"{facts.path.name} has a vocabulary of kind {facts.vocabulary_kind!r} "
            f"({facts.pre_tokenizer!r}): name a tokenizer.json for it"
        )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(token_id, facts.tokens[token_id], special=kind == _CONTROL)
            for token_id, kind in enumerate(facts.token_types)
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[facts.pre_tokenizer],
        "post_processor": None,
        "decoder": _GPT2,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": facts.pre_tokenizer == "llama-bpe",
            "vocab": {token: token_id for token_id, token in enumerate(facts.tokens)},
            "merges": [merge.split(" ", 1) for merge in facts.merges],
        },
    }


def _added(token_id: int, content: str, *, special: bool) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }
