"""A Lark grammar for a text, as a grammar for that text inside of a JSON string. Pure.

Escaping maps each character to its own run of characters, so it is enough to escape what terminals
match. Lexers look one byte ahead, so an escape is always a lexeme of its own and no other lexeme
has a backslash in it: regexes with characters that JSON escapes are written as rules. What a set of
characters holds is asked of llguidance itself.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

_ESCAPED = (*map(chr, range(0x20)), '"', "\\")
"""What JSON cannot hold as it is; everything else is written raw."""
_RAW = r'&&[^\x00-\x1f"\\]'
_NAME = re.compile(r"\b[A-Z_]*[A-Z][A-Z_0-9]*\b")
_DEFINITION = re.compile(r"^[?!]*(\w+)(?:\.-?\d+)?(?:\[[^\]\n]*\])?[ \t]*:", re.MULTILINE)

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*)
    |(?P<range>"(?:[^"\\]|\\.)"\s*\.\.\s*"(?:[^"\\]|\\.)")
    |(?P<string>"(?:[^"\\\n]|\\.)*")(?P<string_flag>i?)
    |/(?P<regex>(?![/*])(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+)/(?P<flags>[a-z]*)
    |(?P<import>%import[^\n]*)
    |(?P<directive>%(?!ignore\b)\w*|@|<|~)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r'("(?:[^"\\\n]|\\.)*"i?|/(?:[^/\\\n]|\\.)+/[a-z]*)')
_RUNS = re.compile(r'([\x00-\x1f"\\])')
_COUNT = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})\??")
_SPLIT = "\ufdd0"
"""Marks what is several lexemes, while a grammar is made; it is no character of any text."""
EMPTY = '""'
_IMPORT = re.compile(r"%import\s+common\.(?:(\w+)(?:\s*->\s*(\w+))?)\s*(?://.*)?$")
_IMPORTS = re.compile(r"%import\s+common\s*\(([\w\s,]*)\)\s*(?://.*)?$")
_COMMON = {
    "CNAME": r"[_a-zA-Z][_a-zA-Z0-9]*",
    "CR": r"\r",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "DIGIT": r"[0-9]",
    "ESCAPED_STRING": r'"([^"\\\n]|\\[^\n])*"',
    "FLOAT": r"[0-9]+[eE][+\-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+\-]?[0-9]+)?",
    "HEXDIGIT": r"[a-fA-F0-9]",
    "INT": r"[0-9]+",
    "LCASE_LETTER": r"[a-z]",
    "LETTER": r"[a-zA-Z]",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "NUMBER": r"[0-9]+[eE][+\-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+\-]?[0-9]+)?|[0-9]+",
    "SIGNED_INT": r"[+\-]?[0-9]+",
    "UCASE_LETTER": r"[A-Z]",
    "WORD": r"[a-zA-Z]+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
}
_ATOM = re.compile(
    r"""(?P<open>\((?:\?(?P<flags>[is]*):|\?P?<\w+>)?)
    |(?P<close>\))
    |(?P<escape>\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[xu]\{[0-9a-fA-F]+\}|[pP]\{[^}]*\}|[pP]\w
        |[^\w]|[nrtfvdDwWsSa]))
    |(?P<set>\[\^?\]?(?:[^\]\\\[]|\\.)*\])
    |(?P<dot>\.)
    |(?P<count>[*+?|]|\{\d+,?\d*\})
    |(?P<plain>[^\\\[\]^$(){}])""",
    re.VERBOSE | re.DOTALL,
)


class NotEscapable(Exception):
    """The grammar has something in it that cannot be carried into a JSON string."""


@lru_cache(maxsize=16)
def lark_in_json(definition: str) -> str:
    """Rules and terminals, `start` among them. Raises NotEscapable, saying what is in the way."""
    return _with_rules("".join(map(_escaped, _TOKEN.finditer(definition)))).strip() + "\n"


def escapable(definition: str) -> bool:
    """Can `lark_in_json` be had?"""
    try:
        lark_in_json(definition)
    except NotEscapable:
        return False
    return True


def complaint(definition: str) -> str:
    """Why that is no grammar at all, in one line; empty: it is one."""
    found = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(definition), None)
    return "" if found.startswith("WARNING") else " ".join(found.split())[:200]


def _with_rules(grammar: str) -> str:
    """Terminals that became several lexemes, and those made of them, as rules."""
    starts = [*_DEFINITION.finditer(grammar)]
    ends = [*(start.start() for start in starts[1:]), len(grammar)]
    bodies = {start[1]: grammar[start.end() : end] for start, end in zip(starts, ends, strict=True)}
    terminals = {name: body for name, body in bodies.items() if name.isupper()}
    split = {name for name, body in terminals.items() if _SPLIT in body}
    while more := {
        name
        for name, body in terminals.items()
        if name not in split and split & set(_NAME.findall(_outside(body)))
    }:
        split |= more
    if any("~" in _outside(bodies[name]) or "&" in _outside(bodies[name]) for name in split):
        raise NotEscapable("a terminal that JSON escapes is part of another expression")
    pieces = _QUOTED.split(grammar)
    for at in range(0, len(pieces), 2):
        pieces[at] = _NAME.sub(
            lambda found: f"{found[0].lower()}_" if found[0] in split else found[0], pieces[at]
        )
    return "".join(pieces).replace(_SPLIT, "")


def _outside(body: str) -> str:
    """What is neither string nor regex."""
    return "".join(_QUOTED.split(body)[::2])


def _escaped(token: re.Match[str]) -> str:
    text = token[0]
    match token.lastgroup:
        case "comment":
            return ""
        case "string_flag":
            return _string(json.loads(token["string"], strict=False), token["string_flag"])
        case "range":
            first, last = (json.loads(end) for end in re.findall(r'"(?:[^"\\]|\\.)"', text))
            return _regex(f"[{_in_set(first)}-{_in_set(last)}]", "")
        case "flags":
            return _regex(token["regex"], token["flags"])
        case "import":
            return "\n".join(_imported(text))
        case "directive":
            raise NotEscapable(f"'{text}' is not kept inside of a call")
        case _:
            return text


def _imported(text: str) -> Iterator[str]:
    if found := _IMPORT.match(text.strip()):
        names = [(found[1], found[2] or found[1])]
    elif several := _IMPORTS.match(text.strip()):
        names = [(name, name) for name in several[1].replace(",", " ").split()]
    else:
        names = []
    for name, known_as in names:
        if name not in _COMMON:
            raise NotEscapable(f"'common.{name}' is not known")
        yield f"{known_as}: {_regex(_COMMON[name], '')}"
    if not names:
        raise NotEscapable("only terminals of 'common' can be imported")


def _string(text: str, flag: str) -> str:
    """One string, or several with escapes between them."""
    parts: list[str] = []
    for run in _RUNS.split(text):
        if run in _ESCAPED:
            parts.append(json.dumps(json.dumps(run)[1:-1]))
        elif run:
            parts.append(json.dumps(run, ensure_ascii=False) + flag)
    return parts[0] if len(parts) == 1 and parts[0][1] != "\\" else _group(" ".join(parts))


def _group(expression: str) -> str:
    return f"({_SPLIT}{expression or EMPTY})"


def _regex(pattern: str, given: str) -> str:
    if set(given) - set("is"):
        raise NotEscapable(f"the flags '{given}' of a regex are not kept inside of a call")
    return _Regex(pattern, given).expression()


class _Regex:
    """A regex as it stands, if it matches nothing that JSON escapes; otherwise as rules."""

    def __init__(self, pattern: str, flags: str) -> None:
        self._pattern = pattern
        self._given = flags
        self._at = 0
        self._splits = False

    def expression(self) -> str:
        rules = self._alternatives(self._given, last=True)
        if self._at < len(self._pattern):
            raise NotEscapable("a regex closes a group that is not open")
        return _group(rules) if self._splits else f"/{self._pattern}/{self._given}"

    def _alternatives(self, flags: str, *, last: bool) -> str:
        found = [self._sequence(flags, last=last)]
        while self._next("|"):
            found.append(self._sequence(flags, last=last))
        return " | ".join(found)

    def _sequence(self, flags: str, *, last: bool) -> str:
        """`last`: it ends the terminal, so that what repeats there takes all it can get."""
        parts: list[str] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            atom, raw, escapes = self._atom(flags, last=last)
            count = _COUNT.match(self._pattern, self._at)
            repeats = ""
            if count is not None:
                self._at = count.end()
                repeats = count[0].rstrip("?") if len(count[0]) > 1 else count[0]
            if last and self._ends() and raw and repeats in ("*", "+"):
                atom = f"({' | '.join(filter(None, (f'{raw[:-1]}+/{_flag(flags)}', escapes)))})"
            parts.append(f"{atom}{repeats}")
        return " ".join(parts) or EMPTY

    def _atom(self, flags: str, *, last: bool) -> tuple[str, str, str]:
        """An expression; where it is a set of characters, also its raw part and its escapes."""
        found = _ATOM.match(self._pattern, self._at)
        if found is None or found["count"] is not None:
            at = self._pattern[self._at : self._at + 8]
            raise NotEscapable(f"'{at}' in a regex is not kept inside of a call")
        self._at = found.end()
        text = found[0]
        if found["open"] is not None:
            return self._inner(flags + (found["flags"] or ""), last=last), "", ""
        if found["dot"] is not None:
            text = r"[\s\S]" if "s" in flags else r"[^\n]"
        elif found["set"] is None and (found["escape"] is not None or text in _ESCAPED):
            text = f"[{text}]"
        elif found["set"] is None:
            return json.dumps(text, ensure_ascii=False) + _flag(flags), "", ""
        return self._set(text, flags)

    def _inner(self, flags: str, *, last: bool) -> str:
        """A group, behind its opening."""
        start = self._at
        inner = self._alternatives(flags, last=False)
        if not self._next(")"):
            raise NotEscapable("a regex has a group without an end")
        if last and self._ends():
            self._at = start
            inner = self._alternatives(flags, last=True)
            self._next(")")
        return f"({inner})"

    def _ends(self) -> bool:
        """Does the alternative end here?"""
        return self._at == len(self._pattern) or self._pattern[self._at] in "|)"

    def _set(self, characters: str, flags: str) -> tuple[str, str, str]:
        escaped, others = _members(characters, "i" if "i" in flags else "")
        raw = ""
        if others:
            raw = f"/[{characters}{_RAW}]/" if escaped else f"/{characters}/"
        if not escaped:
            return raw + _flag(flags), raw, ""
        self._splits = True
        written = "|".join(json.dumps(one)[1:-1].replace("\\", "\\\\") for one in escaped)
        escapes = f"/(?:{written})/"
        both = f"({raw}{_flag(flags)} | {escapes})" if raw else escapes
        return both, raw, escapes

    def _next(self, character: str) -> bool:
        found = self._pattern.startswith(character, self._at)
        self._at += found
        return found


def _flag(flags: str) -> str:
    return "i" if "i" in flags else ""


def _in_set(character: str) -> str:
    return f"\\u{{{ord(character):x}}}"


class _Bytes:
    """A vocabulary of all bytes, and an end."""

    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256,)
    tokens = (*(bytes([value]) for value in range(256)), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@lru_cache(maxsize=1)
def byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()))


@lru_cache(maxsize=256)
def _members(characters: str, flags: str) -> tuple[list[str], bool]:
    """Which of the escaped characters a set holds, and whether it holds any other."""
    wrapped = f"(?i:{characters})" if "i" in flags else characters
    matcher = LLMatcher(
        byte_tokenizer(), LLMatcher.grammar_from_lark(f"start: /{wrapped}/"), log_level=0
    )
    if matcher.is_error():
        raise NotEscapable(f"'{characters[:40]}' in a regex is not understood")
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    allowed = np.unpackbits(mask, count=256, bitorder="little").astype(bool)
    found = [one for one in _ESCAPED if allowed[ord(one)]]
    return found, int(allowed.sum()) > len(found)
