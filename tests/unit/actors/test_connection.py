"""The commands of a connection actor, in process and over its channel."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from turnwire.actors.channel import Channel
from turnwire.actors.connection import ConnectionActor, ConnectionCore
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, ConnectionSettings
from turnwire.pipelines.protocol.errors import Forbidden, InvalidRequest, NotFound, Overloaded

MODEL = m.Model("sim", "items")
CHANNEL = ChannelSettings()


def prepare(
    response_id: str, parent: str | None = None, connection_id: str = "c1", **fields: object
) -> m.Prepare:
    body = {"model": "sim", "input": "hi", "previous_response_id": parent} | fields
    return m.Prepare(connection_id, response_id, json.dumps(body).encode(), MODEL)


def core(**settings: int) -> ConnectionCore:
    made = ConnectionCore(ConnectionSettings(**settings), bytes)
    made.open(m.Open("c1", "acme"))
    return made


def finish(connections: ConnectionCore, response_id: str, connection_id: str = "c1") -> None:
    connections.commit(m.Commit(connection_id, response_id, b"[]"))


def test_connections_of_one_actor_know_nothing_of_each_other() -> None:
    connections = core()
    connections.open(m.Open("c2", "acme"))
    connections.prepare(prepare("resp_1"))
    finish(connections, "resp_1")
    assert isinstance(connections.prepare(prepare("resp_2", "resp_1")), m.Prepared)
    other = connections.prepare(prepare("resp_2", "resp_1", "c2"))
    assert other == m.ParentUnknown("resp_1")


def test_an_actor_serves_one_tenant_for_good() -> None:
    connections = core()
    with pytest.raises(Forbidden):
        connections.open(m.Open("c2", "rival"))
    connections.close(m.Close("c1"))
    with pytest.raises(Forbidden):
        connections.open(m.Open("c2", "rival"))


def test_opening_again_keeps_the_state_and_closing_drops_it() -> None:
    connections = core()
    connections.prepare(prepare("resp_1"))
    finish(connections, "resp_1")
    connections.open(m.Open("c1", "acme"))
    assert isinstance(connections.prepare(prepare("resp_2", "resp_1")), m.Prepared)
    connections.close(m.Close("c1"))
    connections.close(m.Close("c1"))
    connections.open(m.Open("c1", "acme"))
    assert isinstance(connections.prepare(prepare("resp_3", "resp_1")), m.ParentUnknown)


def test_a_connection_that_is_not_open_has_no_state() -> None:
    connections = core()
    with pytest.raises(Overloaded):
        connections.prepare(prepare("resp_1", connection_id="c9"))
    with pytest.raises(NotFound):
        connections.recall(m.Recall("c9", "resp_1"))
    finish(connections, "resp_1", "c9")
    connections.abort(m.Abort("c9", "resp_1", True))
    assert len(connections) == 1


def test_connections_are_refused_beyond_a_bound() -> None:
    connections = core(connections_per_actor=1)
    connections.open(m.Open("c2", "acme"))
    with pytest.raises(Overloaded):
        connections.open(m.Open("c3", "acme"))
    connections.close(m.Close("c1"))
    connections.open(m.Open("c3", "acme"))


@asynccontextmanager
async def serving(
    orphan_s: float = 30.0, models: tuple[m.Model, ...] = ()
) -> AsyncGenerator[tuple[ConnectionActor, m.Endpoint]]:
    with TemporaryDirectory() as folder:
        settings = ConnectionSettings(orphan_s=orphan_s)
        actor = ConnectionActor(
            "a1", "here", str(Path(folder) / "s"), settings, CHANNEL, models=models
        )
        try:
            yield actor, await actor.start()
        finally:
            await actor.close()


async def test_turns_travel_over_the_channel_and_refusals_keep_their_class() -> None:
    async with serving() as (_, endpoint):
        channel = await Channel.connect(endpoint, CHANNEL, node="here")
        assert await channel.call(m.Open("c1", "acme")) == m.Done()
        prepared = await channel.call(prepare("resp_1"))
        assert isinstance(prepared, m.Prepared)
        # Sent without waiting: commands keep their order.
        answers = await asyncio.gather(
            channel.call(m.Commit("c1", "resp_1", b"[]")),
            channel.call(prepare("resp_2", "resp_1")),
            channel.call(m.Recall("c1", "resp_2")),
        )
        assert answers[0] == m.Done()
        assert isinstance(answers[1], m.Prepared)
        assert isinstance(answers[2], m.ItemPrompt)
        with pytest.raises(InvalidRequest) as refusal:
            await channel.call(prepare("resp_3", temperature="hot"))
        assert refusal.value.param == "temperature"
        await channel.close()


async def test_a_gateway_that_dials_again_finds_its_connections() -> None:
    async with serving() as (_, endpoint):
        first = await Channel.connect(endpoint, CHANNEL, node="here")
        await first.call(m.Open("c1", "acme"))
        await first.call(prepare("resp_1"))
        await first.call(m.Commit("c1", "resp_1", b"[]"))
        await first.close()
        second = await Channel.connect(endpoint, CHANNEL, node="here")
        assert isinstance(await second.call(prepare("resp_2", "resp_1")), m.Prepared)
        await second.close()


async def test_a_gateway_that_stays_away_leaves_no_state_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(orphan_s=0.001) as (actor, endpoint):
        dropped = asyncio.Event()
        drop_all = actor._core.drop_all

        def drop() -> None:
            drop_all()
            dropped.set()

        monkeypatch.setattr(actor._core, "drop_all", drop)
        channel = await Channel.connect(endpoint, CHANNEL, node="here")
        await channel.call(m.Open("c1", "acme"))
        await channel.close()
        async with asyncio.timeout(10):
            await dropped.wait()
        assert len(actor._core) == 0


async def test_state_stays_while_anybody_is_connected() -> None:
    async with serving() as (actor, endpoint):
        channel = await Channel.connect(endpoint, CHANNEL, node="here")
        await channel.call(m.Open("c1", "acme"))
        actor._drop_orphans()
        assert len(actor._core) == 1
        await channel.close()


async def test_a_model_without_tokenizer_does_not_keep_the_actor_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = m.Model("lost", "tokens", "chatml", "/nowhere/tokenizer.json")
    async with serving(models=(MODEL, broken)) as (_, endpoint):
        assert endpoint.unix
    assert "lost" in caplog.text


def test_a_deleted_response_is_no_parent_on_any_connection_of_the_actor() -> None:
    connections = core()
    connections.open(m.Open("c2", "acme"))
    for connection_id in ("c1", "c2"):
        connections.prepare(prepare("resp_1", None, connection_id))
        finish(connections, "resp_1", connection_id)
    connections.prepare(prepare("resp_2"))
    for response_id in ("resp_1", "resp_2"):
        connections.forget(m.Forget(response_id))
    finish(connections, "resp_2")
    for connection_id in ("c1", "c2"):
        for parent in ("resp_1", "resp_2"):
            answer = connections.prepare(prepare("resp_3", parent, connection_id))
            assert answer == m.ParentUnknown(parent)


def test_a_response_deleted_between_load_and_prepare_is_continued_once_at_most() -> None:
    connections = core()
    chain = m.Chain((m.StoredTurn("resp_1", b"[]", b"[]"),))
    connections.forget(m.Forget("resp_1"))
    loaded = msgspec.structs.replace(prepare("resp_2", "resp_1"), chain=chain)
    assert isinstance(connections.prepare(loaded), m.Prepared)
    assert connections.prepare(prepare("resp_3", "resp_1")) == m.ParentUnknown("resp_1")


def test_a_count_of_a_connection_that_is_not_open_is_refused() -> None:
    with pytest.raises(Overloaded):
        core().count(m.CountTokens("c9", b"{}", MODEL))
