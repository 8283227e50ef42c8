"""Stored conversations on both databases: appended once, in order, whole, and nobody else's."""

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from postgres import rows_of

from turnwire.actors.storage import StorageActor
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, StorageSettings
from turnwire.pipelines.protocol.errors import (
    ConversationLocked,
    InvalidRequest,
    NotFound,
    PreviousResponseNotFound,
)

if TYPE_CHECKING:
    from .conftest import World

WHERE = ("red", "conv_1")


def storage(url: str, slot: int = 0, **settings: Any) -> StorageActor:  # noqa: ANN401 -- any setting
    # What these tests store is dated long ago.
    chosen = StorageSettings(url=url, max_age_days=0, **settings)
    return StorageActor(f"s{slot}", "here", chosen, ChannelSettings(), slot)


def item(id: str) -> bytes:
    return b'{"type":"message","id":"%b","role":"user","content":"hi"}' % id.encode()


def listed(*ids: str) -> bytes:
    return b"[%b]" % b",".join(map(item, ids))


def turn(id: str, sampled: bytes = b"\1\0\0\0") -> m.StoredTurn:
    return m.StoredTurn(id, listed(f"{id}_in"), listed(f"{id}_out"), "smollm2", sampled, "length")


def append(id: str, version: int, **fields: Any) -> m.AppendTurn:  # noqa: ANN401 -- any field
    return m.AppendTurn(*WHERE, version, turn(id), **fields)


def save(id: str) -> m.Save:
    return m.Save("red", id, 7, b"{}", turn(id), None, m.Chain((), "conv_1"))


async def made(channel: Any, *ids: str, conversation_id: str = "conv_1") -> None:  # noqa: ANN401
    items = tuple(map(item, ids))
    command = m.CreateConversation("red", conversation_id, 7, {"a": "b"}, items)
    shown = m.Conversation(conversation_id, 7, {"a": "b"})
    assert await channel.call(command) == shown
    assert await channel.call(command) == shown


async def ids_in(channel: Any) -> list[str]:  # noqa: ANN401
    page = await channel.call(m.ListItems(*WHERE, 100, descending=False))
    return [one.split(b'"id":"')[1].split(b'"')[0].decode() for one in page.items]


async def test_turns_are_appended_in_order_and_loaded_by_difference(
    world: "World", database_url: str
) -> None:
    channel = await world.run(storage(database_url))
    await made(channel, "a")
    assert await channel.call(append("r1", 1)) == m.Appended(2)
    assert await channel.call(append("r2", 2, save=save("r2"))) == m.Appended(3)
    assert await ids_in(channel) == ["a", "r1_in", "r1_out", "r2_in", "r2_out"]
    first = m.StoredTurn("conv_1", listed("a"), b"[]")
    whole = m.ConversationTail("conv_1", 3, 0, (first, turn("r1"), turn("r2")))
    assert await channel.call(m.LoadConversation(*WHERE)) == whole
    tail = m.ConversationTail("conv_1", 3, 2, (turn("r2"),))
    assert await channel.call(m.LoadConversation(*WHERE, 2)) == tail
    assert await channel.call(m.LoadConversation(*WHERE, 3)) == m.ConversationTail("conv_1", 3, 3)
    assert await channel.call(m.LoadConversation(*WHERE, 9)) == whole
    # Only the one that was to be saved is a stored response, and all before it is its context.
    assert rows_of(database_url, "select response_id from responses") == [("r2",)]
    chain = await channel.call(m.Load("red", "r2"))
    assert chain.turns == (first, turn("r1"), turn("r2"))


async def test_an_append_is_at_its_version_and_once(world: "World", database_url: str) -> None:
    channel = await world.run(storage(database_url))
    await made(channel)
    assert await channel.call(append("r1", 0)) == m.Appended(1)
    assert await channel.call(append("r1", 0)) == m.Appended(1)
    with pytest.raises(ConversationLocked):
        await channel.call(append("r2", 0, save=save("r2")))
    assert await ids_in(channel) == ["r1_in", "r1_out"]
    assert rows_of(database_url, "select response_id from responses") == []
    with pytest.raises(NotFound):
        await channel.call(m.AppendTurn("blue", "conv_1", 1, turn("r3")))


async def test_a_background_response_ends_and_is_appended_in_one_commit(
    world: "World", database_url: str
) -> None:
    channel = await world.run(storage(database_url))
    await made(channel)
    owner, running, over = (
        "gateway_1",
        b'{"status":"queued","background":true}',
        b'{"status":"completed"}',
    )
    for id in ("r1", "r2"):
        await channel.call(
            m.BeginBackground("red", id, owner, 7, running, listed(f"{id}_in"), (b"{}",), 10, 9)
        )

    def end(id: str) -> m.EndBackground:
        appended = append(id, 0, save=save(id))
        return m.EndBackground("red", id, owner, 1, (over,), "completed", over, None, appended)

    lost = msgspec.structs.replace(append("r1", 0, save=save("r1")), conversation_id="conv_2")
    with pytest.raises(NotFound):
        await channel.call(msgspec.structs.replace(end("r1"), append=lost))
    for _ in range(2):
        assert await channel.call(end("r1")) == m.Recorded(accepted=True)
    with pytest.raises(ConversationLocked):
        await channel.call(end("r2"))
    # What was refused has changed nothing, so it can still end in another way.
    assert await channel.call(m.Fetch("red", "r2")) == m.Stored(running, listed("r2_in"))
    assert await channel.call(m.CancelBackground("red", "r2"))
    assert await channel.call(end("r2")) == m.Recorded(accepted=False)
    assert await ids_in(channel) == ["r1_in", "r1_out"]
    assert rows_of(database_url, "select response_id from responses") == [("r1",)]


async def test_of_many_appends_at_once_one_is_taken_whole(
    world: "World", database_url: str
) -> None:
    slots = range(1 if database_url.startswith("sqlite") else 3)
    channels = [await world.run(storage(database_url, slot)) for slot in slots]
    await made(channels[0])
    answers = await asyncio.gather(
        *(channels[n % len(channels)].call(append(f"r{n}", 0)) for n in range(30)),
        return_exceptions=True,
    )
    won = [n for n, answer in enumerate(answers) if answer == m.Appended(1)]
    assert len(won) == 1
    assert sum(isinstance(answer, ConversationLocked) for answer in answers) == 29
    assert await ids_in(channels[0]) == [f"r{won[0]}_in", f"r{won[0]}_out"]


async def test_items_are_added_whole_or_not_at_all(world: "World", database_url: str) -> None:
    channel = await world.run(storage(database_url))
    await made(channel, "a")
    added = m.AddItems(*WHERE, "add_1", (item("b"), item("c")))
    assert await channel.call(added) == m.Done()
    assert await channel.call(added) == m.Done()
    with pytest.raises(InvalidRequest, match=r"items\[1\]"):
        await channel.call(m.AddItems(*WHERE, "add_2", (item("d"), item("b"))))
    assert await ids_in(channel) == ["a", "b", "c"]


async def test_items_are_paged_both_ways_and_found_by_id(world: "World", database_url: str) -> None:
    channel = await world.run(storage(database_url))
    await made(channel, *"abcde")
    page = await channel.call(m.ListItems(*WHERE, 2))
    assert page == m.ItemPage((item("e"), item("d")), more=True)
    page = await channel.call(m.ListItems(*WHERE, 2, descending=False, after="c"))
    assert page == m.ItemPage((item("d"), item("e")))
    with pytest.raises(InvalidRequest):
        await channel.call(m.ListItems(*WHERE, 2, after="x"))
    assert await channel.call(m.FetchItem(*WHERE, "c")) == m.ItemPage((item("c"),))
    with pytest.raises(NotFound):
        await channel.call(m.FetchItem(*WHERE, "x"))


async def test_a_removed_item_makes_all_of_it_to_be_loaded_again(
    world: "World", database_url: str
) -> None:
    channel = await world.run(storage(database_url))
    await made(channel, "a")
    await channel.call(append("r1", 1))
    shown = m.Conversation("conv_1", 7, {"a": "b"})
    assert await channel.call(m.DeleteItem(*WHERE, "r1_in")) == shown
    kept = m.StoredTurn("r1", b"[]", listed("r1_out"), "smollm2", b"\1\0\0\0", "length")
    tail = await channel.call(m.LoadConversation(*WHERE, 2))
    assert (tail.version, tail.since, tail.turns[1]) == (3, 0, kept)
    # What was sampled stands for the answer as a whole.
    await channel.call(m.DeleteItem(*WHERE, "a"))
    await channel.call(m.DeleteItem(*WHERE, "r1_out"))
    assert await channel.call(m.LoadConversation(*WHERE)) == m.ConversationTail("conv_1", 5)
    with pytest.raises(ConversationLocked):
        await channel.call(append("r2", 2))
    assert await channel.call(append("r2", 5)) == m.Appended(6)


async def test_a_deleted_conversation_takes_its_items_and_leaves_the_responses(
    world: "World", database_url: str
) -> None:
    channel = await world.run(storage(database_url))
    await made(channel, "a")
    await made(channel, "a", conversation_id="conv_2")
    await channel.call(append("r1", 1, save=save("r1")))
    with pytest.raises(NotFound):
        await channel.call(m.DeleteConversation("blue", "conv_1"))
    assert await channel.call(m.DeleteConversation(*WHERE)) == m.Done()
    for table in ("conversations", "conversation_turns", "conversation_items"):
        left = rows_of(database_url, f"select conversation_id from {table}")
        assert left == [("conv_2",)]
    commands = (
        m.FetchConversation(*WHERE),
        m.LoadConversation(*WHERE),
        m.ListItems(*WHERE, 5),
        m.FetchItem(*WHERE, "a"),
        m.UpdateConversation(*WHERE, {}),
        m.DeleteItem(*WHERE, "a"),
        m.AddItems(*WHERE, "add_1", ()),
        append("r2", 2),
        m.DeleteConversation(*WHERE),
    )
    for command in commands:
        with pytest.raises(NotFound):
            await channel.call(command)
    assert await channel.call(m.Fetch("red", "r1")) == m.Stored(b"{}", listed("r1_in"))
    with pytest.raises(PreviousResponseNotFound, match="conversation"):
        await channel.call(m.Load("red", "r1"))


async def test_metadata_is_replaced(world: "World", database_url: str) -> None:
    channel = await world.run(storage(database_url))
    await made(channel)
    changed = m.Conversation("conv_1", 7, {"c": "ä"})
    assert await channel.call(m.UpdateConversation(*WHERE, {"c": "ä"})) == changed
    assert await channel.call(m.FetchConversation(*WHERE)) == changed


async def test_all_bounds_are_refused_by_name_and_a_turn_is_never_cut(
    world: "World", database_url: str
) -> None:
    bounds = {"max_conversations": 1, "max_conversation_items": 2, "max_conversation_bytes": 200}
    channel = await world.run(storage(database_url, **bounds))
    with pytest.raises(InvalidRequest, match="at most 2 items"):
        await made(channel, "a", "b", "c")
    await made(channel, "a")
    with pytest.raises(InvalidRequest, match="delete some first"):
        await made(channel, conversation_id="conv_2")
    with pytest.raises(InvalidRequest, match="200 bytes"):
        await channel.call(m.AddItems(*WHERE, "add_1", (item("b" * 200),)))
    assert await channel.call(append("r1", 1)) == m.Appended(2)
    with pytest.raises(InvalidRequest, match="at most 2 items"):
        await channel.call(m.LoadConversation(*WHERE))
