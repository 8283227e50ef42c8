"""The C interface of llama.cpp inside the wheel `xllamacpp`: struct layouts, prototypes, loading.

The wheel's own Python classes do not report every sampled id, its C functions do. Layouts are those
of one exact build, so any other version is refused, and the defaults are compared after loading: a
wrong layout is an error at start, never corrupt memory.
"""

import ctypes
import importlib.metadata
import importlib.util
import logging
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_size_t, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from turnwire.pipelines.protocol.errors import Internal

log = logging.getLogger(__name__)

PINNED_VERSION = "2026.10.11549"
"""Its llama.cpp is build 11549; `include/llama.h` of the sdist is where the layouts come from."""


class Batch(ctypes.Structure):
    """`llama_batch`: the tokens of one step."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(ctypes.c_int8)),
    )


class ModelParams(ctypes.Structure):
    """`llama_model_params`."""

    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int32),
        ("load_mode", c_int32),
        ("lazy_mode", c_int32),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    )


class ContextParams(ctypes.Structure):
    """`llama_context_params`."""

    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int32),
        ("rope_scaling_type", c_int32),
        ("pooling_type", c_int32),
        ("attention_type", c_int32),
        ("flash_attn_type", c_int32),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("moe_cache_size", c_size_t),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    )


class SamplerChainParams(ctypes.Structure):
    """`llama_sampler_chain_params`."""

    _fields_ = (("no_perf", c_bool),)


LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)

SLOW: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_model_load_from_file": (c_void_p, (c_char_p, ModelParams)),
    "llama_model_free": (None, (c_void_p,)),
    "llama_init_from_model": (c_void_p, (c_void_p, ContextParams)),
    "llama_free": (None, (c_void_p,)),
    "llama_decode": (c_int32, (c_void_p, Batch)),
    "llama_sampler_sample": (c_int32, (c_void_p, c_void_p, c_int32)),
    "llama_tokenize": (c_int32, (c_void_p, c_char_p, c_int32, c_void_p, c_int32, c_bool, c_bool)),
    "llama_state_seq_get_data": (c_size_t, (c_void_p, c_void_p, c_size_t, c_int32)),
    "llama_state_seq_set_data": (c_size_t, (c_void_p, c_void_p, c_size_t, c_int32)),
}
"""Calls that take long: other Python threads run meanwhile."""

QUICK: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_log_set": (None, (LogCallback, c_void_p)),
    "llama_model_default_params": (ModelParams, ()),
    "llama_context_default_params": (ContextParams, ()),
    "llama_sampler_chain_default_params": (SamplerChainParams, ()),
    "llama_n_ctx": (c_uint32, (c_void_p,)),
    "llama_n_ctx_seq": (c_uint32, (c_void_p,)),
    "llama_n_batch": (c_uint32, (c_void_p,)),
    "llama_n_seq_max": (c_uint32, (c_void_p,)),
    "llama_n_threads": (c_int32, (c_void_p,)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_memory_seq_rm": (c_bool, (c_void_p, c_int32, c_int32, c_int32)),
    "llama_memory_seq_pos_max": (c_int32, (c_void_p, c_int32)),
    "llama_state_seq_get_size": (c_size_t, (c_void_p, c_int32)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_model_n_ctx_train": (c_int32, (c_void_p,)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_vocab_is_eog": (c_bool, (c_void_p, c_int32)),
    "llama_vocab_eos": (c_int32, (c_void_p,)),
    "llama_vocab_eot": (c_int32, (c_void_p,)),
    "llama_get_logits_ith": (c_void_p, (c_void_p, c_int32)),
    "llama_token_to_piece": (c_int32, (c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool)),
    "llama_sampler_chain_init": (c_void_p, (SamplerChainParams,)),
    "llama_sampler_chain_add": (None, (c_void_p, c_void_p)),
    "llama_sampler_accept": (None, (c_void_p, c_int32)),
    "llama_sampler_free": (None, (c_void_p,)),
    "llama_sampler_init_greedy": (c_void_p, ()),
    "llama_sampler_init_dist": (c_void_p, (c_uint32,)),
    "llama_sampler_init_top_p": (c_void_p, (c_float, c_size_t)),
    "llama_sampler_init_temp": (c_void_p, (c_float,)),
    "llama_sampler_init_penalties": (c_void_p, (c_int32, c_int32, c_float, c_float, c_float)),
}
"""Calls of microseconds: giving up the interpreter lock for them would cost more than they do."""

DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "moe_cache_size": 0,
    "abort_callback": None,
    "embeddings": False,
    "offload_kqv": True,
    "op_offload": True,
    "kv_unified": False,
    "samplers": None,
    "n_samplers": 0,
    "ctx_other": None,
}
"""What `llama_context_default_params` holds in the pinned build, from first field to last."""


@cache
def library() -> SimpleNamespace:
    """The loaded library: its attributes are the functions of both tables.

    One a process. Raises `Internal` when the wheel is absent, of another version or layout.
    """
    path = _library_path()
    functions: dict[str, Any] = {}
    for table, handle in ((SLOW, ctypes.CDLL(str(path))), (QUICK, ctypes.PyDLL(str(path)))):
        for name, (result, arguments) in table.items():
            function = getattr(handle, name)
            function.restype, function.argtypes = result, arguments
            functions[name] = function
    loaded = SimpleNamespace(**functions)
    _check_layout(loaded.llama_context_default_params(), DEFAULTS)
    loaded.llama_log_set(_LOG, None)
    loaded.llama_backend_init()
    return loaded


def _library_path() -> Path:
    try:
        version = importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError as error:
        raise Internal(f"the llama engine needs xllamacpp=={PINNED_VERSION}") from error
    if version.partition("+")[0] != PINNED_VERSION:
        raise Internal(f"xllamacpp {version} is installed; this engine needs {PINNED_VERSION}")
    spec = importlib.util.find_spec("xllamacpp")
    folders = spec.submodule_search_locations if spec else None
    found = [path for folder in folders or () for path in Path(folder).glob("xllamacpp*.so")]
    if not found:
        raise Internal("the wheel xllamacpp holds no shared library for this platform")
    return found[0]


def _check_layout(params: ContextParams, expected: dict[str, Any]) -> None:
    wrong = [name for name, value in expected.items() if getattr(params, name) != value]
    if wrong:
        raise Internal(f"llama_context_params is laid out otherwise than known: {wrong}")


@cache
def check_wait_policy() -> None:
    """Warn once if OpenMP's threads will spin: that halves the speed where others want the core.

    libgomp reads the C environment when it is loaded, so that is the one looked at.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = c_char_p, (c_char_p,)
    if (getenv(b"OMP_WAIT_POLICY") or b"").lower() != b"passive":
        log.warning("llama.wait_policy OMP_WAIT_POLICY is not `passive`: threads will spin")


_LEVELS = {3: logging.WARNING, 4: logging.ERROR}
"""Of `ggml_log_level`; less is chatter, and continuations of it."""


def _forward_log(level: int, text: bytes, _: object) -> None:
    if level in _LEVELS:
        log.log(_LEVELS[level], "llama.library %s", text.decode("utf-8", "replace").strip())


_LOG = LogCallback(_forward_log)
"""Kept here: the library calls it for as long as the process lives."""
