"""Seals: readable by the tenant, the purpose and the keys they were made for, by nothing else."""

import base64
import itertools

import pytest

from turnwire.pipelines.protocol.errors import Internal, InvalidEncryptedContent
from turnwire.pipelines.protocol.include import ENCRYPTED
from turnwire.pipelines.sealing import (
    KEY_BYTES,
    Keyring,
    Sealer,
    keys_in,
    reasoning_seal,
)

OLD, NEW = bytes(range(KEY_BYTES)), bytes(range(100, 100 + KEY_BYTES))
TEXT = "Hm, well: \u00e4\U0001f600"


def refused(sealer: Sealer, sealed: str) -> str:
    with pytest.raises(InvalidEncryptedContent) as found:
        sealer.open("reasoning", sealed, "input[3]")
    assert found.value.param == "input[3].encrypted_content"
    assert found.value.status == 400
    return found.value.message


@pytest.mark.parametrize("text", [TEXT, "", "x" * 1_000_000], ids=["some", "none", "much"])
def test_what_is_sealed_opens_again(text: str) -> None:
    sealer = Sealer("acme", Keyring(OLD))
    sealed = sealer.seal("reasoning", text)
    assert sealer.open("reasoning", sealed, "x") == text
    assert text == "" or text not in sealed
    assert sealed.isascii()


def test_half_a_surrogate_pair_is_sealed_as_it_is_sent() -> None:
    sealer = Sealer("acme", Keyring(OLD))
    assert sealer.open("reasoning", sealer.seal("reasoning", "a\ud83d"), "x") == "a?"


def test_no_bit_can_be_changed_and_no_byte_left_out() -> None:
    sealer = Sealer("acme", Keyring(OLD))
    data = base64.urlsafe_b64decode(sealer.seal("reasoning", TEXT))
    for at, bit in itertools.product(range(len(data)), (0x01, 0x80)):
        changed = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
        refused(sealer, base64.urlsafe_b64encode(changed).decode())
    for length in range(len(data)):
        refused(sealer, base64.urlsafe_b64encode(data[:length]).decode())


@pytest.mark.parametrize("sealed", ["gAAAAABforeign", "a", "\u00e4", " ", "===", "\0" * 99])
def test_what_is_no_seal_is_refused_without_being_quoted(sealed: str) -> None:
    assert sealed * 2 not in refused(Sealer("acme", Keyring(OLD)), sealed * 2)


def test_another_tenant_another_purpose_and_another_deployment_cannot_open_it() -> None:
    ring = Keyring(OLD)
    sealed = Sealer("acme", ring).seal("reasoning", TEXT)
    refused(Sealer("other", ring), sealed)
    refused(Sealer("acme", Keyring(NEW)), sealed)
    refused(Sealer("acme"), sealed)
    with pytest.raises(InvalidEncryptedContent):
        Sealer("acme", ring).open("compaction", sealed, "x")


def test_the_first_key_seals_and_all_open() -> None:
    old, both = Sealer("acme", Keyring(OLD)), Sealer("acme", Keyring(NEW + OLD))
    assert both.open("reasoning", old.seal("reasoning", TEXT), "x") == TEXT
    sealed = both.seal("reasoning", TEXT)
    assert Sealer("acme", Keyring(NEW)).open("reasoning", sealed, "x") == TEXT
    refused(old, sealed)


def test_a_keyring_travels_in_one_piece_and_shows_no_key() -> None:
    ring = Keyring(NEW + OLD)
    assert ring.packed() == NEW + OLD
    assert repr(ring) == "<Keyring of 2>"
    assert repr(Sealer("acme", ring)) == "Sealer(tenant='acme', keyring=<Keyring of 2>)"
    with pytest.raises(Internal):
        Sealer("acme").seal("reasoning", TEXT)


def test_reasoning_is_sealed_only_where_it_is_included() -> None:
    assert reasoning_seal(Keyring(OLD), "acme", ("message.output_text.logprobs",)) is None
    seal = reasoning_seal(Keyring(OLD), "acme", (ENCRYPTED,))
    assert seal is not None
    assert Sealer("acme", Keyring(OLD)).open("reasoning", seal(TEXT), "x") == TEXT


def test_a_key_file_has_a_key_a_line() -> None:
    text = f"# new\n{NEW.hex()}  # since today\n\n{OLD.hex().upper()}\n"
    assert keys_in(text) == NEW + OLD


@pytest.mark.parametrize(
    "text", ["", "# none\n", OLD.hex()[2:], f"{OLD.hex()}\nxyz", OLD.hex() * 2]
)
def test_a_key_file_that_is_wrong_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="key") as found:
        keys_in(text)
    assert OLD.hex()[2:] not in str(found.value)
