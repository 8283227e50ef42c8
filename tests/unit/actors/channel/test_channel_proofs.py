"""The doors without a connection: proofs, recorded and turned around, and private folders."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from turnwire.actors.channel_doors import (
    NONCE_BYTES,
    DoorClosed,
    SecretCallerDoor,
    SecretListenerDoor,
    UnixListenerDoor,
    private_socket_path,
    prove,
)

FINGERPRINT = "ab" * 32


class BareCallerDoor(SecretCallerDoor):
    """The caller's side without TLS below it."""

    def greet(self, transport: asyncio.BaseTransport) -> bytes | None:
        return None


def challenged(secret: bytes) -> tuple[SecretListenerDoor, SecretCallerDoor, bytes]:
    """Both doors up to the caller's proof."""
    listener, caller = SecretListenerDoor(secret, FINGERPRINT), BareCallerDoor(secret, FINGERPRINT)
    challenge = listener.greet(asyncio.BaseTransport())
    assert challenge is not None
    proof = caller.answer(challenge)
    assert proof is not None
    return listener, caller, proof


def test_both_sides_pass_when_both_hold_the_secret() -> None:
    listener, caller, proof = challenged(b"s")
    answer = listener.answer(proof)
    assert answer is not None
    assert caller.answer(answer) is None
    assert listener.passed
    assert caller.passed


def test_a_recorded_proof_opens_no_second_connection() -> None:
    _, _, recorded = challenged(b"s")
    fresh = SecretListenerDoor(b"s", FINGERPRINT)
    with pytest.raises(DoorClosed):
        fresh.answer(recorded)
    assert not fresh.passed


def test_a_recorded_challenge_and_answer_fool_no_second_caller() -> None:
    listener, _, proof = challenged(b"s")
    challenge, answer = listener.greet(asyncio.BaseTransport()), listener.answer(proof)
    assert challenge is not None
    assert answer is not None
    fresh = BareCallerDoor(b"s", FINGERPRINT)
    fresh.answer(challenge)
    with pytest.raises(DoorClosed):
        fresh.answer(answer)
    assert not fresh.passed


def test_a_callers_own_proof_sent_back_to_it_is_no_proof() -> None:
    _, caller, proof = challenged(b"s")
    with pytest.raises(DoorClosed):
        caller.answer(proof[NONCE_BYTES:])


def test_a_proof_for_another_certificate_is_refused() -> None:
    listener = SecretListenerDoor(b"s", FINGERPRINT)
    challenge = listener.greet(asyncio.BaseTransport())
    assert challenge is not None
    nonce = bytes(NONCE_BYTES)
    with pytest.raises(DoorClosed):
        listener.answer(nonce + prove(b"s", b"caller", challenge, nonce, "cd" * 32))


def test_a_proof_is_taken_once_and_a_short_challenge_never() -> None:
    listener, _, proof = challenged(b"s")
    listener.answer(proof)
    with pytest.raises(DoorClosed):
        listener.answer(proof)
    with pytest.raises(DoorClosed):
        BareCallerDoor(b"s", FINGERPRINT).answer(b"short")


def test_unreadable_credentials_are_a_refusal() -> None:
    def broken(connection: socket.socket) -> int:
        raise OSError

    class Transport(asyncio.BaseTransport):
        pass

    door = UnixListenerDoor(broken)
    with pytest.raises(DoorClosed):
        door.greet(Transport())
    assert not door.passed


def test_a_folder_others_may_enter_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError):
        private_socket_path(folder)
    folder.chmod(0o700)
    assert private_socket_path(folder).parent == folder


def test_a_link_to_a_folder_is_refused(folder: Path) -> None:
    target = folder.with_name("target")
    target.mkdir(mode=0o700)
    folder.symlink_to(target)
    with pytest.raises(PermissionError):
        private_socket_path(folder)


def test_a_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    with pytest.raises(PermissionError):
        private_socket_path(folder)


def test_a_path_too_long_for_a_socket_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="too long"):
        private_socket_path(folder / ("x" * 100))
