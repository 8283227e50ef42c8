"""The keys that seals are made with, from their file; made there once, where none is named."""

import os
import secrets
from pathlib import Path

from turnwire.cluster.settings import Settings, SettingsError
from turnwire.pipelines.sealing import KEY_BYTES, keys_in

FILE = "sealing.keys"
_TEXT = """\
# What clients carry for this server (encrypted_content) is sealed with the first key; all open.
# To rotate, put a new key in front: openssl rand -hex 32. Gateways read this when they start.
"""


def read(settings: Settings) -> bytes:
    """For a `Keyring`. Raises SettingsError for a file that cannot be used."""
    named = settings.sealing_key_file
    path = Path(named) if named else Path(settings.data) / FILE
    try:
        if not named:
            _make(path)
        return keys_in(path.read_text())
    except OSError as error:
        message = f"sealing_key_file {path} cannot be read: {error.strerror}"
        raise SettingsError(message) from None
    except ValueError as error:
        raise SettingsError(f"sealing_key_file {path}: {error}") from None


def _make(path: Path) -> None:
    """Whole or not at all, and never over one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(opened, "w") as file:
            file.write(f"{_TEXT}{secrets.token_hex(KEY_BYTES)}\n")
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
