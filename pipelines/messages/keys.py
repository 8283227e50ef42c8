"""Names of prompts: a key stands for a tenant, a model and all that was said."""

import hashlib


def root_key(tenant: str, model: str) -> bytes:
    """The key of the empty prompt: keys never cross tenants or models."""
    return hashlib.blake2b(f"{tenant}\0{model}".encode(), digest_size=16).digest()


def next_key(key: bytes, added: bytes) -> bytes:
    """The key of a prompt that is the one `key` names with `added` behind it (128 bit)."""
    return hashlib.blake2b(added, digest_size=16, key=key).digest()
