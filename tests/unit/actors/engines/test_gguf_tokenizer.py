"""The tokenizer file built from a GGUF gives the ids of llama.cpp's own tokenizer."""

import ctypes
import dataclasses
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import pytest
import splintr
import tokenizers

from turnwire.actors.engines import gguf_file, llama_binding
from turnwire.actors.engines.gguf_tokenizer import PRE_TOKENIZERS, build_tokenizer
from turnwire.pipelines.prompts.template_file import load_template
from turnwire.pipelines.protocol.errors import Internal

pytestmark = pytest.mark.slow

Encode = Callable[[str], list[int]]

SCRIPTS = {
    "ascii": [(0x20, 0x7E)],
    "controls": [(0x00, 0x1F)],
    "latin": [(0xA0, 0x24F)],
    "combining": [(0x61, 0x65), (0x300, 0x36F)],
    "greek and cyrillic": [(0x370, 0x3FF), (0x400, 0x4FF)],
    "hebrew and arabic": [(0x590, 0x6FF)],
    "indic and thai": [(0x900, 0x97F), (0xE00, 0xE7F)],
    "numbers of all kinds": [(0x30, 0x39), (0x660, 0x669), (0x2070, 0x209F), (0x2150, 0x218F)],
    "cjk": [(0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xFF00, 0xFFEF)],
    "hangul": [(0x1100, 0x11FF), (0xAC00, 0xD7A3)],
    "spaces": [(0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0x1680, 0x1680), (0x2000, 0x202F)],
    "emoji and others": [(0x1F300, 0x1FAFF), (0x10330, 0x1034A), (0x1D400, 0x1D7FF)],
}
PARTS = [
    *(" ", "  ", "\n", "\t", "\r\n", " \n", "\n\n\n", "\u00a0", "\u3000", "a", "B", "é", "日"),
    *(
        "😀",
        "👨‍👩‍👧",
        "1",
        "23",
        "4567",
        "\uff14",
        "½",
        "don't",
        "I'LL",
        "x's",
        "_",
        "{",
        "}",
        "=> ",
        "//",
    ),
    *("    return x", "<|im_end|>", "<|im_start|>user", "<|endoftext|>", "Straße", "naïve"),
]


def corpus(seed: int) -> Iterator[str]:
    """Texts of every script, then mixtures with markers that a user typed."""
    chance = random.Random(seed)
    for ranges in SCRIPTS.values():
        for _ in range(25):
            length = chance.randint(1, 30)
            spans = [chance.choice(ranges) for _ in range(length)]
            yield "".join(chr(chance.randint(low, high)) for low, high in spans)
    for _ in range(200):
        yield "".join(chance.choices(PARTS, k=chance.randint(1, 40)))
    yield Path(__file__).read_text()


@pytest.fixture(scope="module")
def facts() -> gguf_file.GgufFacts:
    return gguf_file.read(gguf_file.default_path())


def own_tokenizer(path: Path) -> Encode:
    """llama.cpp's tokenizer of a file, without its weights; a user's markers are text."""
    library = llama_binding.library()
    params = library.llama_model_default_params()
    params.vocab_only = True
    model = library.llama_model_load_from_file(str(path).encode(), params)
    assert model is not None
    vocabulary = library.llama_model_get_vocab(model)

    def encode(text: str) -> list[int]:
        raw = text.encode()
        ids = (ctypes.c_int32 * (len(raw) + 8))()
        count = library.llama_tokenize(vocabulary, raw, len(raw), ids, len(ids), False, False)
        return list(ids[:count])

    return encode


def test_ids_equal_llama_cpps_own_on_every_script(
    facts: gguf_file.GgufFacts, tmp_path: Path
) -> None:
    built = splintr.from_json(str(build_tokenizer(facts, tmp_path)))
    own = own_tokenizer(facts.path)
    for text in corpus(1):
        assert built.encode_ordinary(text) == own(text)


@pytest.mark.parametrize("kind", sorted(PRE_TOKENIZERS))
def test_every_known_way_of_cutting_text_gives_llama_cpps_ids(
    facts: gguf_file.GgufFacts, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / f"{kind}.gguf"
    write_vocabulary(path, facts, kind)
    built = splintr.from_json(str(build_tokenizer(gguf_file.read(path), tmp_path)))
    own = own_tokenizer(path)
    for text in corpus(2):
        assert built.encode_ordinary(text) == own(text)


def test_the_library_tokenizers_reads_the_file_to_the_same_ids(
    facts: gguf_file.GgufFacts, tmp_path: Path
) -> None:
    path = str(build_tokenizer(facts, tmp_path))
    built, other = splintr.from_json(path), tokenizers.Tokenizer.from_file(path)
    for text in corpus(3):
        assert other.encode(text).ids == built.encode_with_special(text)


def test_control_markers_are_single_ids_only_where_asked_for(
    facts: gguf_file.GgufFacts, tmp_path: Path
) -> None:
    built = splintr.from_json(str(build_tokenizer(facts, tmp_path)))
    assert built.encode_with_special("<|im_start|>") == [1]
    assert 1 not in built.encode_ordinary("<|im_start|>")


def test_the_file_is_written_once_however_many_ask_for_it(
    facts: gguf_file.GgufFacts, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "folder"
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: build_tokenizer(facts, folder), range(4)))
    (path,) = paths
    config = path.with_name(path.name.replace("tokenizer.json", "tokenizer_config.json"))
    assert {*folder.iterdir()} == {path, config}
    assert load_template(str(path)).source == facts.chat_template
    (path,) = paths
    written = path.stat().st_mtime_ns
    assert build_tokenizer(facts, folder) == path
    assert path.stat().st_mtime_ns == written


def test_another_file_of_the_same_name_gets_its_own_tokenizer(
    facts: gguf_file.GgufFacts, tmp_path: Path
) -> None:
    other = tmp_path / facts.path.name
    write_vocabulary(other, facts, "gpt-2")
    built = build_tokenizer(gguf_file.read(other), tmp_path)
    assert built != build_tokenizer(facts, tmp_path)


@pytest.mark.parametrize("change", [{"vocabulary_kind": "llama"}, {"pre_tokenizer": "other"}])
def test_a_vocabulary_of_another_kind_needs_its_own_file(
    facts: gguf_file.GgufFacts, tmp_path: Path, change: dict[str, str]
) -> None:
    with pytest.raises(Internal, match=r"name a tokenizer\.json"):
        build_tokenizer(dataclasses.replace(facts, **change), tmp_path)
    assert [*tmp_path.iterdir()] == []


def write_vocabulary(path: Path, facts: gguf_file.GgufFacts, pre_tokenizer: str) -> None:
    """A GGUF with the vocabulary of `facts`, another way of cutting text, and no weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(list(facts.tokens))
    writer.add_token_types(list(facts.token_types))
    writer.add_token_merges(list(facts.merges))
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
