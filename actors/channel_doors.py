"""Who may come in: the first words of a connection, before any other frame is looked at.

On a node the kernel vouches for the peer's user; between nodes both sides prove, inside TLS, that
they hold the listener's secret. A door only judges: the link closes what it refuses.
"""

import asyncio
import hashlib
import hmac
import os
import secrets
import socket
import ssl
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

MAX_HELLO_BYTES = 256
NONCE_BYTES = 32
_MAX_PATH_CHARACTERS = 100
_CREDENTIALS = struct.Struct("3i")
_LABEL = b"turnwire channel 1 "

PeerUid = Callable[[socket.socket], int]


class DoorClosed(Exception):
    """The peer is refused. The text goes into our log and never to the peer."""


class Door(Protocol):
    """One side of the first words. `passed` turns true when the peer may go on."""

    passed: bool

    def greet(self, transport: asyncio.BaseTransport) -> bytes | None:
        """What to say first, if anything. Raises DoorClosed."""

    def answer(self, hello: bytes) -> bytes | None:
        """What to say to the peer's words, if anything. Raises DoorClosed."""


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket, as the kernel says."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(found)[1]
    return uid


def _check_peer(transport: asyncio.BaseTransport, read_uid: PeerUid) -> None:
    try:
        uid = read_uid(transport.get_extra_info("socket"))
    except OSError as error:
        raise DoorClosed("the peer's credentials cannot be read") from error
    if uid != os.geteuid():
        raise DoorClosed(f"the peer is user {uid}")


class UnixListenerDoor:
    """Lets in processes of our own user, and says so."""

    def __init__(self, read_uid: PeerUid = peer_uid) -> None:
        self.passed = False
        self._read_uid = read_uid

    def greet(self, transport: asyncio.BaseTransport) -> bytes | None:
        _check_peer(transport, self._read_uid)
        self.passed = True
        return _LABEL

    def answer(self, hello: bytes) -> bytes | None:
        raise DoorClosed("nothing was asked")


class UnixCallerDoor:
    """Talks only to a listener of our own user, and waits for its word."""

    def __init__(self, read_uid: PeerUid = peer_uid) -> None:
        self.passed = False
        self._read_uid = read_uid

    def greet(self, transport: asyncio.BaseTransport) -> bytes | None:
        _check_peer(transport, self._read_uid)
        return None

    def answer(self, hello: bytes) -> bytes | None:
        if hello != _LABEL:
            raise DoorClosed("another protocol or version")
        self.passed = True
        return None


def prove(secret: bytes, role: bytes, first: bytes, second: bytes, fingerprint: str) -> bytes:
    """Proof of `secret` for one connection: bound to both nonces, the certificate and the role."""
    text = b"\0".join((_LABEL + role, first, second, fingerprint.encode()))
    return hmac.digest(secret, text, hashlib.sha256)


class SecretListenerDoor:
    """Asks a caller for its proof of the secret, then gives its own."""

    def __init__(self, secret: bytes, fingerprint: str) -> None:
        self.passed = False
        self._secret = secret
        self._fingerprint = fingerprint
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    def greet(self, transport: asyncio.BaseTransport) -> bytes | None:
        return self._nonce

    def answer(self, hello: bytes) -> bytes | None:
        nonce, proof = hello[:NONCE_BYTES], hello[NONCE_BYTES:]
        expected = prove(self._secret, b"caller", self._nonce, nonce, self._fingerprint)
        if self.passed or not hmac.compare_digest(proof, expected):
            raise DoorClosed("the caller does not hold the secret")
        self.passed = True
        return prove(self._secret, b"listener", nonce, self._nonce, self._fingerprint)


class SecretCallerDoor:
    """Checks the listener's certificate, proves the secret and asks for the same."""

    def __init__(self, secret: bytes, fingerprint: str) -> None:
        self.passed = False
        self._secret = secret
        self._fingerprint = fingerprint
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._expected = b""

    def greet(self, transport: asyncio.BaseTransport) -> bytes | None:
        tls = transport.get_extra_info("ssl_object")
        found = hashlib.sha256(tls.getpeercert(binary_form=True)).hexdigest()
        if not hmac.compare_digest(found, self._fingerprint):
            raise DoorClosed("the listener shows another certificate")
        return None

    def answer(self, hello: bytes) -> bytes | None:
        if not self._expected:
            return self._proof(hello)
        if self.passed or not hmac.compare_digest(hello, self._expected):
            raise DoorClosed("the listener does not hold the secret")
        self.passed = True
        return None

    def _proof(self, challenge: bytes) -> bytes:
        if len(challenge) != NONCE_BYTES:
            raise DoorClosed("no challenge of ours")
        known = self._secret, self._fingerprint
        self._expected = prove(known[0], b"listener", self._nonce, challenge, known[1])
        return self._nonce + prove(known[0], b"caller", challenge, self._nonce, known[1])


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate that lives as long as its listener."""

    pem: bytes = field(repr=False)
    """With its key."""
    fingerprint: str


def make_certificate() -> Certificate:
    """A new key and certificate. Nobody checks its name or dates: callers pin the fingerprint."""
    # Imported here, since every process of a server has a channel and few are called over TCP.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "turnwire")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem = private + certificate.public_bytes(serialization.Encoding.PEM)
    return Certificate(pem, certificate.fingerprint(hashes.SHA256()).hex())


def listener_tls(certificate: Certificate) -> ssl.SSLContext:
    """TLS 1.3 with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    # OpenSSL reads keys only from a path: one in memory, so that the key touches no disk.
    with os.fdopen(os.memfd_create("certificate"), "wb") as memory:
        memory.write(certificate.pem)
        memory.flush()
        context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}")
    return context


def caller_tls() -> ssl.SSLContext:
    """TLS 1.3 that accepts any certificate: `SecretCallerDoor` pins it before a word is said."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def private_socket_path(folder: Path) -> Path:
    """A new path in a folder nobody else can enter. Raises PermissionError or ValueError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a private folder of ours (0700)")
    path = folder / f"{secrets.token_hex(6)}.sock"
    if len(os.fsencode(path)) >= _MAX_PATH_CHARACTERS:
        raise ValueError(f"{path} is too long for a Unix socket: choose a shorter folder")
    return path
