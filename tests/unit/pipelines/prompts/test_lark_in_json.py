"""A grammar and its escaped form: what fits the one, escaped, fits the other, and nothing else."""

import json
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lark_grammars import APPLY_PATCH
from llguidance import LLMatcher

from turnwire.pipelines.prompts.lark_in_json import NotEscapable, byte_tokenizer, lark_in_json

GRAMMARS = [
    APPLY_PATCH,
    r'start: /[a-z"]+x/',
    r"""start: A+ B?
A: "a\n"
B: /b[^c]*c/""",
    r"""start: (W | N)+
W: /[a-z]+/
N: "\"" /[\\]{2}/""",
    r"""start: "k" ":" STR
STR: /"(\\.|[^"\\])*"/""",
    r"""start: w+
w: "a" | "b"
%ignore /[ \n]+/""",
    r"start: /(?i:ab\n)c?/",
    r"""start: x
x: /a|b\t|/ "e" """,
    r"""start: LINE+
LINE: /[^\n]*/ LF
%import common.LF""",
    r"start: /\x41\u0022.\s\w/",
    r"""start: "a".."f" /\d{2,3}/""",
    r"""%import common (WS, INT)
start: INT WS INT""",
    r"start: /[^\"]/ /(?s:.)/i",
    r"""start: LF+ X
LF: /\r?\n/
X: "\tq" | LF "z" """,
]
LETTERS = 'abcxe"\\\n\t AB\u00e912k:zq\r\x01*'


@lru_cache
def compiled(text: str) -> str:
    grammar = LLMatcher.grammar_from_lark(text)
    assert LLMatcher.validate_grammar(grammar) == ""
    return grammar


def fits(grammar: str, text: str) -> bool:
    matcher = LLMatcher(byte_tokenizer(), grammar, log_level=0)
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def walked(grammar: str, choices: list[int]) -> str:
    """A text that the grammar allows, as far as the choices lead."""
    matcher = LLMatcher(byte_tokenizer(), grammar, log_level=0)
    out: list[int] = []
    for choice in choices:
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, count=128, bitorder="little"))
        usual = [one for one in allowed if chr(one) in LETTERS] or allowed.tolist()
        if not usual:
            break
        out.append(int(usual[choice % len(usual)]))
        matcher.consume_token(out[-1])
        if matcher.is_stopped():
            break
    return bytes(out).decode()


@pytest.mark.parametrize("definition", GRAMMARS)
@settings(max_examples=30, deadline=None, database=None, derandomize=True)
@given(
    st.one_of(
        st.text(LETTERS, max_size=6),
        st.lists(st.integers(0, 127), max_size=60),
    )
)
def test_what_fits_a_grammar_fits_its_escaped_form_once_it_is_escaped(
    definition: str, drawn: str | list[int]
) -> None:
    plain = compiled(definition)
    escaped = compiled(f'start: "<" inner ">"\ninner: %lark {{\n{lark_in_json(definition)}}}\n')
    text = drawn if isinstance(drawn, str) else walked(plain, drawn)
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    assert fits(escaped, f"<{written}>") == fits(plain, text)


@pytest.mark.parametrize(
    "definition",
    [
        r"start: <|im_end|>",
        "start: %json {}",
        r"start: /a$/",
        "start: A\nA: /[\\n]a/ & ~/b/",
        "%import common.PYTHON\nstart: PYTHON",
        "start: /a{/",
    ],
)
def test_what_cannot_be_escaped_is_said(definition: str) -> None:
    with pytest.raises(NotEscapable):
        lark_in_json(definition)
