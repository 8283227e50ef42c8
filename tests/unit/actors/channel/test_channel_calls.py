"""Unary calls: answers, errors, order, cancelling, and every limit with its refusal."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from turnwire.actors.channel import Caller, Channel
from turnwire.actors.channel_frames import HEADER, MAX_STREAM_ID, Kind, encode
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings
from turnwire.pipelines.protocol.errors import (
    BY_NAME,
    Internal,
    InvalidRequest,
    Overloaded,
)

if TYPE_CHECKING:
    from .conftest import RawPeer, World

MIB = 1024 * 1024
Dial = Callable[[m.Endpoint], Awaitable["RawPeer"]]


HELLO = HEADER.pack(19, 0, Kind.HELLO) + b"turnwire channel 1 "


def echo(message: m.Message, caller: Caller) -> m.Message:
    return message


class Gate:
    """A handler that waits until it is let go, and tells what became of it."""

    def __init__(self) -> None:
        self.entered = asyncio.Semaphore(0)
        self.open = asyncio.Event()
        self.ended: asyncio.Queue[str] = asyncio.Queue()

    async def handle(self, message: m.Message, caller: Caller) -> m.Message:
        self.entered.release()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.ended.put_nowait("cancelled")
            raise
        self.ended.put_nowait("done")
        return m.Done()


async def test_a_plain_handler_and_a_coroutine_answer(world: "World") -> None:
    async def later(message: m.Load, caller: Caller) -> m.Chain:
        await asyncio.sleep(0)
        return m.Chain((m.StoredTurn(message.response_id, b"[]", b"[]"),))

    channel = await world.join({m.Open: echo, m.Load: later})
    assert await channel.call(m.Open("c", "t")) == m.Open("c", "t")
    found = await channel.call(m.Load("t", "resp_1"))
    assert found == m.Chain((m.StoredTurn("resp_1", b"[]", b"[]"),))


async def test_a_plain_handler_may_return_an_awaitable(world: "World") -> None:
    behind = await world.join({m.Open: echo})
    front = await world.join({m.Open: lambda message, _: behind.call(message)})
    assert await front.call(m.Open("c", "t")) == m.Open("c", "t")


async def test_many_calls_at_once_each_get_their_own_answer(world: "World") -> None:
    channel = await world.join({m.Open: echo})
    sent = [m.Open(str(number), "t") for number in range(1000)]
    assert await asyncio.gather(*map(channel.call, sent)) == sent


async def test_handlers_know_their_caller_and_one_connection_is_one_caller(world: "World") -> None:
    seen: list[Caller] = []
    endpoint = await world.listen({m.Open: lambda _, caller: seen.append(caller) or m.Done()})
    for _ in range(2):
        channel = await world.connect(endpoint)
        await channel.call(m.Open("c", "t"))
        await channel.call(m.Open("c", "t"))
    assert seen[0] is seen[1]
    assert seen[2] is seen[3]
    assert len({seen[0], seen[2]}) == 2
    assert seen[0].id != seen[2].id
    assert not hasattr(seen[0], "__dict__")


@pytest.mark.parametrize(
    "size", [0, 1, 65_536, pytest.param(40 * MIB, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("node", ["here", "elsewhere"])
async def test_a_message_of_any_size_crosses(world: "World", node: str, size: int) -> None:
    endpoint = await world.listen({m.Stored: echo}, tcp_host="127.0.0.1")
    channel = await world.connect(endpoint, node=node, secret=world.listeners[0].secret)
    sent = m.Stored(bytes(size), b"x")
    assert await channel.call(sent) == sent


async def test_handlers_start_in_the_order_of_the_calls_whatever_their_kind(world: "World") -> None:
    started: list[str] = []

    def plain(message: m.Open, caller: Caller) -> m.Done:
        started.append(message.connection_id)
        return m.Done()

    async def waiting(message: m.Close, caller: Caller) -> m.Done:
        started.append(message.connection_id)
        await asyncio.sleep(0)
        return m.Done()

    async def stream(message: m.Load, caller: Caller) -> AsyncGenerator[m.Message, None]:
        started.append(message.response_id)
        yield m.Done()

    channel = await world.join({m.Open: plain, m.Close: waiting}, {m.Load: stream})
    calls = [channel.call(m.Open("0", "t")), channel.call(m.Close("1"))]
    calls += [channel.call(m.Open("2", "t")), channel.call(m.Close("3"))]
    opened = channel.stream(m.Load("t", "4"))
    calls += [channel.call(m.Open("5", "t"))]
    await asyncio.gather(*calls)
    await opened.aclose()
    assert started == list("012345")


@pytest.mark.parametrize("name", sorted(BY_NAME))
async def test_an_error_is_raised_at_the_caller_as_its_own_class(world: "World", name: str) -> None:
    def plain(message: m.Open, caller: Caller) -> m.Message:
        raise BY_NAME[name]("why", "field")

    async def waiting(message: m.Close, caller: Caller) -> m.Message:
        await asyncio.sleep(0)
        raise BY_NAME[name]("why", "field")

    channel = await world.join({m.Open: plain, m.Close: waiting})
    for command in (m.Open("c", "t"), m.Close("c")):
        with pytest.raises(BY_NAME[name], match="why") as caught:
            await channel.call(command)
        assert type(caught.value) is BY_NAME[name]
        assert caught.value.param == "field"


async def test_a_bug_is_logged_once_without_its_text_and_hidden_from_the_caller(
    world: "World", caplog: pytest.LogCaptureFixture
) -> None:
    def plain(message: m.Open, caller: Caller) -> m.Message:
        raise ValueError(message)

    async def waiting(message: m.Close, caller: Caller) -> m.Message:
        raise ValueError(message)

    channel = await world.join(
        {m.Open: plain, m.Close: waiting, m.Watch: lambda message, _: "no message"}
    )
    for command in (m.Open("confidential", "t"), m.Close("confidential"), m.Watch()):
        caplog.clear()
        with pytest.raises(Internal, match=r"^internal error$"):
            await channel.call(command)
        assert len(caplog.records) == 1
        assert type(command).__name__ in caplog.text
        assert "confidential" not in caplog.text
        assert "no message" not in caplog.text


async def test_a_handler_cancelled_from_inside_still_answers(world: "World") -> None:
    async def confused(message: m.Open, caller: Caller) -> m.Message:
        raise asyncio.CancelledError

    channel = await world.join({m.Open: confused})
    with pytest.raises(Internal):
        await channel.call(m.Open("c", "t"))


async def test_an_unknown_command_and_an_undecodable_one_are_refused_and_the_rest_goes_on(
    world: "World", raw_caller: Dial
) -> None:
    endpoint = await world.listen({m.Open: echo})
    channel = await world.connect(endpoint)
    with pytest.raises(InvalidRequest, match="answers no Close"):
        await channel.call(m.Close("c"))
    with pytest.raises(InvalidRequest, match="streams no Open"):
        await anext(channel.stream(m.Open("c", "t")))
    peer = await raw_caller(endpoint)
    greeting = await peer.until_heard(1)
    for stream_id, payload in ((7, b"\xc1garbage"), (8, encode(m.Open("c", "t")))):
        peer.say(HEADER.pack(len(payload), stream_id, Kind.CALL) + payload)
    good = HEADER.pack(len(payload), 8, Kind.REPLY) + payload
    while not (heard := await peer.until_heard(len(peer.heard) + 1)).endswith(good):
        assert not peer.gone.is_set()
    failure = heard[len(greeting) : -len(good)]
    assert HEADER.unpack_from(failure)[1:] == (7, Kind.FAILURE)
    assert b"InvalidRequest" in failure


async def test_cancelling_a_call_cancels_its_handler(world: "World") -> None:
    gate = Gate()
    channel = await world.join({m.Open: gate.handle, m.Close: echo})
    reply = channel.call(m.Open("c", "t"))
    await gate.entered.acquire()
    reply.cancel()
    assert await gate.ended.get() == "cancelled"
    assert await channel.call(m.Close("c")) == m.Close("c")


async def test_cancelling_the_task_that_awaits_a_call_cancels_its_handler(world: "World") -> None:
    gate = Gate()
    channel = await world.join({m.Open: gate.handle})

    async def waits() -> None:
        await channel.call(m.Open("c", "t"))

    task = asyncio.create_task(waits())
    await gate.entered.acquire()
    task.cancel()
    assert await gate.ended.get() == "cancelled"
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_call_cancelled_at_once_never_starts_its_coroutine(world: "World") -> None:
    gate = Gate()
    channel = await world.join({m.Open: gate.handle, m.Close: echo})
    channel.call(m.Open("c", "t")).cancel()
    await channel.call(m.Close("c"))
    assert gate.entered.locked()


async def test_a_deferred_call_cancelled_at_once_never_starts(world: "World") -> None:
    seen: list[m.Message] = []
    gate = Gate()
    channel = await world.join(
        {m.Open: gate.handle, m.Close: lambda msg, _: seen.append(msg) or m.Done(), m.Watch: echo}
    )
    first = channel.call(m.Open("c", "t"))
    channel.call(m.Close("c")).cancel()
    await channel.call(m.Watch())
    assert seen == []
    gate.open.set()
    await first


async def test_cancelling_after_the_answer_changes_nothing(world: "World") -> None:
    channel = await world.join({m.Open: echo})
    reply = channel.call(m.Open("c", "t"))
    await reply
    assert reply.cancel() is False
    assert await channel.call(m.Open("d", "t")) == m.Open("d", "t")


async def test_a_cancelled_handler_that_answers_anyway_is_not_heard(world: "World") -> None:
    ended = asyncio.Event()

    async def deaf(message: m.Open, caller: Caller) -> m.Message:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
        return m.Done()

    channel = await world.join({m.Open: deaf, m.Close: echo})
    reply = channel.call(m.Open("c", "t"))
    await channel.call(m.Close("c"))
    reply.cancel()
    await ended.wait()
    await channel.call(m.Close("c"))
    assert reply.cancelled()
    assert not channel.lost


async def test_calls_beyond_max_pending_are_refused_until_one_ends(world: "World") -> None:
    gate = Gate()
    channel = await world.join({m.Open: gate.handle}, settings=ChannelSettings(max_pending=2))
    running = [channel.call(m.Open(str(n), "t")) for n in range(2)]
    with pytest.raises(Overloaded, match="2 calls in flight"):
        await channel.call(m.Open("c", "t"))
    with pytest.raises(Overloaded, match="2 calls in flight"):
        await anext(channel.stream(m.Watch()))
    gate.open.set()
    await asyncio.gather(*running)
    assert await channel.call(m.Open("c", "t")) == m.Done()


async def test_a_caller_with_other_limits_meets_the_listeners(world: "World") -> None:
    gate = Gate()
    endpoint = await world.listen({m.Open: gate.handle}, settings=ChannelSettings(max_pending=2))
    channel = await world.connect(endpoint)
    running = [channel.call(m.Open(str(n), "t")) for n in range(2)]
    with pytest.raises(Overloaded, match="2 calls running"):
        await channel.call(m.Open("c", "t"))
    gate.open.set()
    await asyncio.gather(*running)


async def test_a_message_too_large_is_refused_before_it_is_sent(world: "World") -> None:
    channel = await world.join({m.Stored: echo}, settings=ChannelSettings(max_frame_bytes=1000))
    with pytest.raises(InvalidRequest, match="too large"):
        await channel.call(m.Stored(bytes(1000), b""))
    assert await channel.call(m.Stored(bytes(900), b"")) == m.Stored(bytes(900), b"")


@pytest.mark.parametrize("waiting", [False, True])
async def test_an_answer_too_large_is_an_internal_error(world: "World", waiting: bool) -> None:
    async def later(message: m.Open, caller: Caller) -> m.Stored:
        return m.Stored(bytes(1000), b"")

    def plain(message: m.Open, caller: Caller) -> m.Stored:
        return m.Stored(bytes(1000), b"")

    handler = later if waiting else plain
    channel = await world.join({m.Open: handler}, settings=ChannelSettings(max_frame_bytes=1000))
    with pytest.raises(Internal, match="larger than a frame"):
        await channel.call(m.Open("c", "t"))


async def test_calls_are_refused_when_too_much_is_unsent(
    world: "World", raw_listener: Callable[..., Awaitable[m.Endpoint]]
) -> None:
    peers: list[RawPeer] = []
    endpoint = await raw_listener(
        HELLO, on_data=lambda peer: peer.transport.pause_reading(), on_made=peers.append
    )
    settings = ChannelSettings(max_write_bytes=2 * MIB)
    channel = await world.connect(endpoint, settings)
    replies: list[asyncio.Future[m.Message]] = []
    for _ in range(50):
        replies.append(channel.call(m.Stored(bytes(MIB // 2), b"")))
        await asyncio.sleep(0)
    refused = [reply for reply in replies if reply.done()]
    assert 40 <= len(refused) < 50
    assert all("does not take" in str(reply.exception()) for reply in refused)
    assert channel._link.unsent_bytes <= 3 * MIB
    peers[0].transport.abort()
    assert await world.lost_channels.get() is channel
    for reply in replies:
        assert isinstance(reply.exception(), Overloaded)


async def test_answers_are_refused_when_the_caller_does_not_read_them(
    world: "World", raw_caller: Dial
) -> None:
    answered = asyncio.Semaphore(0)

    def large(message: m.Watch, caller: Caller) -> m.Stored:
        answered.release()
        return m.Stored(bytes(MIB), b"")

    endpoint = await world.listen({m.Watch: large}, settings=ChannelSettings(max_write_bytes=MIB))
    peer = await raw_caller(endpoint)
    await peer.until_heard(1)
    peer.transport.pause_reading()
    command = encode(m.Watch())
    for number in range(1, 21):
        peer.say(HEADER.pack(len(command), number, Kind.CALL) + command)
        await answered.acquire()
    served = next(iter(world.listeners[0]._service.connections))
    assert served.link.unsent_bytes <= 3 * MIB


async def test_stream_ids_start_again_and_skip_those_in_use(world: "World") -> None:
    gate = Gate()
    channel: Channel = await world.join({m.Open: gate.handle, m.Close: echo})
    first = channel.call(m.Open("c", "t"))
    channel._last_id = MAX_STREAM_ID - 1
    for number in range(3):
        assert await channel.call(m.Close(str(number))) == m.Close(str(number))
    assert channel._last_id == 3
    gate.open.set()
    await first


async def test_an_answer_this_side_cannot_read_fails_its_call_alone(
    world: "World", raw_listener: Callable[..., Awaitable[m.Endpoint]]
) -> None:
    def garbled(peer: "RawPeer") -> None:
        if len(peer.heard) > HEADER.size:
            stream_id = HEADER.unpack_from(peer.heard)[1]
            peer.say(HEADER.pack(1, stream_id, Kind.REPLY) + b"\xc1")

    channel = await world.connect(await raw_listener(HELLO, on_data=garbled))
    with pytest.raises(Internal, match="could not be read"):
        await channel.call(m.Watch())
    assert not channel.lost
