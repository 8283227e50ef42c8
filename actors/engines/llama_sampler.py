"""Choosing the next token of one stream: llama.cpp's samplers, a grammar, log probabilities."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from turnwire.actors.engines.llama_grammar import Guide
from turnwire.actors.engines.llama_stream import Sampled
from turnwire.pipelines.config import LlamaSettings
from turnwire.pipelines.messages import Json, Sampling

_RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp's sign for: pick one."""
_LEAST = -9999.0
"""A log probability of nothing: JSON has no infinity."""


class Sampler:
    """One stream's. It must be closed before the model is freed."""

    def __init__(
        self,
        library: SimpleNamespace,
        chain: int,
        vocabulary_size: int,
        piece: Callable[[int], bytes],
        guide: Guide | None,
        alternatives: int | None,
        most_forced: int,
    ) -> None:
        self._library = library
        self._chain = chain
        self._size = vocabulary_size
        self._piece = piece
        self._guide = guide
        self._alternatives = alternatives
        # A token that is not chosen has no logits of its own here.
        self._most_forced = most_forced if alternatives is None else 0

    def sample(self, context: int, row: int) -> Sampled:
        """The next token after `row` of the last step. Raises GuideFailed.

        Log probabilities are the model's own, before anything narrows the choice.
        """
        guide = self._guide
        if guide is None and self._alternatives is None:
            return Sampled(self._library.llama_sampler_sample(self._chain, context, row))
        logits = self._logits(context, row)
        own = None if self._alternatives is None else _log_softmax(logits)
        if guide is not None:
            guide.narrow(logits)
        token: int = self._library.llama_sampler_sample(self._chain, context, row)
        entry = b"" if own is None else self._entry(token, own)
        return Sampled(token, entry, () if guide is None else self._forced(guide, token))

    def _forced(self, guide: Guide, token: int) -> list[int]:
        guide.took(token)
        forced = guide.forced(self._most_forced)
        for follower in forced:
            self._library.llama_sampler_accept(self._chain, follower)
        return forced

    def close(self) -> None:
        self._library.llama_sampler_free(self._chain)

    def _logits(self, context: int, row: int) -> NDArray[np.float32]:
        """The library's own memory: what is changed there is what the chain sees."""
        address = self._library.llama_get_logits_ith(context, row)
        return np.ctypeslib.as_array((ctypes.c_float * self._size).from_address(address))

    def _entry(self, token: int, own: NDArray[np.float32]) -> Json:
        count = self._alternatives or 0
        likeliest = np.argpartition(own, -count)[-count:] if count else np.empty(0, np.int64)
        ordered = likeliest[np.argsort(-own[likeliest])]
        top = [self._spoken(int(other), own) for other in ordered]
        return msgspec.json.encode(self._spoken(token, own) | {"top_logprobs": top})

    def _spoken(self, token: int, own: NDArray[np.float32]) -> dict[str, Any]:
        raw = self._piece(token)
        return {
            "token": raw.decode("utf-8", "replace"),
            "bytes": list(raw),
            "logprob": max(float(own[token]), _LEAST),
        }


def chain_of(
    library: SimpleNamespace,
    settings: LlamaSettings,
    vocabulary_size: int,
    sampling: Sampling,
    output_limit: int,
) -> int:
    """A sampler chain of the library. Penalties see sampled tokens only."""
    temperature = settings.temperature if sampling.temperature is None else sampling.temperature
    top_p = settings.top_p if sampling.top_p is None else sampling.top_p
    chain: int = library.llama_sampler_chain_init(library.llama_sampler_chain_default_params())
    steps = []
    if sampling.frequency_penalty or sampling.presence_penalty:
        penalties = (1.0, sampling.frequency_penalty, sampling.presence_penalty)
        steps.append(
            library.llama_sampler_init_penalties(vocabulary_size, max(1, output_limit), *penalties)
        )
    if temperature <= 0:
        steps.append(library.llama_sampler_init_greedy())
    else:
        seed = _RANDOM_SEED if sampling.seed is None else sampling.seed % _RANDOM_SEED
        steps.append(library.llama_sampler_init_temp(temperature))
        steps.append(library.llama_sampler_init_top_p(top_p, 1))
        steps.append(library.llama_sampler_init_dist(seed))
    for step in steps:
        library.llama_sampler_chain_add(chain, step)
    return chain


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    shifted = logits - logits.max()
    result: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum())
    return result
