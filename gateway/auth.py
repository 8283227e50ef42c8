"""Who may come in: bearer keys, and the `Host` and `Origin` of requests that a browser may send."""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from turnwire.pipelines.config import GatewaySettings
from turnwire.pipelines.protocol.errors import Forbidden, InvalidApiKey


@dataclass(frozen=True, slots=True)
class Principal:
    """On whose account a request runs. `key_id` names the key without giving it away."""

    tenant: str
    key_id: str


KEYLESS = Principal("local", "none")


def is_loopback(host: str) -> bool:
    """Does `host`, a name or an address without a port, mean this machine only?"""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Keys:
    """Bearer keys, kept as their SHA-256 only."""

    def __init__(self, keys: Iterable[tuple[str, str]]) -> None:
        """Pairs of key and tenant."""
        self._principals: dict[bytes, Principal] = {}
        for key, tenant in keys:
            digest = _digest(key)
            self._principals[digest] = Principal(tenant, f"key_{digest.hex()[:12]}")

    def __bool__(self) -> bool:
        return bool(self._principals)

    def principal(self, authorization: str) -> Principal:
        """Raises InvalidApiKey."""
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise InvalidApiKey("No API key: send it as 'Authorization: Bearer KEY'.")
        digest = _digest(key.strip())
        found: Principal | None = None
        for known, principal in self._principals.items():
            if hmac.compare_digest(known, digest):
                found = principal
        if found is None:
            raise InvalidApiKey("The API key is not known to this server.")
        return found


def load_keys(settings: GatewaySettings) -> Keys:
    """The static key and the key file. Raises ValueError for a file that cannot be understood."""
    pairs: list[tuple[str, str]] = []
    if settings.api_key is not None:
        pairs.append((settings.api_key.get_secret_value(), "default"))
    if settings.key_file is not None:
        text = Path(settings.key_file).read_text(encoding="utf-8")
        pairs += _key_lines(text, settings.key_file)
    return Keys(pairs)


def _key_lines(text: str, name: str) -> Iterable[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        if len(fields) != 2:
            raise ValueError(f"line {number} of the key file {name} is not 'key tenant'")
        if fields[1] == KEYLESS.tenant:
            raise ValueError(f"line {number} of the key file {name}: {fields[1]!r} is reserved")
        yield fields[0], fields[1]


class Door:
    """Lets requests in, or raises the reason why not."""

    def __init__(self, settings: GatewaySettings, keys: Keys) -> None:
        """Raises ValueError for a keyless server that others could reach."""
        if not keys and not is_loopback(settings.host):
            raise ValueError(
                f"refusing to serve {settings.host} without an API key: "
                "set api_key or key_file, or bind to 127.0.0.1"
            )
        self._keys = keys
        self._origins = {origin.lower().rstrip("/") for origin in settings.allowed_origins}
        self._hosts = {host.lower() for host in settings.allowed_hosts} | {settings.host.lower()}
        self._any_host = "*" in self._hosts or (bool(keys) and not settings.allowed_hosts)
        """With keys a page that reaches us under a foreign name still has no key to send."""

    def admit(self, headers: Mapping[str, str]) -> Principal:
        """Raises Forbidden or InvalidApiKey."""
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in self._origins:
            raise Forbidden("Requests from this origin are not allowed here.")
        if not self._any_host and not self._known_host(headers.get("host", "")):
            raise Forbidden("This server does not answer to that host name.")
        if not self._keys:
            return KEYLESS
        return self._keys.principal(headers.get("authorization", ""))

    def _known_host(self, value: str) -> bool:
        host = _without_port(value.lower())
        return host in self._hosts or is_loopback(host)


def _without_port(value: str) -> str:
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.partition(":")[0]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
