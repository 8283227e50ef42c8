"""`include` of a retrieval: what is shown only to who asks for it."""

import orjson
import pytest

from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.include import ENCRYPTED, LOGPROBS, included, shown
from turnwire.pipelines.protocol.item_list import PageQuery, item_page

ENTRY = {"token": "a", "logprob": -1.0}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
TEXT = {"type": "output_text", "text": "a", "annotations": []}
MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "kept"}
WHOLE = [
    REASONING | {"encrypted_content": "secret"},
    MESSAGE | {"content": [TEXT | {"logprobs": [ENTRY]}]},
    COMPACTION,
]
PLAIN = [REASONING, MESSAGE | {"content": [TEXT | {"logprobs": []}]}, COMPACTION]


@pytest.mark.parametrize(
    ("include", "items"),
    [
        ((), PLAIN),
        ((LOGPROBS,), [PLAIN[0], WHOLE[1], COMPACTION]),
        ((ENCRYPTED,), [WHOLE[0], PLAIN[1], COMPACTION]),
        ((LOGPROBS, ENCRYPTED), WHOLE),
    ],
)
def test_parts_are_shown_to_who_includes_them(include: tuple[str, ...], items: object) -> None:
    names = frozenset(include)
    response = orjson.dumps({"id": "resp_1", "output": WHOLE})
    assert orjson.loads(shown(response, names)) == {"id": "resp_1", "output": items}
    page = item_page(orjson.dumps(WHOLE), PageQuery(order="asc"), names)
    assert orjson.loads(page)["data"] == items


def test_what_hides_nothing_is_passed_on_as_it_is() -> None:
    text = b'{"output" : []}'
    assert shown(text, frozenset()) is text


def test_both_spellings_of_the_parameter_are_read_and_others_ignored() -> None:
    query = [("include", LOGPROBS), ("include[]", ENCRYPTED), ("limit", "3")]
    assert included(query) == {LOGPROBS, ENCRYPTED}


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidRequest, match="encrypted_content") as refusal:
        included([("include[]", "everything")])
    assert refusal.value.param == "include"
