import pytest

from turnwire.pipelines.protocol.codec import decode_body, decode_envelope, parent_named
from turnwire.pipelines.protocol.errors import InvalidRequest, InvalidStreamId


def test_an_envelope_is_read_without_the_rest() -> None:
    frame = (
        b'{"type":"response.create","input":[1,{"deep":[]}],"stream_id":"a.b-c_1",'
        b'"model":"m","generate":false}'
    )
    envelope = decode_envelope(frame)
    assert (envelope.type, envelope.stream_id) == ("response.create", "a.b-c_1")
    assert (envelope.model, envelope.generate) == ("m", False)


def test_an_http_body_has_an_envelope_without_type() -> None:
    assert decode_envelope('{"model":"m"}').type == ""


@pytest.mark.parametrize("stream_id", ['""', '"a b"', '"é"', '"a\\n"', f'"{"x" * 257}"', "3"])
def test_a_lane_name_that_is_not_allowed_has_its_own_error(stream_id: str) -> None:
    with pytest.raises(InvalidStreamId) as refusal:
        decode_envelope(f'{{"type":"response.create","stream_id":{stream_id}}}')
    assert refusal.value.param == "stream_id"


@pytest.mark.parametrize("stream_id", ["a", "A.9_-", "x" * 256])
def test_a_lane_name_that_is_allowed_passes(stream_id: str) -> None:
    assert decode_envelope(f'{{"stream_id":"{stream_id}"}}').stream_id == stream_id


@pytest.mark.parametrize(
    "frame",
    [b"", b"{", b"[]", b'"x"', b"null", b'{"type":1}', b'{"model":["m"]}', b"\xff", b'{"a":nul}'],
)
def test_what_is_not_an_envelope_is_refused(frame: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_envelope(frame)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"[]", "The request must be a JSON object."),
        (b'{"model":"m"', "not valid JSON"),
        (b'{"model":"m"} x', "not valid JSON"),
        (b'{"user":"\xff"}', "not valid UTF-8"),
        (b'{"unknown":"\xff"}', "not valid UTF-8"),
        (b'{"unknown":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_what_is_no_body_is_refused_in_words(frame: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode_body(frame)


@pytest.mark.parametrize(
    ("frame", "parent"),
    [
        (b'{"previous_response_id":"resp_1","temperature":"hot"}', "resp_1"),
        (b'{"previous_response_id":null}', None),
        (b'{"previous_response_id":3}', None),
        (b'{"input":[]}', None),
        (b"{", None),
        (b'{"previous_response_id":"\xff"}', None),
    ],
)
def test_the_parent_is_found_in_a_body_that_is_wrong(frame: bytes, parent: str | None) -> None:
    assert parent_named(frame) == parent
