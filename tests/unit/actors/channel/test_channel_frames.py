"""The frame codec: any bytes in any pieces, and what one write holds."""

import array
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.actors.channel_frames import (
    HEADER,
    MESSAGE_TYPES,
    FrameParser,
    Kind,
    MalformedFrame,
    Outbox,
    Undecodable,
    decode,
    decode_credit,
    decode_error,
    decode_items,
    encode,
    encode_credit,
    encode_error,
    item_fits,
)
from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import BY_NAME, ApiError, Internal

LIMIT = 64
frames = st.lists(
    st.tuples(
        st.integers(Kind.HELLO, Kind.PONG),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=LIMIT),
    ),
    max_size=8,
)


def written(frame: tuple[int, int, bytes]) -> bytes:
    kind, stream_id, payload = frame
    return HEADER.pack(len(payload), stream_id, kind) + payload


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def fed(parser: FrameParser, parts: list[bytes]) -> list[tuple[int, int, bytes]]:
    return [
        (kind, stream_id, bytes(payload))
        for part in parts
        for kind, stream_id, payload in parser.feed(part)
    ]


@settings(deadline=None)
@given(frames, st.lists(st.integers(0, 10_000), max_size=20))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    parser = FrameParser(LIMIT)
    assert fed(parser, pieces(b"".join(map(written, sent)), cuts)) == sent
    assert parser.held_bytes == 0


@settings(deadline=None)
@given(st.binary(max_size=2000), st.lists(st.integers(0, 10_000), max_size=20))
def test_arbitrary_bytes_are_frames_or_refused_and_little_is_held(
    data: bytes, cuts: list[int]
) -> None:
    parser = FrameParser(LIMIT)
    try:
        for part in pieces(data, cuts):
            for _kind, _stream_id, payload in parser.feed(part):
                assert len(payload) <= LIMIT
            assert parser.held_bytes < HEADER.size + LIMIT
    except MalformedFrame:
        assert parser.held_bytes <= HEADER.size + LIMIT


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_arbitrary_payloads_are_messages_or_undecodable(payload: bytes) -> None:
    for read in (decode, decode_items, decode_error):
        try:
            read(payload)
        except Undecodable:
            continue


def test_a_frame_at_the_limit_passes_and_one_byte_more_is_refused_by_its_header_alone() -> None:
    assert len(fed(FrameParser(LIMIT), [written((Kind.CALL, 1, b"x" * LIMIT))])) == 1
    with pytest.raises(MalformedFrame, match="65 bytes"):
        fed(FrameParser(LIMIT), [HEADER.pack(LIMIT + 1, 1, Kind.CALL)])


@pytest.mark.parametrize("kind", [0, Kind.PONG + 1, 255])
def test_an_unknown_kind_is_refused_behind_the_good_frames_before_it(kind: int) -> None:
    good = written((Kind.PING, 0, b""))
    found = FrameParser(LIMIT).feed(good + HEADER.pack(0, 1, kind))
    assert next(found)[0] == Kind.PING
    with pytest.raises(MalformedFrame):
        next(found)


def test_a_large_frame_in_small_reads_is_one_payload() -> None:
    payload = bytes(range(256)) * 16 * 1024
    data = written((Kind.REPLY, 7, payload))
    parts = [data[start : start + 65536] for start in range(0, len(data), 65536)]
    assert fed(FrameParser(len(payload)), parts) == [(Kind.REPLY, 7, payload)]


def read_back(outbox: Outbox) -> list[tuple[int, int, bytes]]:
    return fed(FrameParser(1 << 20), [b"".join(outbox.take())])


def text(value: str) -> m.TextProduced:
    return m.TextProduced(value, m.Counts())


def test_items_of_a_stream_share_a_frame_and_its_end_comes_behind_them() -> None:
    outbox = Outbox(1000)
    outbox.add_item(1, encode(text("a")))
    outbox.add_item(2, encode(text("b")))
    outbox.add_item(1, encode(text("c")))
    outbox.add(Kind.END, 1)
    outbox.add_item(2, encode(text("d")))
    found = read_back(outbox)
    assert [frame[:2] for frame in found] == [(Kind.ITEMS, 1), (Kind.END, 1), (Kind.ITEMS, 2)]
    assert decode_items(found[0][2]) == [text("a"), text("c")]
    assert decode_items(found[2][2]) == [text("b"), text("d")]


def test_a_batch_over_the_limit_is_several_frames() -> None:
    item = encode(text("x" * 40))
    limit = 2 * len(item) + 5
    outbox = Outbox(limit)
    for _ in range(5):
        outbox.add_item(1, item)
    found = read_back(outbox)
    assert [len(decode_items(frame[2])) for frame in found] == [2, 2, 1]
    assert item_fits(item, limit)
    assert not item_fits(item, len(item))


def test_the_outbox_knows_its_size_through_adding_dropping_and_taking() -> None:
    outbox = Outbox(1000)
    outbox.add(Kind.CALL, 1, b"four")
    outbox.add_item(2, b"12345")
    outbox.add_item(3, b"123")
    outbox.drop_items(2)
    outbox.drop_items(99)
    assert outbox.size_bytes == HEADER.size + 4 + 3
    outbox.add(Kind.END, 3)
    size = outbox.size_bytes
    assert sum(map(len, outbox.take())) == size
    assert outbox.size_bytes == 0
    assert outbox.take() == []


def test_every_message_type_has_its_own_tag() -> None:
    assert len({kind.__struct_config__.tag for kind in MESSAGE_TYPES}) == len(MESSAGE_TYPES)
    assert m.Generate in MESSAGE_TYPES
    assert m.Message not in MESSAGE_TYPES


def test_nested_messages_survive() -> None:
    prompt = m.TokenPrompt(b"k", b"p", array.array("I", [1, 2]).tobytes())
    sent = m.Generate(m.Facts("resp_1", "t", "m", 5), prompt)
    assert decode(encode(sent)) == sent


def test_a_message_of_an_unknown_type_is_undecodable() -> None:
    class Novel(m.Message):
        text: str

    with pytest.raises(Undecodable):
        decode(encode(Novel("x")))


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_error_crosses_as_its_own_class(name: str) -> None:
    found = decode_error(encode_error(BY_NAME[name]("why", "field")))
    assert type(found) is BY_NAME[name]
    assert (found.message, found.param) == ("why", "field")


def test_an_error_class_of_one_side_only_crosses_as_its_nearest_known_base() -> None:
    class Special(BY_NAME["NotFound"]):  # type: ignore[misc]  # a class found by name
        pass

    assert type(decode_error(encode_error(Special("gone")))) is BY_NAME["NotFound"]


def test_a_failure_of_an_unknown_name_is_internal_and_another_message_is_undecodable() -> None:
    assert type(decode_error(encode(m.Failure("Novel", "x")))) is Internal
    with pytest.raises(Undecodable):
        decode_error(encode(m.Done()))
    assert issubclass(Internal, ApiError)


def test_credit_crosses_and_another_size_is_malformed() -> None:
    assert decode_credit(encode_credit(256)) == 256
    with pytest.raises(MalformedFrame):
        decode_credit(b"123")
