"""What can be known to go wrong before anything is started: one line each, with what to do."""

import socket
from pathlib import Path

from turnwire.actors.engines import gguf_file
from turnwire.cluster import sealing_keys
from turnwire.cluster.settings import Settings, SettingsError
from turnwire.gateway.auth import is_loopback, load_keys
from turnwire.pipelines.config import MIB, LlamaSettings, ModelSettings
from turnwire.pipelines.protocol.errors import Internal

RAY_BYTES = 500 * MIB
REPLICA_BYTES = 110 * MIB
CONNECTION_BYTES = 55 * MIB


def check(settings: Settings) -> None:
    """Raises SettingsError for the first thing that is in the way."""
    _check_keys(settings)
    if settings.sealing_key_file:
        sealing_keys.read(settings)
    if settings.gateway.replicas > 1 and settings.gateway.port == 0:
        raise SettingsError("gateway.port: 0 gives each of several replicas another; name one")
    for name, pool in (("storage", settings.storage), ("billing", settings.billing)):
        if pool.replicas > 1 and pool.url.startswith("sqlite"):
            raise SettingsError(
                f"{name}.replicas: SQLite has one writer; set 1, or {name}.url to a PostgreSQL"
            )
    for model in settings.models:
        _check_model(model)
    if settings.ray.address is None:
        _check_port(settings.gateway.host, settings.gateway.port)
        _check_memory(settings)


def _check_keys(settings: Settings) -> None:
    gateway = settings.gateway
    try:
        keys = load_keys(gateway)
    except OSError as error:
        raise SettingsError(
            f"gateway.key_file {gateway.key_file} cannot be read: {error.strerror}"
        ) from None
    except ValueError as error:
        raise SettingsError(f"gateway.key_file: {error}") from None
    if not keys and not is_loopback(gateway.host):
        raise SettingsError(
            f"{gateway.host} can be reached by others and no key is set: set "
            "TURNWIRE_GATEWAY__API_KEY or gateway.key_file, or serve 127.0.0.1"
        )


def _check_model(model: ModelSettings) -> None:
    if model.engine != "llama":
        return
    try:
        gguf_file.read(_model_file(model.llama))
    except Internal as error:
        raise SettingsError(f"model {model.name}: {error}") from None


def _model_file(llama: LlamaSettings) -> Path:
    return Path(llama.path) if llama.path else gguf_file.default_path()


def _check_port(host: str, port: int) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise SettingsError(f"gateway.host {host!r} is no address: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port"
            ) from None


def estimated_bytes(settings: Settings) -> int:
    """What the whole server is expected to take, roughly and rather too much."""
    gateway = settings.gateway.replicas * (
        REPLICA_BYTES + settings.connections.warm * CONNECTION_BYTES
    )
    pools = (settings.safety, settings.storage, settings.billing)
    models = sum(model.replicas * _model_bytes(model) for model in settings.models)
    replicas = 1 + sum(pool.replicas for pool in pools)  # the one is routing
    return RAY_BYTES + gateway + replicas * REPLICA_BYTES + models


def _model_bytes(model: ModelSettings) -> int:
    if model.engine != "llama":
        return REPLICA_BYTES
    file_bytes = _model_file(model.llama).stat().st_size
    return REPLICA_BYTES + 2 * file_bytes + model.llama.prompt_cache_bytes


def available_bytes() -> int:
    """What the kernel says new processes may take without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise SettingsError("the kernel does not tell how much memory is free")


def _check_memory(settings: Settings) -> None:
    needed, available = estimated_bytes(settings), available_bytes()
    if available < needed + settings.min_free_bytes:
        raise SettingsError(
            f"about {needed // MIB} MiB are needed and {available // MIB} MiB are free: "
            "serve fewer models or replicas (or lower min_free_bytes)"
        )
