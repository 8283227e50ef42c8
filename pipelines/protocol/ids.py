"""Ids as the API writes them: `prefix_suffix`. Clients drop ids without an underscore."""

from collections.abc import Callable

RandomBytes = Callable[[int], bytes]
"""Where randomness comes from: `os.urandom` in processes, a counter in tests."""

_SUFFIX_BYTES = 16


def new_id(prefix: str, random_bytes: RandomBytes) -> str:
    """A new id, for example `msg_` and 32 hexadecimal digits."""
    return f"{prefix}_{random_bytes(_SUFFIX_BYTES).hex()}"
