"""Streams: batches, credit, who waits for whom, leaving early, and errors in their place."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from turnwire.actors.channel import Caller, Stream
from turnwire.actors.channel_frames import HEADER, Kind, encode, encode_credit
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings
from turnwire.pipelines.protocol.errors import (
    BY_NAME,
    ApiError,
    Internal,
    InvalidRequest,
    Overloaded,
)

if TYPE_CHECKING:
    from .conftest import RawPeer, World

Produced = AsyncGenerator[m.Message | list[m.Message], None]
MIB = 1024 * 1024
FAR_S = 3600.0
HELLO = HEADER.pack(19, 0, Kind.HELLO) + b"turnwire channel 1 "


def echo(message: m.Message, caller: Caller) -> m.Message:
    return message


def text(value: object) -> m.TextProduced:
    return m.TextProduced(str(value), m.Counts())


def frame(kind: int, stream_id: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(len(payload), stream_id, kind) + payload


async def collect(stream: Stream, found: list[str] | None = None) -> list[str]:
    found = [] if found is None else found
    async for batch in stream:
        found += [item.text for item in batch]
    return found


class Script:
    """A stream handler that yields when told to, and tells how far it came and how it ended."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[m.Message | list[m.Message] | BaseException | None] = (
            asyncio.Queue()
        )
        self.produced = 0
        self.waiting = asyncio.Semaphore(0)
        self.ended: asyncio.Queue[str] = asyncio.Queue()

    async def handle(self, message: m.Message, caller: Caller) -> Produced:
        how = "finished"
        try:
            while True:
                self.waiting.release()
                step = await self.steps.get()
                if step is None:
                    return
                if isinstance(step, BaseException):
                    raise step
                self.produced += 1
                yield step
        except BaseException as error:
            how = type(error).__name__
            raise
        finally:
            self.ended.put_nowait(how)


class Counting:
    """A stream handler that never waits by itself."""

    def __init__(self, size_bytes: int = 1) -> None:
        self.produced = 0
        self.ended = asyncio.Event()
        self._size_bytes = size_bytes

    async def handle(self, message: m.Message, caller: Caller) -> Produced:
        try:
            while True:
                self.produced += 1
                yield text("x" * self._size_bytes)
        finally:
            self.ended.set()


async def test_a_stream_arrives_whole_and_in_order_in_batches(world: "World") -> None:
    async def count(message: m.Watch, caller: Caller) -> Produced:
        for number in range(1000):
            yield text(number)

    channel = await world.join(streams={m.Watch: count})
    batches = []
    async with channel.stream(m.Watch()) as stream:
        async for batch in stream:
            batches.append(batch)
    assert [item for batch in batches for item in batch] == [text(n) for n in range(1000)]
    assert all(batches)
    assert len(batches) < 100


async def test_an_empty_stream_ends_at_once(world: "World") -> None:
    async def nothing(message: m.Watch, caller: Caller) -> Produced:
        for never in ():
            yield never

    channel = await world.join(streams={m.Watch: nothing})
    async with channel.stream(m.Watch()) as stream:
        assert await collect(stream) == []
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_list_is_one_batch_and_an_empty_list_is_nothing(world: "World") -> None:
    script = Script()
    channel = await world.join(streams={m.Watch: script.handle})
    async with channel.stream(m.Watch()) as stream:
        script.steps.put_nowait([])
        script.steps.put_nowait([text("a"), text("b")])
        assert await anext(stream) == [text("a"), text("b")]


async def test_a_list_longer_than_the_window_arrives_whole(world: "World") -> None:
    script = Script()
    channel = await world.join({}, {m.Watch: script.handle}, ChannelSettings(window=4))
    script.steps.put_nowait([text(number) for number in range(11)])
    script.steps.put_nowait(None)
    async with channel.stream(m.Watch()) as stream:
        assert await collect(stream) == [str(number) for number in range(11)]


async def test_the_first_message_leaves_at_once_and_later_ones_with_the_next_write(
    world: "World",
) -> None:
    script = Script()
    settings = ChannelSettings(flush_s=FAR_S)
    channel = await world.join({m.Open: echo}, {m.Watch: script.handle}, settings)
    async with channel.stream(m.Watch()) as stream:
        script.steps.put_nowait(text("first"))
        assert await anext(stream) == [text("first")]
        script.steps.put_nowait(text("second"))
        script.steps.put_nowait(text("third"))
        for _ in range(4):
            await script.waiting.acquire()
        second = asyncio.ensure_future(anext(stream))
        await channel.call(m.Open("c", "t"))
        assert await second == [text("second"), text("third")]
        script.steps.put_nowait(text("last"))
        script.steps.put_nowait(None)
        assert await collect(stream) == ["last"]


async def test_waiting_messages_leave_after_flush_s(world: "World") -> None:
    script = Script()
    channel = await world.join({}, {m.Watch: script.handle}, ChannelSettings(flush_s=0.001))
    async with channel.stream(m.Watch()) as stream:
        for value in ("first", "second", "third"):
            script.steps.put_nowait(text(value))
            assert await anext(stream) == [text(value)]


@pytest.mark.parametrize("window", [1, 2, 5])
async def test_a_producer_is_not_advanced_beyond_its_credit_and_others_go_on(
    world: "World", window: int
) -> None:
    idle, busy = Counting(), Script()
    channel = await world.join(
        {m.Open: echo},
        {m.Watch: idle.handle, m.Load: busy.handle},
        ChannelSettings(window=window),
    )
    waiting = channel.stream(m.Watch())
    for number in range(50):
        busy.steps.put_nowait(text(number))
    busy.steps.put_nowait(None)
    async with channel.stream(m.Load("t", "r")) as stream:
        assert await collect(stream) == [str(number) for number in range(50)]
    assert idle.produced == window
    assert len(await anext(waiting)) == window
    await channel.call(m.Open("c", "t"))
    assert window < idle.produced <= 2 * window
    await waiting.aclose()
    await idle.ended.wait()


async def test_a_caller_that_never_reads_bounds_its_producer_and_stalls_nobody_else(
    world: "World", raw_caller: Callable[[m.Endpoint], Awaitable["RawPeer"]]
) -> None:
    flood, fine = Counting(size_bytes=65_536), Script()
    endpoint = await world.listen({}, {m.Watch: flood.handle, m.Load: fine.handle})
    peer = await raw_caller(endpoint)
    await peer.until_heard(1)
    peer.transport.pause_reading()
    peer.say(frame(Kind.OPEN, 1, encode(m.Watch())))
    peer.say(frame(Kind.CREDIT, 1, encode_credit(1_000_000)))
    channel = await world.connect(endpoint)
    for number in range(500):
        fine.steps.put_nowait(text(number))
    fine.steps.put_nowait(None)
    async with channel.stream(m.Load("t", "r")) as stream:
        assert len(await collect(stream)) == 500
    assert 1 <= flood.produced * 65_536 <= 8 * MIB
    stalled_at = flood.produced
    peer.transport.resume_reading()
    await peer.until_heard((stalled_at + 50) * 65_536)
    assert flood.produced > stalled_at
    peer.leave()
    await flood.ended.wait()


async def test_leaving_before_the_first_message_cancels_the_handler(world: "World") -> None:
    script = Script()
    channel = await world.join(streams={m.Watch: script.handle})
    async with channel.stream(m.Watch()):
        await script.waiting.acquire()
    assert await script.ended.get() == "CancelledError"


async def test_leaving_at_once_never_starts_the_handler(world: "World") -> None:
    script = Script()
    channel = await world.join({m.Open: echo}, {m.Watch: script.handle})
    async with channel.stream(m.Watch()):
        pass
    await channel.call(m.Open("c", "t"))
    assert script.waiting.locked()


async def test_leaving_between_messages_runs_the_handlers_finally(world: "World") -> None:
    script = Script()
    channel = await world.join({m.Open: echo}, {m.Watch: script.handle})
    async with channel.stream(m.Watch()) as stream:
        script.steps.put_nowait(text("one"))
        async for _ in stream:
            break
    assert await script.ended.get() == "CancelledError"
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert not channel.lost


async def test_leaving_while_the_producer_waits_for_credit_closes_its_generator(
    world: "World",
) -> None:
    counting = Counting()
    channel = await world.join({}, {m.Watch: counting.handle}, ChannelSettings(window=3))
    async with channel.stream(m.Watch()) as stream:
        await anext(stream)
    await counting.ended.wait()


async def test_cancelling_the_consumer_cancels_the_handler(world: "World") -> None:
    script = Script()
    channel = await world.join(streams={m.Watch: script.handle})

    async def consume() -> None:
        async with channel.stream(m.Watch()) as stream:
            await collect(stream)

    task = asyncio.create_task(consume())
    await script.waiting.acquire()
    task.cancel()
    assert await script.ended.get() == "CancelledError"
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_leaving_after_the_end_and_twice_changes_nothing(world: "World") -> None:
    script = Script()
    channel = await world.join({m.Open: echo}, {m.Watch: script.handle})
    script.steps.put_nowait(None)
    async with channel.stream(m.Watch()) as stream:
        assert await collect(stream) == []
    await stream.aclose()
    assert await script.ended.get() == "finished"
    assert await channel.call(m.Open("c", "t")) == m.Open("c", "t")


async def test_a_generator_deaf_to_cancelling_sends_nothing_more(world: "World") -> None:
    going_on, ended = asyncio.Event(), asyncio.Event()

    async def deaf(message: m.Watch, caller: Caller) -> Produced:
        try:
            yield text("one")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                going_on.set()
            yield text("two")
        finally:
            ended.set()

    channel = await world.join({m.Open: echo}, {m.Watch: deaf})
    async with channel.stream(m.Watch()) as stream:
        await anext(stream)
    await going_on.wait()
    await ended.wait()
    await channel.call(m.Open("c", "t"))
    assert not channel.lost


@pytest.mark.parametrize("name", sorted(BY_NAME))
async def test_an_error_arrives_behind_what_was_produced_before_it(
    world: "World", name: str
) -> None:
    script = Script()
    channel = await world.join({}, {m.Watch: script.handle}, ChannelSettings(flush_s=FAR_S))
    for step in (text("one"), text("two"), BY_NAME[name]("why", "field")):
        script.steps.put_nowait(step)
    found: list[str] = []
    async with channel.stream(m.Watch()) as stream:
        with pytest.raises(ApiError, match="why") as caught:
            await collect(stream, found)
    assert type(caught.value) is BY_NAME[name]
    assert caught.value.param == "field"
    assert found == ["one", "two"]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@pytest.mark.parametrize("produced", [0, 1])
async def test_a_bug_in_a_generator_is_hidden(
    world: "World", produced: int, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    channel = await world.join(streams={m.Watch: script.handle})
    for step in [text("one")] * produced + [ValueError("confidential")]:
        script.steps.put_nowait(step)
    async with channel.stream(m.Watch()) as stream:
        with pytest.raises(Internal, match=r"^internal error$"):
            await collect(stream)
    assert len(caplog.records) == 1
    assert "Watch" in caplog.text
    assert "confidential" not in caplog.text


async def test_a_handler_that_is_no_generator_is_a_bug_of_ours(world: "World") -> None:
    channel = await world.join(streams={m.Watch: lambda message, caller: None})
    with pytest.raises(Internal):
        await anext(channel.stream(m.Watch()))


async def test_a_handler_that_refuses_before_it_streams(world: "World") -> None:
    def refuse(message: m.Watch, caller: Caller) -> Produced:
        raise InvalidRequest("not this", "input")

    channel = await world.join(streams={m.Watch: refuse})
    with pytest.raises(InvalidRequest, match="not this"):
        await anext(channel.stream(m.Watch()))


async def test_a_stream_message_too_large_fails_its_stream_alone(world: "World") -> None:
    script = Script()
    settings = ChannelSettings(max_frame_bytes=1000)
    channel = await world.join({m.Open: echo}, {m.Watch: script.handle}, settings)
    script.steps.put_nowait(text("fits"))
    script.steps.put_nowait(text("x" * 1000))
    async with channel.stream(m.Watch()) as stream:
        with pytest.raises(Internal, match="larger than a frame"):
            await collect(stream)
    assert await script.ended.get() == "GeneratorExit"
    assert await channel.call(m.Open("c", "t")) == m.Open("c", "t")


async def test_a_listener_that_sends_beyond_the_credit_is_cut_off(
    world: "World", raw_listener: Callable[..., Awaitable[m.Endpoint]]
) -> None:
    one = encode(text("x"))
    batch = b"\xdd\x00\x00\x00\x03" + one * 3
    endpoint = await raw_listener(HELLO, on_data=lambda peer: peer.say(frame(Kind.ITEMS, 1, batch)))
    channel = await world.connect(endpoint, ChannelSettings(window=2))
    with pytest.raises(Overloaded, match="went away"):
        await anext(channel.stream(m.Watch()))
    assert channel.lost


async def test_a_batch_this_side_cannot_read_fails_its_stream_and_cancels_it(
    world: "World", raw_listener: Callable[..., Awaitable[m.Endpoint]]
) -> None:
    peers: list[RawPeer] = []
    endpoint = await raw_listener(
        HELLO,
        on_data=lambda peer: peer.say(frame(Kind.ITEMS, 1, b"\xc1")),
        on_made=peers.append,
    )
    channel = await world.connect(endpoint)
    with pytest.raises(Internal, match="could not be read"):
        await anext(channel.stream(m.Watch()))
    opened = len(peers[0].heard)
    heard = await peers[0].until_heard(opened + HEADER.size)
    assert heard.endswith(frame(Kind.CANCEL, 1))
    assert not channel.lost
