"""What stops a server before anything is started."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnwire.cluster import preflight
from turnwire.cluster.settings import Settings, SettingsError
from turnwire.pipelines.config import (
    MIB,
    GatewaySettings,
    LlamaSettings,
    ModelSettings,
)

SIMULATED = ModelSettings(name="simulated", engine="simulated")


def settings(model: ModelSettings = SIMULATED, **gateway: object) -> Settings:
    section = GatewaySettings.model_validate({"port": 0} | gateway)
    return Settings(gateway=section, models=(model,))


@pytest.fixture(autouse=True)
def _enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "available_bytes", lambda: 64 * 1024 * MIB)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_nothing_is_in_the_way_of_good_settings() -> None:
    preflight.check(settings())


def test_a_port_in_use_is_named(taken_port: int) -> None:
    with pytest.raises(SettingsError, match=f":{taken_port}: .*choose another with --port"):
        preflight.check(settings(port=taken_port))


def test_a_host_others_can_reach_needs_a_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k default\n")
    with pytest.raises(SettingsError, match="no key is set"):
        preflight.check(settings(host="0.0.0.0"))
    preflight.check(settings(host="0.0.0.0", api_key="k"))
    preflight.check(settings(host="0.0.0.0", key_file=str(keys)))


@pytest.mark.parametrize("name", ["storage", "billing"])
def test_several_writers_need_a_database_that_can_have_them(name: str) -> None:
    section = {"replicas": 2}
    with pytest.raises(SettingsError, match=rf"{name}\.replicas: SQLite has one writer"):
        preflight.check(Settings.model_validate(settings().model_dump() | {name: section}))
    section |= {"url": "postgresql://ann@db/turnwire"}  # type: ignore[dict-item]
    preflight.check(Settings.model_validate(settings().model_dump() | {name: section}))


def test_a_key_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="key_file nowhere cannot be read: No such file"):
        preflight.check(settings(key_file="nowhere"))
    keys = tmp_path / "keys"
    keys.write_text("only-one-field\n")
    with pytest.raises(SettingsError, match="line 1 of the key file"):
        preflight.check(settings(key_file=str(keys)))


def test_a_host_that_is_no_address_is_named() -> None:
    with pytest.raises(SettingsError, match="is no address"):
        preflight.check(settings(host="300.1.1.1", api_key="k"))


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"not a model", "as GGUF")])
def test_a_model_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "big.gguf"
    if content is not None:
        file.write_bytes(content)
    model = ModelSettings(name="big", engine="llama", llama=LlamaSettings(path=str(file)))
    with pytest.raises(SettingsError, match=rf"model big: cannot read big\.gguf .*{said}"):
        preflight.check(settings(model))


def test_too_little_memory_is_said_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "available_bytes", lambda: 300 * MIB)
    with pytest.raises(SettingsError, match="are needed and 300 MiB are free"):
        preflight.check(settings())


def test_more_replicas_are_estimated_to_take_more() -> None:
    more = SIMULATED.model_copy(update={"replicas": 3})
    assert preflight.estimated_bytes(settings(more)) > preflight.estimated_bytes(settings())
