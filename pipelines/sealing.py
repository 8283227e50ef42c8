"""Text that clients carry for us and cannot read: sealed for one tenant and one purpose. Pure.

A seal is base64 of a version, the id of its key, a nonce, and the text under AES-GCM-SIV with
tenant and purpose as associated data. The nonce is made from the text, which that cipher is built
to bear, so equal text has one seal and sealing needs no randomness. The first key seals, all keys
open: a new one in front, the old ones behind it as long as what they sealed is to be taken back.
"""

import hashlib
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from turnwire.pipelines.protocol.errors import Internal, InvalidEncryptedContent
from turnwire.pipelines.protocol.include import ENCRYPTED

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

Purpose = Literal["reasoning", "compaction"]
Seal = Callable[[str], str]

KEY_BYTES = 32

_VERSION = b"\x01"
_ID_BYTES = 4
_NONCE_BYTES = 12
_HEAD_BYTES = len(_VERSION) + _ID_BYTES + _NONCE_BYTES


class Keyring:
    """The keys of a deployment. Filled once, before anything is sealed or opened."""

    def __init__(self, keys: bytes = b"") -> None:
        """`keys`: each of `KEY_BYTES`, one behind the other."""
        self._keys: dict[bytes, bytes] = {}
        self._ciphers: dict[bytes, AESGCMSIV] = {}
        self.fill(keys)

    def fill(self, keys: bytes) -> None:
        every = [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
        self._keys = {_key_id(key): key for key in every}

    def packed(self) -> bytes:
        """As `fill` takes them."""
        return b"".join(self._keys.values())

    def __repr__(self) -> str:
        return f"<Keyring of {len(self._keys)}>"

    def first(self) -> bytes:
        """The id of the key that seals. Raises Internal when there is none."""
        if not self._keys:
            raise Internal("no key to seal with")
        return next(iter(self._keys))

    def key(self, key_id: bytes) -> bytes | None:
        return self._keys.get(key_id)

    def cipher(self, key_id: bytes) -> "AESGCMSIV | None":
        cipher = self._ciphers.get(key_id)
        if cipher is None and (key := self._keys.get(key_id)) is not None:
            # 8 MB and 30 ms, which a process that never sees a seal is spared.
            from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

            cipher = self._ciphers[key_id] = AESGCMSIV(key)
        return cipher


@dataclass(frozen=True, slots=True)
class Sealer:
    """Seals and opens for one tenant."""

    tenant: str
    keyring: Keyring = field(default_factory=Keyring)

    def seal(self, purpose: Purpose, text: str) -> str:
        key_id = self.keyring.first()
        key, cipher = self.keyring.key(key_id), self.keyring.cipher(key_id)
        assert key is not None, "it is the first of the ring"
        assert cipher is not None, "it is the first of the ring"
        data, bound = text.encode(errors="replace"), self._bound(purpose)
        nonce = hashlib.blake2b(bound + data, digest_size=_NONCE_BYTES, key=key).digest()
        sealed = cipher.encrypt(nonce, data, bound)
        return urlsafe_b64encode(_VERSION + key_id + nonce + sealed).decode()

    def open(self, purpose: Purpose, sealed: str, at: str) -> str:
        """The text. Raises InvalidEncryptedContent about the field `at`."""
        from cryptography.exceptions import InvalidTag

        try:
            data = b64decode(sealed, altchars=b"-_", validate=True)
            cipher = self.keyring.cipher(data[1 : 1 + _ID_BYTES])
            if data[:1] == _VERSION and cipher is not None:
                nonce = data[_HEAD_BYTES - _NONCE_BYTES : _HEAD_BYTES]
                return cipher.decrypt(nonce, data[_HEAD_BYTES:], self._bound(purpose)).decode()
        except (ValueError, InvalidTag):
            pass
        raise InvalidEncryptedContent(
            f"The encrypted content of '{at}' could not be verified: it was changed, or sealed by "
            "another server or for another project. Leave that item out.",
            f"{at}.encrypted_content",
        )

    def _bound(self, purpose: Purpose) -> bytes:
        return b"turnwire\0%b\0%b" % (purpose.encode(), self.tenant.encode())


def reasoning_seal(keyring: Keyring, tenant: str, include: Iterable[str]) -> Seal | None:
    """How a response seals what its model thought; None: its request did not ask for it."""
    if ENCRYPTED not in include:
        return None
    sealer = Sealer(tenant, keyring)
    return lambda text: sealer.seal("reasoning", text)


def keys_in(text: str) -> bytes:
    """The keys of a key file: one a line in hexadecimal, `#` starts a comment.

    Raises ValueError, which names a line and never what is in it.
    """
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        try:
            key = bytes.fromhex(words)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise ValueError(f"line {number} is not a key of {2 * KEY_BYTES} hexadecimal digits")
        keys.append(key)
    if not keys:
        raise ValueError("there is no key in it")
    return b"".join(keys)


def _key_id(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=_ID_BYTES, person=b"key id").digest()
