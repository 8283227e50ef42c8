"""The binding refuses what it does not know, before anything is computed."""

import ctypes
import importlib.metadata

import pytest

from turnwire.actors.engines import llama_binding
from turnwire.pipelines.protocol.errors import Internal


def test_another_version_of_the_wheel_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2026.10.11550")
    with pytest.raises(Internal, match=r"2026\.10\.11550.*needs 2026\.10\.11549"):
        llama_binding._library_path()


def test_a_build_of_the_same_version_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2026.10.11549+cu128")
    assert llama_binding._library_path().is_file()


def test_a_missing_wheel_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(Internal, match="xllamacpp==2026"):
        llama_binding._library_path()


def test_another_layout_is_refused_with_the_fields_that_differ() -> None:
    params = llama_binding.library().llama_context_default_params()
    llama_binding._check_layout(params, llama_binding.DEFAULTS)
    params.n_ctx, params.kv_unified = 77, True
    with pytest.raises(Internal, match=r"\['n_ctx', 'kv_unified'\]"):
        llama_binding._check_layout(params, llama_binding.DEFAULTS)


@pytest.mark.parametrize(("policy", "warned"), [("passive", False), ("active", True)])
def test_threads_that_will_spin_are_warned_of(
    policy: str, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    llama_binding.check_wait_policy.cache_clear()
    llama_binding.check_wait_policy()
    llama_binding.check_wait_policy()
    assert caplog.text.count("llama.wait_policy") == int(warned)


def test_the_structs_are_as_large_as_those_of_the_pinned_header() -> None:
    sizes = {
        struct: ctypes.sizeof(struct)
        for struct in (
            llama_binding.Batch,
            llama_binding.ModelParams,
            llama_binding.ContextParams,
            llama_binding.SamplerChainParams,
        )
    }
    assert list(sizes.values()) == [56, 80, 168, 1]
