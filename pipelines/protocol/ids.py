"""Ids as the API writes them: `prefix_suffix`. Clients drop ids without an underscore."""

import re
from collections.abc import Callable

RandomBytes = Callable[[int], bytes]
"""Where randomness comes from: `os.urandom` in processes, a counter in tests."""

_SUFFIX_BYTES = 16
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


def new_id(prefix: str, random_bytes: RandomBytes) -> str:
    """A new id, for example `msg_` and 32 hexadecimal digits."""
    return f"{prefix}_{random_bytes(_SUFFIX_BYTES).hex()}"


def output_item_id(prefix: str, response_id: str, index: int) -> str:
    """Of the item in that place of a response."""
    return f"{prefix}_{response_id.partition('_')[2]}{index:02x}"


def response_of(item_id: str) -> str | None:
    """The response that an output item belongs to; None for ids that are not made so."""
    suffix = item_id.partition("_")[2]
    digits = 2 * _SUFFIX_BYTES
    return f"resp_{suffix[:digits]}" if len(suffix) > digits else None


def is_plain(id: str) -> bool:
    """Could it be one that was made here?"""
    return _PLAIN.match(id) is not None
