"""Ends: a cut at every byte, peers that go or fall silent, orderly closing, and who is told."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from turnwire.actors.channel import Caller, Channel, Listener
from turnwire.actors.channel_frames import HEADER, Kind, encode
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings
from turnwire.pipelines.protocol.errors import Overloaded

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import RawPeer, World

Dial = Callable[[m.Endpoint], Awaitable["RawPeer"]]
Pose = Callable[..., Awaitable[m.Endpoint]]
HELLO = HEADER.pack(19, 0, Kind.HELLO) + b"turnwire channel 1 "
QUIET = ChannelSettings(heartbeat_s=0.01, silence_s=0.1)


def frame(kind: int, stream_id: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(len(payload), stream_id, kind) + payload


def echo(message: m.Message, caller: Caller) -> m.Message:
    return message


class Held:
    """A call and a stream that wait until they are cancelled."""

    def __init__(self) -> None:
        self.entered = asyncio.Semaphore(0)
        self.cancelled = asyncio.Semaphore(0)
        self.clean = asyncio.Event()
        self.clean.set()

    async def wait(self) -> None:
        self.entered.release()
        try:
            await asyncio.Event().wait()
        finally:
            await self.clean.wait()
            self.cancelled.release()

    async def call(self, message: m.Message, caller: Caller) -> m.Message:
        await self.wait()
        return m.Done()

    async def stream(self, message: m.Message, caller: Caller) -> AsyncGenerator[m.Message, None]:
        await self.wait()
        yield m.Done()


CALL = frame(Kind.CALL, 1, encode(m.Open("connection", "tenant")))


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
async def test_a_call_cut_at_any_byte_is_never_dispatched_and_a_whole_one_once(
    world: "World", raw_caller: Dial, split: bool
) -> None:
    seen: list[m.Message] = []
    endpoint = await world.listen({m.Open: lambda msg, _: seen.append(msg) or m.Done()})
    for cut in range(len(CALL) + 1):
        peer = await raw_caller(endpoint)
        await peer.until_heard(len(HELLO))
        for part in (CALL[: cut // 2], CALL[cut // 2 : cut]) if split else (CALL[:cut],):
            peer.say(part)
        peer.leave()
        await world.lost_callers.get()
        assert len(seen) == (cut == len(CALL))
    assert world.lost_callers.empty()


async def test_an_answer_cut_at_any_byte_fails_all_that_is_open(
    world: "World", raw_listener: Pose
) -> None:
    answer = frame(Kind.REPLY, 1, encode(m.Stored(b"response", b"input")))
    for cut in range(len(answer) + 1):

        def answer_and_leave(peer: "RawPeer", cut: int = cut) -> None:
            peer.say(answer[:cut])
            peer.leave()

        channel = await world.connect(await raw_listener(HELLO, on_data=answer_and_leave))
        reply, other = channel.call(m.Watch()), channel.call(m.Watch())
        stream = channel.stream(m.Watch())
        assert await world.lost_channels.get() is channel
        assert channel.lost
        if cut == len(answer):
            assert reply.result() == m.Stored(b"response", b"input")
        else:
            assert isinstance(reply.exception(), Overloaded)
        assert "raw went away" in str(other.exception())
        with pytest.raises(Overloaded, match="raw went away"):
            await anext(stream)
    assert world.lost_channels.empty()


async def test_a_greeting_cut_at_any_byte_is_no_connection(raw_listener: Pose) -> None:
    for cut in range(len(HELLO)):
        endpoint = await raw_listener(HELLO[:cut], brief=True)
        with pytest.raises(Overloaded, match="cannot be reached"):
            await Channel.connect(endpoint, ChannelSettings(), node="here")


async def test_what_arrived_before_the_loss_is_taken_before_it_is_raised(
    world: "World", raw_listener: Pose
) -> None:
    item = m.TextProduced("a", m.Counts(1, 0, 1))

    def answer_and_die(peer: "RawPeer") -> None:
        peer.say(frame(Kind.ITEMS, 1, b"\xdd\x00\x00\x00\x01" + encode(item)))
        peer.leave()

    channel = await world.connect(await raw_listener(HELLO, on_data=answer_and_die))
    stream = channel.stream(m.Watch())
    await world.lost_channels.get()
    assert await anext(stream) == [item]
    with pytest.raises(Overloaded):
        await anext(stream)


async def test_a_lost_caller_cancels_its_handlers_and_is_reported_once(
    world: "World", raw_caller: Dial
) -> None:
    held = Held()
    endpoint = await world.listen({m.Open: held.call}, {m.Watch: held.stream})
    peer = await raw_caller(endpoint)
    await peer.until_heard(len(HELLO))
    peer.say(CALL + frame(Kind.OPEN, 2, encode(m.Watch())))
    peer.say(frame(Kind.CREDIT, 2, b"\x01\0\0\0"))
    await held.entered.acquire()
    await held.entered.acquire()
    peer.transport.abort()
    await held.cancelled.acquire()
    await held.cancelled.acquire()
    await world.lost_callers.get()
    await world.listeners[0].close()
    assert world.lost_callers.empty()


async def test_a_lost_channel_refuses_everything_at_once(
    world: "World", raw_listener: Pose
) -> None:
    peers: list[RawPeer] = []
    channel = await world.connect(await raw_listener(HELLO, on_made=peers.append))
    peers[0].transport.abort()
    await world.lost_channels.get()
    assert channel.call(m.Watch()).done()
    with pytest.raises(Overloaded, match="went away"):
        await channel.call(m.Watch())
    with pytest.raises(Overloaded, match="went away"):
        await anext(channel.stream(m.Watch()))


async def test_an_error_in_on_lost_is_logged_and_ends_nothing_else(
    world: "World", caplog: pytest.LogCaptureFixture, folder: "Path"
) -> None:
    def broken(caller: Caller) -> None:
        raise ValueError(caller.peer)

    listener = Listener("l", "here", {m.Open: echo}, {}, ChannelSettings(), broken)
    world.listeners.append(listener)
    endpoint = await listener.start(folder=folder)
    first, second = await world.connect(endpoint), await world.connect(endpoint)
    await first.call(m.Open("c", "t"))
    await first.close()
    while "on_lost" not in caplog.text:
        assert await second.call(m.Open("c", "t")) == m.Open("c", "t")
    assert "ValueError" in caplog.text
    assert "unix:" not in caplog.text


async def test_an_error_in_a_channels_on_lost_is_logged_and_the_connection_still_ends(
    raw_listener: Pose, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(channel: Channel) -> None:
        raise ValueError(channel.endpoint.unix)

    peers: list[RawPeer] = []
    endpoint = await raw_listener(
        HELLO, on_data=lambda peer: peer.say(frame(Kind.END, 1)), on_made=peers.append
    )
    channel = await Channel.connect(endpoint, ChannelSettings(), node="here", on_lost=broken)
    with pytest.raises(Overloaded, match="went away"):
        await channel.call(m.Watch())
    await peers[0].gone.wait()
    assert "on_lost: ValueError" in caplog.text
    await channel.close()


async def test_a_listener_that_falls_silent_is_lost(world: "World", raw_listener: Pose) -> None:
    channel = await world.connect(await raw_listener(HELLO), QUIET)
    reply = channel.call(m.Watch())
    assert await world.lost_channels.get() is channel
    with pytest.raises(Overloaded, match="went away"):
        await reply


async def test_a_caller_that_falls_silent_is_lost(world: "World", raw_caller: Dial) -> None:
    held = Held()
    endpoint = await world.listen({m.Open: held.call}, settings=QUIET)
    peer = await raw_caller(endpoint)
    peer.say(CALL)
    await world.lost_callers.get()
    await held.cancelled.acquire()
    await peer.gone.wait()


async def test_a_peer_that_only_answers_heartbeats_is_kept(
    world: "World", raw_listener: Pose
) -> None:
    answered: asyncio.Queue[int] = asyncio.Queue()

    def pong(peer: "RawPeer") -> None:
        peer.say(frame(Kind.PONG, 0))
        answered.put_nowait(len(peer.heard))

    channel = await world.connect(await raw_listener(HELLO, on_data=pong), QUIET)
    for _ in range(20):  # twice the silence that would end it
        await answered.get()
    assert not channel.lost


async def test_a_heartbeat_is_answered_by_the_protocol_itself(
    world: "World", raw_caller: Dial
) -> None:
    peer = await raw_caller(await world.listen())
    await peer.until_heard(len(HELLO))
    peer.say(frame(Kind.PING, 0))
    heard = await peer.until_heard(len(HELLO) + HEADER.size)
    assert heard[len(HELLO) :] == frame(Kind.PONG, 0)


async def test_a_loop_that_was_blocked_longer_than_the_silence_takes_nobody_for_dead(
    world: "World",
) -> None:
    def block(message: m.Open, caller: Caller) -> m.Done:
        time.sleep(1.2 * QUIET.silence_s)
        return m.Done()

    channel = await world.join({m.Open: block}, settings=QUIET)
    assert await channel.call(m.Open("c", "t")) == m.Done()
    assert await channel.call(m.Open("c", "t")) == m.Done()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (HEADER.pack(0, 1, 99), "unknown frame kind 99"),
        (HEADER.pack(1001, 1, Kind.CALL), "frame of 1001 bytes"),
        (frame(Kind.REPLY, 1), "frame of kind 3"),
        (frame(Kind.HELLO, 0), "hello, and the door is open"),
        (frame(Kind.CALL, 0, encode(m.Watch())), "stream id 0 is not free"),
        (CALL + CALL, "stream id 1 is not free"),
        (
            frame(Kind.OPEN, 1, encode(m.Watch())) + frame(Kind.CREDIT, 1, b"12345"),
            "credit of a wrong size",
        ),
    ],
    ids=["kind", "size", "reply", "hello", "zero", "twice", "credit"],
)
async def test_a_caller_that_breaks_the_protocol_is_cut_off_with_a_logged_reason(
    world: "World", raw_caller: Dial, said: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held()
    settings = ChannelSettings(max_frame_bytes=1000)
    endpoint = await world.listen({m.Open: held.call}, {m.Watch: held.stream}, settings)
    peer = await raw_caller(endpoint)
    await peer.until_heard(len(HELLO))
    peer.say(said)
    await peer.gone.wait()
    assert reason in caplog.text
    assert (await world.lost_callers.get()).peer.startswith("unix:")


@pytest.mark.parametrize(
    "said",
    [frame(Kind.END, 1), frame(Kind.ITEMS, 1), frame(Kind.CALL, 1), frame(Kind.HELLO, 0)],
    ids=["end", "items", "call", "hello"],
)
async def test_a_listener_that_breaks_the_protocol_is_lost(
    world: "World", raw_listener: Pose, said: bytes
) -> None:
    endpoint = await raw_listener(HELLO, on_data=lambda peer: peer.say(said))
    channel = await world.connect(endpoint)
    with pytest.raises(Overloaded, match="went away"):
        await channel.call(m.Watch())


async def test_closing_a_channel_sends_what_was_commanded_and_reports_no_loss(
    world: "World",
) -> None:
    seen: list[m.Message] = []
    channel = await world.join({m.Close: lambda msg, _: seen.append(msg) or m.Done()})
    replies = [channel.call(m.Close(str(number))) for number in range(3)]
    stream = channel.stream(m.Watch())
    await channel.close()
    await world.lost_callers.get()
    assert seen == [m.Close(str(number)) for number in range(3)]
    assert channel.lost
    assert world.lost_channels.empty()
    for reply in replies:
        assert "was closed" in str(reply.exception())
    with pytest.raises(Overloaded, match="was closed"):
        await anext(stream)
    await channel.close()


async def test_a_listener_that_closes_ends_its_callers_and_waits_for_their_handlers(
    world: "World",
) -> None:
    held = Held()
    held.clean.clear()
    channel = await world.join({m.Open: held.call}, {m.Watch: held.stream})
    reply, stream = channel.call(m.Open("c", "t")), channel.stream(m.Watch())
    await held.entered.acquire()
    await held.entered.acquire()
    closing = asyncio.create_task(world.listeners[0].close())
    assert await world.lost_channels.get() is channel
    assert not closing.done()
    held.clean.set()
    await closing
    assert not held.cancelled.locked()
    with pytest.raises(Overloaded, match="went away"):
        await reply
    with pytest.raises(Overloaded, match="went away"):
        await anext(stream)
    await world.listeners[0].close()


async def test_a_draining_listener_finishes_streams_answers_calls_and_takes_no_new_ones(
    world: "World",
) -> None:
    let_go = asyncio.Event()

    async def stream(message: m.Watch, caller: Caller) -> AsyncGenerator[m.Message, None]:
        yield m.Done()
        await let_go.wait()
        yield m.Close("last")

    endpoint = await world.listen({m.Open: echo}, {m.Watch: stream})
    channel = await world.connect(endpoint)
    running = channel.stream(m.Watch())
    assert await anext(running) == [m.Done()]
    closing = asyncio.create_task(world.listeners[0].close(grace_s=60))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="is draining"):
        await anext(channel.stream(m.Watch()))
    assert await channel.call(m.Open("c", "t")) == m.Open("c", "t")
    with pytest.raises(Overloaded, match="cannot be reached"):
        await Channel.connect(endpoint, ChannelSettings(), node="here")
    let_go.set()
    assert await anext(running) == [m.Close("last")]
    await closing


async def test_the_grace_of_a_draining_listener_ends(world: "World") -> None:
    held = Held()
    channel = await world.join({m.Open: held.call})
    reply = channel.call(m.Open("c", "t"))
    await held.entered.acquire()
    await world.listeners[0].close(grace_s=0.01)
    with pytest.raises(Overloaded):
        await reply


async def test_a_listener_that_cannot_bind_leaves_nothing_open(
    world: "World", folder: "Path"
) -> None:
    listener = Listener("l", "here", {}, {}, ChannelSettings())
    with pytest.raises(OSError, match=r".+"):
        await listener.start(folder=folder, tcp_host="198.51.100.1")
