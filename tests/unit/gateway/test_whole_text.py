"""The short way of a frame that comes alone and whole, which is how most come."""

import pytest
from websockets.frames import Frame, Opcode, apply_mask

from turnwire.gateway.wire import whole_text

LENGTHS = (0, 1, 125, 126, 127, 65535, 65536, 70000)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_whole_text_frame_is_found_and_nothing_around_it(length: int) -> None:
    payload = bytes(n % 251 for n in range(length))
    data = Frame(Opcode.TEXT, payload).serialize(mask=True)
    masked = whole_text(data)
    assert masked is not None
    start = len(data) - length
    assert apply_mask(masked, data[start - 4 : start]) == payload
    assert whole_text(data + data[:1]) is None
    assert all(whole_text(data[:cut]) is None for cut in (0, 1, 2, 5, len(data) - 1))


@pytest.mark.parametrize(
    ("opcode", "fin", "mask"),
    [
        (Opcode.BINARY, True, True),
        (Opcode.PING, True, True),
        (Opcode.CLOSE, True, True),
        (Opcode.CONT, True, True),
        (Opcode.TEXT, False, True),
        (Opcode.TEXT, True, False),
    ],
)
def test_all_other_frames_take_the_long_way(opcode: Opcode, fin: bool, mask: bool) -> None:
    assert whole_text(Frame(opcode, b"\x03\xe8", fin).serialize(mask=mask)) is None


def test_compressed_frames_take_the_long_way() -> None:
    data = Frame(Opcode.TEXT, b"text").serialize(mask=True)
    assert whole_text(bytes((data[0] | 0x40,)) + data[1:]) is None
