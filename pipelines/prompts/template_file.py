"""The chat template that came with a model, found beside its tokenizer."""

from dataclasses import dataclass
from typing import Any

import msgspec

from turnwire.pipelines.protocol.errors import Internal

_TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class TemplateFile:
    """A template's source, and the markers it may ask for."""

    source: str
    begin_marker: str = ""
    end_marker: str = ""


def load_template(tokenizer_path: str) -> TemplateFile:
    """From `tokenizer_config.json`, or `chat_template.jinja`, beside `tokenizer.json`.

    Raises Internal when there is none.
    """
    beside = tokenizer_path.removesuffix(_TOKENIZER)
    config = _members(beside + _CONFIG)
    source = _read(beside + _TEMPLATE) or _source(config.get("chat_template"))
    if beside == tokenizer_path or not source:
        raise Internal("the model has no chat template beside its tokenizer")
    return TemplateFile(source, _marker(config, "bos_token"), _marker(config, "eos_token"))


def _members(path: str) -> dict[str, Any]:
    text = _read(path)
    try:
        members = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError as error:
        raise Internal(f"the model's {_CONFIG} is no JSON") from error
    return members if isinstance(members, dict) else {}


def _source(given: object) -> str:
    """One template, or several of which one is called `default`."""
    if isinstance(given, list):
        named = {
            entry.get("name"): entry.get("template") for entry in given if isinstance(entry, dict)
        }
        given = named.get("default")
    return given if isinstance(given, str) else ""


def _marker(config: dict[str, Any], name: str) -> str:
    given = config.get(name)
    if isinstance(given, dict):
        given = given.get("content")
    return given if isinstance(given, str) else ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise Internal("the model's chat template cannot be read") from error
