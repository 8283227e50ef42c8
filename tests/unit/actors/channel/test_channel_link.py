"""One connection over a scripted transport: what one write holds, and when the peer is cut off."""

import asyncio

import pytest

from turnwire.actors.channel_frames import HEADER, FrameParser, Kind, encode, encode_credit
from turnwire.actors.channel_link import Link
from turnwire.actors.channel_producer import Produced
from turnwire.actors.channel_service import Accepted, Caller, Service
from turnwire.pipelines.config import MIB, ChannelSettings
from turnwire.pipelines.messages import Counts, Message, TextProduced, Watch


class OpenDoor:
    """Lets anybody in."""

    passed = True

    def greet(self, transport: asyncio.BaseTransport) -> bytes | None:
        return None

    def answer(self, hello: bytes) -> bytes | None:
        raise AssertionError("nobody asks at an open door")


class ScriptedTransport(asyncio.Transport):
    """Remembers each write; `unread_bytes` is what its peer has not read."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.unread_bytes = 0
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: list[bytes]) -> None:
        self.writes.append(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def abort(self) -> None:
        self.aborted = True


class Echo:
    """Answers every frame with a reply; counts what else it was told."""

    def __init__(self) -> None:
        self.link: Link
        self.reasons: list[str] = []
        self.writable_again = 0

    def frame_received(self, kind: int, stream_id: int, payload: memoryview) -> None:
        self.link.send(Kind.REPLY, stream_id, bytes(payload))

    def writable(self) -> None:
        self.writable_again += 1

    def ended(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.fixture
async def owner() -> Echo:
    return Echo()


@pytest.fixture
async def transport(owner: Echo) -> ScriptedTransport:
    transport = ScriptedTransport()
    settings = ChannelSettings(max_frame_bytes=MIB, max_write_bytes=MIB, flush_s=3600.0)
    owner.link = Link("test", settings, OpenDoor(), owner)
    owner.link.connection_made(transport)
    return transport


async def next_turn() -> None:
    await asyncio.sleep(0)


def frame(kind: int, stream_id: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(len(payload), stream_id, kind) + payload


async def test_all_frames_of_a_turn_are_one_write(
    owner: Echo, transport: ScriptedTransport
) -> None:
    for stream_id in range(1, 6):
        owner.link.send(Kind.CALL, stream_id, b"x")
    assert transport.writes == []
    await next_turn()
    assert transport.writes == [b"".join(frame(Kind.CALL, n, b"x") for n in range(1, 6))]


async def test_the_answers_to_one_read_are_one_write_in_the_same_step(
    owner: Echo, transport: ScriptedTransport
) -> None:
    owner.link.data_received(frame(Kind.CALL, 1, b"a") + frame(Kind.CALL, 2, b"b"))
    assert transport.writes == [frame(Kind.REPLY, 1, b"a") + frame(Kind.REPLY, 2, b"b")]


async def test_waiting_items_of_all_streams_leave_with_the_first_urgent_frame(
    owner: Echo, transport: ScriptedTransport
) -> None:
    for stream_id in (1, 2, 1):
        owner.link.send_item(stream_id, b"\xc0", now=False)
    await next_turn()
    assert transport.writes == []
    owner.link.send(Kind.END, 2)
    await next_turn()
    (written,) = transport.writes
    kinds = [(kind, stream_id) for kind, stream_id, _ in FrameParser(MIB).feed(written)]
    assert kinds == [(Kind.ITEMS, 2), (Kind.END, 2), (Kind.ITEMS, 1)]


async def test_items_beyond_the_high_water_mark_do_not_wait(
    owner: Echo, transport: ScriptedTransport
) -> None:
    for _ in range(3):
        owner.link.send_item(1, bytes(MIB // 2), now=False)
    assert len(transport.writes) == 1
    assert len(transport.writes[0]) > MIB


async def test_a_peer_that_asks_and_never_reads_is_cut_off(
    owner: Echo, transport: ScriptedTransport
) -> None:
    transport.unread_bytes = 3 * MIB
    owner.link.data_received(frame(Kind.PING, 0))
    assert not transport.aborted
    transport.unread_bytes += 1
    owner.link.data_received(frame(Kind.PING, 0))
    assert transport.aborted
    assert owner.reasons == ["the peer does not read"]


async def test_nothing_is_received_or_sent_after_the_end(
    owner: Echo, transport: ScriptedTransport
) -> None:
    owner.link.send(Kind.CALL, 1)
    owner.link.lose("enough")
    owner.link.lose("again")
    owner.link.data_received(frame(Kind.CALL, 1))
    owner.link.send(Kind.CALL, 2)
    owner.link.send_item(2, b"x", now=True)
    owner.link.connection_lost(None)
    await next_turn()
    assert transport.writes == []
    assert owner.reasons == ["enough"]
    assert owner.link.reason == "enough"


async def test_the_owner_hears_when_the_peer_reads_again(
    owner: Echo, transport: ScriptedTransport
) -> None:
    owner.link.pause_writing()
    assert owner.link.blocked
    owner.link.resume_writing()
    assert not owner.link.blocked
    assert owner.writable_again == 1


async def test_unsent_bytes_count_what_waits_here_and_below(
    owner: Echo, transport: ScriptedTransport
) -> None:
    transport.unread_bytes = 100
    owner.link.send(Kind.CALL, 1, b"12345")
    assert owner.link.unsent_bytes == 100 + HEADER.size + 5


async def test_a_link_closed_before_it_was_open_aborts_what_comes_later() -> None:
    owner = Echo()
    owner.link = Link("test", ChannelSettings(), OpenDoor(), owner)
    await owner.link.close()
    assert await owner.link.entered() is False
    transport = ScriptedTransport()
    owner.link.connection_made(transport)
    assert transport.aborted
    assert owner.reasons == []


async def test_a_frame_without_hurry_leaves_with_the_next_one(
    owner: Echo, transport: ScriptedTransport
) -> None:
    owner.link.send(Kind.REPLY, 1, b"x", now=False)
    await next_turn()
    assert transport.writes == []
    owner.link.send(Kind.REPLY, 2, b"y")
    await next_turn()
    assert transport.writes == [frame(Kind.REPLY, 1, b"x") + frame(Kind.REPLY, 2, b"y")]


async def test_the_end_of_a_stream_leaves_in_one_write_with_what_came_last(
    transport: ScriptedTransport,
) -> None:
    async def produce(message: Message, caller: Caller) -> Produced:
        yield [TextProduced("a", Counts()), TextProduced("b", Counts())]

    settings = ChannelSettings(flush_s=3600.0)
    service = Service("served", {}, {Watch: produce}, settings, lambda _: None)
    accepted = Accepted(service, Caller("caller", "here"))
    accepted.link = Link("served", settings, OpenDoor(), accepted)
    accepted.link.connection_made(transport)
    accepted.link.data_received(
        frame(Kind.OPEN, 1, encode(Watch())) + frame(Kind.CREDIT, 1, encode_credit(9))
    )
    await asyncio.gather(*service.tasks)
    await next_turn()
    (written,) = transport.writes
    assert [kind for kind, _, _ in FrameParser(MIB).feed(written)] == [Kind.ITEMS, Kind.END]
    accepted.link.lose("over")
