"""What is screened, what counts, and the verdict."""

from turnwire.pipelines.messages import Screened
from turnwire.pipelines.safety import (
    CHUNK_CHARACTERS,
    OVERLAP_CHARACTERS,
    PASSAGE_CHARACTERS,
    Findings,
    counts_as_pii,
    counts_as_secret,
    excerpt,
    passages,
)


def test_short_texts_are_one_chunk_each_and_empty_ones_none() -> None:
    assert excerpt(("one", "", "two"), 100).chunks == ("one", "two")
    assert excerpt((), 100) == excerpt(("",), 100)


def test_every_phrase_up_to_the_overlap_is_whole_in_some_chunk() -> None:
    text = "".join(chr(33 + number % 90) for number in range(3 * CHUNK_CHARACTERS))
    chunks = excerpt((text,), 10**6).chunks
    assert max(map(len, chunks)) == CHUNK_CHARACTERS
    starts = range(0, len(text) - OVERLAP_CHARACTERS, 97)
    assert all(any(text[at : at + OVERLAP_CHARACTERS] in c for c in chunks) for at in starts)
    assert chunks[-1].endswith(text[-10:])


def test_text_beyond_the_limit_is_left_out_and_said_so() -> None:
    cut = excerpt(("abcde", "fghij", "klm"), 8)
    assert (cut.chunks, cut.complete) == (("abcde", "fgh"), False)
    assert excerpt(("abcde", "fgh"), 8).complete


def test_the_limit_is_in_bytes_and_cuts_no_character_in_half() -> None:
    cut = excerpt(("éééé",), 5)
    assert (cut.chunks, cut.complete) == (("éé",), False)
    assert excerpt(("éééé",), 8).complete


def test_a_lone_surrogate_is_screened_like_any_text() -> None:
    assert excerpt(("a\ud800b",), 100).complete


def test_the_trained_classifier_gets_short_passages_without_blank_ones() -> None:
    text = "x" * PASSAGE_CHARACTERS + " " * PASSAGE_CHARACTERS + "y"
    assert [len(piece) for piece in passages(text)] == [PASSAGE_CHARACTERS, 1]


def test_nothing_found_is_a_clean_verdict() -> None:
    assert Findings().verdict() == Screened(flagged=False, categories=(), score=0.0)


def test_one_weak_rule_scores_and_does_not_flag() -> None:
    verdict = Findings(injection={"PI-004"}).verdict()
    assert (verdict.flagged, verdict.score) == (False, 0.4)


def test_weak_rules_together_flag() -> None:
    verdict = Findings(injection={"PI-004", "PI-009"}).verdict()
    assert (verdict.categories, verdict.score) == (("prompt_injection",), 0.8)


def test_every_category_is_named() -> None:
    found = Findings({"PI-001"}, secret=True, pii=True, toxicity=0.95, complete=False)
    assert found.verdict() == Screened(
        flagged=True,
        categories=("prompt_injection", "secret", "pii", "toxicity"),
        score=1.0,
        complete=False,
    )


def test_digits_in_a_table_are_no_identity_numbers() -> None:
    assert counts_as_pii("PII-SSN-001", "123-45-6789")
    assert not counts_as_pii("PII-SSN-001", "123 45 6789")
    assert counts_as_pii("PII-CC-001", "4111 1111 1111 1111")
    assert counts_as_pii("PII-CC-001", "4111111111111111")
    assert not counts_as_pii("PII-CC-001", "4111 11 111 11111 11")


def test_placeholders_and_long_attributes_are_no_secrets() -> None:
    assert counts_as_secret("SEC-AWS-001", "AKIAIOSFODNN7EXAMPLE")
    assert not counts_as_secret("SEC-DB-001", "mysql://<username>:<password>@<host>/<db>")
    assert not counts_as_secret("SEC-VAULT-002", "s.AnonymizedFromClauseRole")
