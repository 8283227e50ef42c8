"""Who is let in: users, secrets, certificates, folders, and how many may stand at the door."""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
import pytest

from turnwire.actors.channel import Caller, Channel
from turnwire.actors.channel_doors import (
    NONCE_BYTES,
    SecretCallerDoor,
    SecretListenerDoor,
    caller_tls,
    make_certificate,
)
from turnwire.actors.channel_frames import HEADER, Kind, encode
from turnwire.actors.channel_link import Link
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings
from turnwire.pipelines.protocol.errors import Overloaded

if TYPE_CHECKING:
    from .conftest import RawPeer, World

LOOPBACK = "127.0.0.1"
FINGERPRINT = "ab" * 32


def done(message: m.Message, caller: Caller) -> m.Done:
    return m.Done()


def frame(kind: int, stream_id: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), stream_id, kind) + payload


class BareCallerDoor(SecretCallerDoor):
    """The caller's side without TLS below it."""

    def greet(self, transport: asyncio.BaseTransport) -> bytes | None:
        return None


async def test_calls_work_over_tcp_with_the_secret(world: "World") -> None:
    endpoint = await world.listen({m.Watch: done}, tcp_host=LOOPBACK)
    channel = await world.connect(endpoint, node="elsewhere", secret=world.listeners[0].secret)
    assert await channel.call(m.Watch()) == m.Done()


async def test_both_ends_of_a_tcp_channel_send_without_delay(world: "World") -> None:
    callers: list[Caller] = []
    endpoint = await world.listen(
        {m.Watch: lambda _, caller: callers.append(caller) or m.Done()}, tcp_host=LOOPBACK
    )
    channel = await world.connect(endpoint, node="elsewhere", secret=world.listeners[0].secret)
    await channel.call(m.Watch())
    served = next(iter(world.listeners[0]._service.connections))
    for link in (channel._link, served.link):
        assert link._transport is not None
        connection = link._transport.get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert callers[0].peer.startswith("tcp:127.0.0.1:")


@pytest.mark.parametrize("secret", [b"", b"wrong" * 8], ids=["none", "wrong"])
async def test_a_caller_with_another_secret_is_refused_and_nothing_is_dispatched(
    world: "World", secret: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[m.Message] = []
    endpoint = await world.listen({m.Watch: lambda msg, _: seen.append(msg)}, tcp_host=LOOPBACK)
    with pytest.raises(Overloaded, match="cannot be reached"):
        await world.connect(endpoint, node="elsewhere", secret=secret)
    assert seen == []
    assert "does not hold the secret" in caplog.text
    assert world.lost_callers.empty()


async def test_a_listener_with_another_certificate_is_refused_before_a_word_is_said(
    world: "World", caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = await world.listen({m.Watch: done}, tcp_host=LOOPBACK)
    other = msgspec.structs.replace(endpoint, fingerprint=make_certificate().fingerprint)
    with pytest.raises(Overloaded, match="another certificate"):
        await world.connect(other, node="elsewhere", secret=world.listeners[0].secret)


async def test_older_tls_is_refused(world: "World", caplog: pytest.LogCaptureFixture) -> None:
    endpoint = await world.listen({m.Watch: done}, tcp_host=LOOPBACK)
    host, port = endpoint.tcp.split(":")
    context = caller_tls()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection(host, int(port), ssl=context, server_hostname="")
    await world.listeners[0].close()
    assert "SSLError" in caplog.text


async def test_another_user_is_refused_on_a_unix_socket(world: "World") -> None:
    seen: list[m.Message] = []
    endpoint = await world.listen(
        {m.Watch: lambda msg, _: seen.append(msg)}, read_uid=lambda _: os.geteuid() + 1
    )
    with pytest.raises(Overloaded, match="cannot be reached"):
        await world.connect(endpoint)
    assert seen == []


async def test_a_listener_of_another_protocol_is_refused(
    world: "World", raw_listener: Callable[..., Awaitable[m.Endpoint]]
) -> None:
    endpoint = await raw_listener(frame(Kind.HELLO, 0, b"turnwire channel 0 "))
    with pytest.raises(Overloaded, match="another protocol"):
        await world.connect(endpoint)


class Owner:
    """Remembers what a link let through."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, bytes]] = []
        self.end: str | None = None

    def frame_received(self, kind: int, stream_id: int, payload: memoryview) -> None:
        self.frames.append((kind, stream_id, bytes(payload)))

    def writable(self) -> None:
        raise AssertionError("nothing was ever blocked")

    def ended(self, reason: str) -> None:
        self.end = reason


CALL = frame(Kind.CALL, 1, encode(m.Watch()))


async def at_door(owner: Owner) -> tuple[Link, asyncio.StreamReader, asyncio.StreamWriter]:
    """A listener's link without TLS, and the raw other end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = Link("test", ChannelSettings(), SecretListenerDoor(b"s", FINGERPRINT), owner)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: link, ours)
    reader, writer = await asyncio.open_unix_connection(sock=theirs)
    return link, reader, writer


async def test_a_proof_cut_at_any_byte_opens_nothing() -> None:
    size = HEADER.size + NONCE_BYTES + 32
    for cut in range(size + 1):
        owner = Owner()
        link, reader, writer = await at_door(owner)
        challenge = (await reader.readexactly(HEADER.size + NONCE_BYTES))[HEADER.size :]
        proof = frame(Kind.HELLO, 0, BareCallerDoor(b"s", FINGERPRINT).answer(challenge) or b"")
        assert len(proof) == size
        writer.write(proof[:cut])
        writer.write_eof()
        assert await link.entered() is (cut == size)
        await reader.read()
        writer.close()
        await link.close()
        assert owner.frames == []
        assert (owner.end is not None) is (cut == size)


@pytest.mark.parametrize("said", [CALL, frame(Kind.HELLO, 0, b"x" * 64) + CALL], ids=["1", "2"])
async def test_a_frame_before_the_door_is_passed_closes_it(said: bytes) -> None:
    owner = Owner()
    link, reader, writer = await at_door(owner)
    writer.write(said)
    assert await link.entered() is False
    await reader.read()
    writer.close()
    assert owner.frames == []
    assert owner.end is None


async def test_a_large_frame_before_the_door_is_passed_is_refused_by_its_header() -> None:
    link, reader, writer = await at_door(Owner())
    writer.write(HEADER.pack(1_000_000, 0, Kind.HELLO))
    assert await link.entered() is False
    assert "1000000 bytes" in str(link.reason)
    await reader.read()
    writer.close()


async def test_what_follows_the_proof_in_the_same_write_is_received() -> None:
    owner = Owner()
    link, reader, writer = await at_door(owner)
    challenge = (await reader.readexactly(HEADER.size + NONCE_BYTES))[HEADER.size :]
    proof = BareCallerDoor(b"s", FINGERPRINT).answer(challenge) or b""
    large = frame(Kind.CALL, 1, bytes(5000))
    writer.write(frame(Kind.HELLO, 0, proof) + large)
    writer.write_eof()
    assert await link.entered() is True
    await reader.read()
    writer.close()
    await link.close()
    assert owner.frames == [(Kind.CALL, 1, bytes(5000))]


async def test_a_caller_that_says_nothing_is_put_out_in_time(world: "World") -> None:
    settings = ChannelSettings(connect_s=0.05)
    endpoint = await world.listen({m.Watch: done}, settings=settings, tcp_host=LOOPBACK)
    host, port = endpoint.tcp.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    assert await reader.read() == b""
    writer.close()


async def test_only_so_many_may_stand_at_the_door(world: "World") -> None:
    settings = ChannelSettings(max_at_door=1)
    endpoint = await world.listen({m.Watch: done}, settings=settings, tcp_host=LOOPBACK)
    host, port = endpoint.tcp.split(":")
    _, first = await asyncio.open_connection(host, int(port))
    reader, second = await asyncio.open_connection(host, int(port))
    assert await reader.read() == b""
    second.close()
    first.close()
    secret = world.listeners[0].secret
    while True:
        try:
            channel = await world.connect(endpoint, node="elsewhere", secret=secret)
            break
        except Overloaded:  # the first one's end is still on its way
            continue
    assert await channel.call(m.Watch()) == m.Done()


async def test_a_listener_that_does_not_answer_is_given_up_in_time(
    raw_listener: Callable[..., Awaitable[m.Endpoint]],
) -> None:
    peers: list[RawPeer] = []
    endpoint = await raw_listener(b"", on_made=peers.append)
    with pytest.raises(Overloaded, match="cannot be reached"):
        await Channel.connect(endpoint, ChannelSettings(connect_s=0.05), node="here")
    await peers[0].gone.wait()


async def test_a_socket_that_is_not_there_and_an_endpoint_without_a_way_are_refused() -> None:
    gone = m.Endpoint("w", "here", "/nonexistent/x.sock", f"{LOOPBACK}:1", FINGERPRINT)
    for node in ("here", "elsewhere"):
        with pytest.raises(Overloaded, match="w cannot be reached"):
            await Channel.connect(gone, ChannelSettings(), node=node)
    with pytest.raises(Overloaded, match="from node elsewhere"):
        await Channel.connect(m.Endpoint("w", "here"), ChannelSettings(), node="elsewhere")


async def test_a_cancelled_connect_leaves_no_connection(
    raw_listener: Callable[..., Awaitable[m.Endpoint]],
) -> None:
    peers: asyncio.Queue[RawPeer] = asyncio.Queue()
    endpoint = await raw_listener(b"", on_made=peers.put_nowait)
    connecting = asyncio.create_task(Channel.connect(endpoint, ChannelSettings(), node="here"))
    peer = await peers.get()
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    await peer.gone.wait()


async def test_the_secret_shows_in_no_repr_and_no_log(
    world: "World", caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    endpoint = await world.listen({m.Watch: done}, tcp_host=LOOPBACK)
    secret = world.listeners[0].secret
    channel = await world.connect(endpoint, node="elsewhere", secret=secret)
    certificate = make_certificate()
    shown = f"{world.listeners[0]!r} {channel!r} {endpoint!r} {certificate!r} {caplog.text}"
    assert repr(secret) not in shown
    assert secret.hex() not in shown
    assert "PRIVATE KEY" not in shown
