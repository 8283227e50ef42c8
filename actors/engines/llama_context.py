"""One llama.cpp model with its context: sequences, steps, sampling, snapshots. For one thread."""

import ctypes
import sys
from array import array
from pathlib import Path

from turnwire.actors.engines import llama_binding
from turnwire.actors.engines.llama_grammar import Grammars, Vocabulary
from turnwire.actors.engines.llama_sampler import Sampler, chain_of
from turnwire.actors.engines.llama_scheduler import ContextFailed
from turnwire.actors.engines.llama_slots import Ids
from turnwire.actors.engines.llama_stream import Feed, Sampled, Stream
from turnwire.pipelines.config import LlamaSettings
from turnwire.pipelines.protocol.errors import Internal

_TAGS = frozenset({b"<think>", b"</think>", b"<tool_call>", b"</tool_call>"})
"""What models write as part of an answer, though some vocabularies call it control."""


class LlamaContext:
    """Owns the library's objects from construction to `close`."""

    def __init__(self, path: Path, settings: LlamaSettings) -> None:
        if sys.byteorder != "little":
            raise Internal("the llama engine needs a little-endian machine")
        if settings.slots >= settings.batch_tokens:
            raise Internal("batch_tokens must be larger than slots: each decoding slot needs one")
        if settings.threads > 1:
            llama_binding.check_wait_policy()
        self._library = llama_binding.library()
        self._settings = settings
        self._model: int | None = None
        self._context: int | None = None
        try:
            self._load(path)
        except BaseException:
            self.close()
            raise
        self._vocabulary = self._library.llama_model_get_vocab(self._model)
        self._memory = self._library.llama_get_memory(self._context)
        self.vocabulary_size: int = self._library.llama_vocab_n_tokens(self._vocabulary)
        self.context_tokens: int = min(
            self._library.llama_n_ctx_seq(self._context),
            self._library.llama_model_n_ctx_train(self._model),
        )
        """The window of a slot: what was asked for, or the model's own if that is smaller."""
        self._batch = _BatchMemory(settings.batch_tokens, settings.slots)
        self._pieces: dict[int, bytes] = {}

    def close(self) -> None:
        """Free everything. No other method may run or follow."""
        if self._context is not None:
            self._library.llama_free(self._context)
        if self._model is not None:
            self._library.llama_model_free(self._model)
        self._context = self._model = None

    def decode(self, feeds: list[Feed]) -> None:
        """Evaluate `feeds`, each at the end of its slot's tokens, in one step."""
        status = self._library.llama_decode(self._context, self._batch.fill(feeds))
        if status != 0:
            raise ContextFailed(f"llama_decode returned {status} for {len(feeds)} streams")

    def sampler(self, stream: Stream) -> Sampler:
        """For one stream, which closes it."""
        chain = chain_of(
            self._library,
            self._settings,
            self.vocabulary_size,
            stream.sampling,
            stream.output_limit,
        )
        return Sampler(
            self._library,
            chain,
            self.vocabulary_size,
            self.piece,
            stream.guide,
            stream.logprobs,
            # All slots together leave half of a step to prompts.
            max(0, self._settings.batch_tokens // (2 * self._settings.slots) - 1),
        )

    def sample(self, sampler: Sampler, feed_index: int) -> Sampled:
        """The next token after feed number `feed_index` of the last step. Raises GuideFailed."""
        assert self._context is not None, "a closed context samples nothing"
        return sampler.sample(self._context, self._batch.last_rows[feed_index])

    def grammars(self) -> Grammars:
        """Grammars over this model's vocabulary."""
        pieces, special = [], []
        for token in range(self.vocabulary_size):
            shown = self._piece(token, 64, special=True)
            pieces.append(shown)
            spoken = self._settings.render_control and shown in _TAGS
            if shown and not spoken and not self._piece(token, 64, special=False):
                special.append(token)
        terminal = self._library.llama_vocab_eot(self._vocabulary)
        # The library takes the end of a document for the end of a turn where both are known.
        # What it takes for the end of a turn need not end an answer: Harmony's `<|end|>`.
        spared = terminal < 0 or pieces[terminal] == b"<|endoftext|>"
        if spared or not self.is_terminal(terminal):
            terminal = self._library.llama_vocab_eos(self._vocabulary)
        return Grammars(Vocabulary(pieces, special, terminal, self._encode))

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenize(text, parse_special=False))

    def is_terminal(self, token: int) -> bool:
        """Does `token` end an answer?"""
        ends: bool = self._library.llama_vocab_is_eog(self._vocabulary, token)
        return ends

    def piece(self, token: int) -> bytes:
        """The bytes of `token`; of a control token only with `render_control`."""
        known = self._pieces.get(token)
        if known is None:
            special = self._settings.render_control
            known = self._pieces[token] = self._piece(token, 64, special=special)
        return known

    def truncate(self, sequence: int, keep: int) -> bool:
        """Drop all but the first `keep` tokens. False: it cannot, and the sequence is empty now."""
        if self._library.llama_memory_seq_rm(self._memory, sequence, keep, -1):
            return True
        self._library.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return False

    def snapshot_bytes(self, sequence: int) -> int:
        """How large a snapshot of the sequence would be."""
        size: int = self._library.llama_state_seq_get_size(self._context, sequence)
        return size

    def snapshot(self, sequence: int) -> bytearray:
        """A copy of the sequence's state in host memory."""
        state = bytearray(self.snapshot_bytes(sequence))
        buffer = (ctypes.c_char * len(state)).from_buffer(state)
        written = self._library.llama_state_seq_get_data(
            self._context, buffer, len(state), sequence
        )
        del buffer
        if written != len(state):
            raise ContextFailed(f"a snapshot of {len(state)} bytes came out with {written}")
        return state

    def restore(self, sequence: int, state: bytearray) -> bool:
        """Replace the sequence by a snapshot. False: it did not fit, and the sequence is empty."""
        self._library.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        buffer = (ctypes.c_char * len(state)).from_buffer(state)
        if self._library.llama_state_seq_set_data(self._context, buffer, len(state), sequence):
            return True
        self._library.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return False

    def tokenize(self, text: str, *, parse_special: bool) -> Ids:
        """The library's own tokenization, without begin and end tokens."""
        raw = text.encode()
        tokens = (ctypes.c_int32 * (len(raw) + 8))()
        count = self._library.llama_tokenize(
            self._vocabulary, raw, len(raw), tokens, len(tokens), False, parse_special
        )
        if count < 0:
            raise ContextFailed(f"llama_tokenize returned {count} for {len(raw)} bytes")
        return array("I", tokens[:count])

    def _piece(self, token: int, size: int, *, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        length = self._library.llama_token_to_piece(
            self._vocabulary, token, buffer, size, 0, special
        )
        return buffer.raw[:length] if length >= 0 else self._piece(token, -length, special=special)

    def _load(self, path: Path) -> None:
        library, settings = self._library, self._settings
        self._model = library.llama_model_load_from_file(
            str(path).encode(), library.llama_model_default_params()
        )
        if self._model is None:
            raise Internal(f"llama.cpp cannot load {path.name}")
        params = library.llama_context_default_params()
        params.n_ctx = settings.context_tokens * settings.slots
        params.n_seq_max = settings.slots
        params.n_batch = params.n_ubatch = settings.batch_tokens
        params.n_threads = params.n_threads_batch = settings.threads
        params.flash_attn_type = int(settings.flash_attention)
        params.swa_full = True  # a sliding window would forget the prefixes that are to be reused
        params.kv_unified = False  # a stream does not pay for what the other slots hold
        self._context = library.llama_init_from_model(self._model, params)
        if self._context is None:
            raise Internal(f"llama.cpp cannot make a context of {params.n_ctx} tokens")
        self._check()

    def _check(self) -> None:
        """A wrong struct layout would show here, before anything is computed."""
        library, settings, context = self._library, self._settings, self._context
        found = (
            library.llama_n_seq_max(context),
            library.llama_n_batch(context),
            library.llama_n_threads(context),
            library.llama_n_ctx_seq(context) >= settings.context_tokens,
        )
        if found != (settings.slots, settings.batch_tokens, settings.threads, True):
            raise Internal(f"llama.cpp made another context than asked for: {found}")


class _BatchMemory:
    """The arrays behind a `llama_batch`, made once."""

    def __init__(self, tokens: int, sequences: int) -> None:
        self.last_rows: list[int] = []
        self._token = (ctypes.c_int32 * tokens)()
        self._position = (ctypes.c_int32 * tokens)()
        self._sequence = (ctypes.POINTER(ctypes.c_int32) * tokens)()
        self._output = (ctypes.c_int8 * tokens)()
        self._ones = (ctypes.c_int32 * tokens)(*[1] * tokens)
        self._sequences = [ctypes.pointer(ctypes.c_int32(index)) for index in range(sequences)]
        self._batch = llama_binding.Batch(
            0, self._token, None, self._position, self._ones, self._sequence, self._output
        )

    def fill(self, feeds: list[Feed]) -> llama_binding.Batch:
        """The batch of a step; valid until the next."""
        row = 0
        self.last_rows = []
        for feed in feeds:
            count, start = len(feed.tokens), len(feed.slot.tokens)
            self._token[row : row + count] = list(feed.tokens)
            self._position[row : row + count] = list(range(start, start + count))
            self._output[row : row + count] = [0] * count
            for at in range(row, row + count):
                self._sequence[at] = self._sequences[feed.slot.index]
            row += count
            self._output[row - 1] = int(feed.wants_output)
            self.last_rows.append(row - 1)
        self._batch.n_tokens = row
        return self._batch
