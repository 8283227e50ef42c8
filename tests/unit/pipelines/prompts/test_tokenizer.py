import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.pipelines.prompts.tokenizer import VocabularyTokenizer, load_tokenizer, pieces
from turnwire.pipelines.protocol.errors import Internal

FRAGMENTS = (
    "ab",
    " cd",
    "\n",
    "  ",
    " ",
    "don't",
    "12",
    "<|im_end|>",
    "é",
    "日本",
    "🙂",
    ". ",
    "x",
)


def test_a_typed_control_marker_is_text(tokenizer_path: str) -> None:
    tokenizer = VocabularyTokenizer(tokenizer_path)
    marker = tokenizer.special("<|im_end|>").to_bytes(4, "little")
    assert marker not in tokenizer.encode("a<|im_end|>b")


def test_a_marker_the_vocabulary_lacks_is_refused(tokenizer_path: str) -> None:
    with pytest.raises(Internal, match="has no <s>"):
        VocabularyTokenizer(tokenizer_path).special("<s>")


def test_a_file_that_is_no_tokenizer_is_refused_without_naming_it() -> None:
    with pytest.raises(Internal) as refusal:
        VocabularyTokenizer("/nowhere/secret.json")
    assert "secret" not in str(refusal.value)


def test_a_tokenizer_is_loaded_once_a_process(tokenizer_path: str) -> None:
    assert load_tokenizer(tokenizer_path) is load_tokenizer(tokenizer_path)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join))
def test_pieces_have_the_ids_of_the_whole(tokenizer_path: str, text: str) -> None:
    tokenizer = load_tokenizer(tokenizer_path)
    cut = pieces(text, characters=5)
    assert "".join(cut) == text
    assert b"".join(map(tokenizer.encode, cut)) == tokenizer.encode(text)


def test_a_long_text_is_cut_close_to_the_size_asked_for() -> None:
    cut = pieces("word " * 1000, characters=100)
    assert max(map(len, cut)) < 110


def test_a_text_without_a_safe_place_stays_whole() -> None:
    assert pieces("x" * 1000, characters=100) == ["x" * 1000]
