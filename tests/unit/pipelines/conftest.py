"""A small vocabulary, and a client and an engine around one connection's state."""

import itertools
import json
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_ports import KEYRING

from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ConnectionSettings
from turnwire.pipelines.connection import ConnectionState

WORDS = ("assistant", "system", "user", " world", " a", "hello", "\n\n", "  ", "don", "the", "日本")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def _byte_letters() -> dict[int, str]:
    """How byte-level vocabularies spell each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in plain)
    return {byte: chr(byte) for byte in plain} | {
        byte: chr(256 + index) for index, byte in enumerate(others)
    }


def _vocabulary() -> dict[str, Any]:
    letters = _byte_letters()
    tokens = [*SPECIAL, *letters.values()]
    merges = []
    for word in WORDS:
        spelled = [letters[byte] for byte in word.encode()]
        for length in range(1, len(spelled)):
            left, right = "".join(spelled[:length]), spelled[length]
            if left + right not in tokens:
                merges.append(f"{left} {right}")
                tokens.append(left + right)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    added = [
        {"id": id, "content": name, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for id, name in enumerate(SPECIAL)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": True},
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": merges,
        },
    }


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    path.write_text(json.dumps(_vocabulary()))
    return str(path)


@pytest.fixture(scope="session")
def token_model(tokenizer_path: str) -> m.Model:
    return m.Model("small", "tokens", "chatml", tokenizer_path, context_window=8192)


@pytest.fixture(scope="session")
def item_model() -> m.Model:
    return m.Model("sim", "items", default_output_tokens=256)


def counting() -> Callable[[int], bytes]:
    """Randomness that repeats itself in every run."""
    numbers: Iterator[int] = itertools.count(1)
    return lambda size: next(numbers).to_bytes(size, "big")


class Engine:
    """Keeps every prompt by its key, as a worker does, and puts continued ones together."""

    def __init__(self) -> None:
        self.ids: dict[bytes, bytes] = {b"": b""}
        self.items: dict[bytes, list[Any]] = {b"": []}

    def take(self, prompt: m.Prompt) -> Any:  # noqa: ANN401 -- ids or items, as the prompt says
        if isinstance(prompt, m.TokenPrompt):
            self.ids[prompt.key] = self.ids[prompt.prefix_key] + prompt.ids
            return array("I", self.ids[prompt.key]).tolist()
        items = self.items[prompt.prefix_key] + json.loads(prompt.items)
        self.items[prompt.key] = items
        return items


class Talk:
    """A client of one connection and the engine behind it."""

    def __init__(self, model: m.Model, **settings: int) -> None:
        self.model = model
        self.state = ConnectionState(
            "acme", ConnectionSettings(**settings), counting(), keyring=KEYRING
        )
        self.engine = Engine()
        self.prompt: Any = None
        """The whole of the last prompt."""

    def create(
        self,
        response_id: str,
        *,
        lane: str | None = None,
        transport: Any = "websocket",  # noqa: ANN401 -- one of two words
        chain: m.Chain | None = None,
        known_echo: bytes = b"",
        model: m.Model | None = None,
        ablated: tuple[str, ...] = (),
        **fields: Any,  # noqa: ANN401 -- any JSON
    ) -> m.Prepared:
        answer = self.ask(
            response_id,
            lane=lane,
            transport=transport,
            chain=chain,
            known_echo=known_echo,
            model=model,
            ablated=ablated,
            **fields,
        )
        assert isinstance(answer, m.Prepared), answer
        self.prompt = self.engine.take(answer.prompt)
        return answer

    def ask(
        self,
        response_id: str,
        *,
        lane: str | None = None,
        transport: Any = "websocket",  # noqa: ANN401 -- one of two words
        chain: m.Chain | None = None,
        known_echo: bytes = b"",
        model: m.Model | None = None,
        ablated: tuple[str, ...] = (),
        **fields: Any,  # noqa: ANN401 -- any JSON
    ) -> m.Prepared | m.ParentUnknown:
        used = model or self.model
        frame = {"type": "response.create", "model": used.name, "store": False} | fields
        return self.state.prepare(
            m.Prepare(
                "c",
                response_id,
                json.dumps(frame).encode(),
                used,
                lane,
                transport,
                known_echo,
                chain,
                ablated=ablated,
            )
        )

    def answer(
        self,
        response_id: str,
        text: str = "fine",
        *,
        sampled: tuple[int, ...] | None = None,
        finish: m.Finish = "stop",
        items: list[dict[str, Any]] | None = None,
    ) -> None:
        if items is None:
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            message = {"type": "message", "id": f"msg_{response_id}", "role": "assistant"}
            items = [message | {"status": "completed", "content": [part]}] if text else []
        if sampled is None:
            sampled = (3, 4, 5, 2) if self.model.form == "tokens" else ()
        ids = array("I", sampled).tobytes()
        self.state.commit(m.Commit("c", response_id, json.dumps(items).encode(), ids, finish))

    def abort(self, response_id: str, *, evict: bool = False) -> None:
        self.state.abort(m.Abort("c", response_id, evict))

    def turn(self, response_id: str, **fields: Any) -> m.Prepared:  # noqa: ANN401 -- any JSON
        """Create and answer."""
        prepared = self.create(response_id, **fields)
        self.answer(response_id)
        return prepared


@pytest.fixture
def talk(item_model: m.Model) -> Talk:
    """Over the form `items`, where prompts can be read."""
    return Talk(item_model)


@pytest.fixture
def token_talk(token_model: m.Model) -> Talk:
    return Talk(token_model)


@pytest.fixture(scope="session")
def new_talk() -> type[Talk]:
    """To make one with another model or other settings."""
    return Talk
