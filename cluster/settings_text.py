"""The settings in force as the text of a settings file, each under its reason."""

import json
import textwrap
from collections.abc import Iterator

import sqlalchemy as sa
from pydantic import SecretStr
from sqlalchemy.exc import ArgumentError

from turnwire.cluster.settings import Settings
from turnwire.pipelines.config import Section

_WIDTH = 98


def settings_text(settings: Settings) -> str:
    """TOML that gives these settings again, but for what is secret: that is left out by name."""
    return "\n".join(_table(settings, "")).strip() + "\n"


def _table(section: Section, name: str, brackets: str = "[{}]") -> Iterator[str]:
    # A table's own values must stand before the tables inside of it.
    below: list[str] = []
    about = (type(section).__doc__ or "").partition("\n")[0] if name else ""
    if name:
        yield from ("", *_comment(about), brackets.format(name))
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        path = f"{name}.{key}" if name else key
        if isinstance(value, Section):
            below += _table(value, path)
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            for row in value:
                below += _table(row, path, "[[{}]]")
        else:
            yield from _comment(field.description or "")
            yield _line(key, value)
    yield from below


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), _WIDTH, initial_indent="# ", subsequent_indent="# "
    )


def _line(key: str, value: object) -> str:
    if value is None:
        return f"# {key}: not set"
    if isinstance(value, SecretStr):
        return f"# {key}: set, and not shown"
    if key == "url" and isinstance(value, str) and _has_password(value):
        return f"# {key}: set, and not shown for its password"
    # JSON of scalars and lists is TOML, but for one character.
    written = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{key} = {written}"


def _has_password(url: str) -> bool:
    try:
        return sa.make_url(url).password is not None
    except ArgumentError:
        return True
