"""The ports of a turn without processes: a real connection core, and an engine that plays a script.

Every port call passes `World.step`, which can fail or hang there: that is how a test puts a fault
or a cancel at each step of a turn.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson
from local_conversations import LocalConversations

from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ConnectionSettings
from turnwire.pipelines.connection import ConnectionState
from turnwire.pipelines.protocol.errors import (
    ApiError,
    ModelNotFound,
    NotFound,
    Overloaded,
    PreviousResponseNotFound,
)
from turnwire.pipelines.sealing import Keyring

MODEL = m.Model("scripted", "items", aliases=("other-name",))

Batch = list[m.EngineEvent]
Script = Callable[[m.Generate], list[Batch]]


def counts(output: int = 0, cached: int = 0) -> m.Counts:
    return m.Counts(input_tokens=20, cached_tokens=cached, output_tokens=output)


def says(*texts: str, finish: m.Finish = "stop") -> list[Batch]:
    """An answer of one batch a text."""
    batches: list[Batch] = [[m.PromptEvaluated(counts())]]
    batches += [[m.TextProduced(text, counts(at + 1))] for at, text in enumerate(texts)]
    return [*batches, [m.GenerationFinished(finish, counts(len(texts)))]]


def says_at_once(text: str) -> list[Batch]:
    """An answer whose text and end are one batch, so that all its events leave together."""
    end = m.GenerationFinished("stop", counts(1))
    return [[m.PromptEvaluated(counts())], [m.TextProduced(text, counts(1)), end]]


def calls(name: str, *pieces: str, call_id: str = "call_1", index: int = 0) -> list[Batch]:
    """An answer of one function call."""
    parts: Batch = [m.CallProduced(index, call_id, name, piece, counts(1)) for piece in pieces]
    parts.append(m.CallProduced(index, call_id, name, "", counts(1), finished=True))
    return [
        [m.PromptEvaluated(counts())],
        parts,
        [m.GenerationFinished("tool_calls", counts(len(pieces)))],
    ]


KEYRING = Keyring(bytes(range(32)))
"""Of all tests, so that a seal is the same in each run."""


@dataclass
class World:
    """Everything outside of a turn, with a counter of the steps taken in it."""

    script: Script = lambda command: says("Hello", " world")
    fail_at: int | None = None
    error: Exception = field(default_factory=lambda: Overloaded("gone"))
    hang_at: int | None = None
    steps: list[str] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    open_streams: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever an engine stream ends."""
    generated: list[m.Generate] = field(default_factory=list)
    records: list[m.UsageRecord] = field(default_factory=list)
    commits: list[m.Commit] = field(default_factory=list)
    aborts: list[m.Abort] = field(default_factory=list)
    saved: dict[str, m.Save] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    workers: list[str] = field(default_factory=lambda: ["w1"])
    lost_workers: set[str] = field(default_factory=set)
    """Still in the registry, but nothing answers there."""
    verdict: m.Screened = field(default_factory=lambda: m.Screened(flagged=False))
    screen_gate: asyncio.Event | None = None
    screened: list[m.Screen] = field(default_factory=list)
    ledger_room: int = 1_000_000
    ids: "itertools.count[int]" = field(default_factory=itertools.count)
    _resumed: asyncio.Event = field(default_factory=asyncio.Event)
    _awaited: list[tuple[str, int, asyncio.Event]] = field(default_factory=list)

    def resume(self) -> None:
        """Let go on what hangs."""
        self._resumed.set()

    async def reached(self, name: str, times: int = 1) -> None:
        """Wait for a step, or its repetition."""
        if self.steps.count(name) < times:
            event = asyncio.Event()
            self._awaited.append((name, times, event))
            await event.wait()

    async def step(self, name: str) -> None:
        at = len(self.steps)
        self.steps.append(name)
        for awaited, times, event in self._awaited:
            if self.steps.count(awaited) >= times:
                event.set()
        if at == self.fail_at:
            raise self.error
        if at == self.hang_at:
            self.hanging.set()
            await self._resumed.wait()
        await asyncio.sleep(0)


class LocalConnection:
    """A connection actor's core in this process."""

    def __init__(self, world: World, tenant: str = "local") -> None:
        number = next(world.ids)
        self.id = f"conn_{number}"
        self.tenant = tenant
        self._world = world
        random = itertools.count(1 + 100_000 * number)
        self.state = ConnectionState(
            tenant,
            ConnectionSettings(),
            lambda size: next(random).to_bytes(size, "big"),
            keyring=KEYRING,
        )

    async def prepare(self, command: m.Prepare) -> m.Prepared | m.ParentUnknown | m.ConversationAt:
        await self._world.step("prepare")
        return self.state.prepare(command)

    async def count(
        self, command: m.CountTokens
    ) -> m.TokenCount | m.ParentUnknown | m.ConversationAt:
        await self._world.step("count")
        return self.state.count(command)

    async def recall(self, command: m.Recall) -> m.Prompt:
        await self._world.step("recall")
        return self.state.recall(command)

    async def summarize(self, command: m.Summarize) -> m.Summarizing:
        await self._world.step("summarize")
        return self.state.summarize(command)

    async def compact(self, command: m.Compact) -> m.Compacted:
        await self._world.step("compact")
        return self.state.compact(command)

    def commit(self, command: m.Commit) -> None:
        self._world.commits.append(command)
        self.state.commit(command)

    def abort(self, command: m.Abort) -> None:
        self._world.aborts.append(command)
        self.state.abort(command)

    async def told(self) -> None:
        await self._world.step("told")


@dataclass
class FakeRouter:
    world: World

    async def resolve(self, command: m.Resolve) -> m.Route:
        await self.world.step("resolve")
        if command.model not in (MODEL.name, *MODEL.aliases):
            raise ModelNotFound(f"the model {command.model!r} is not served here", "model")
        if not self.world.workers:
            raise Overloaded("no worker")
        worker = command.keep if command.keep in self.world.workers else self.world.workers[0]
        return m.Route(MODEL, m.Endpoint(worker, "here"))

    def valid(self, route: m.Route) -> bool:
        return route.worker.id in self.world.workers


@dataclass
class ScriptedEngine:
    world: World

    @asynccontextmanager
    async def generate(
        self, worker: m.Endpoint, command: m.Generate
    ) -> AsyncIterator[AsyncIterator[Batch]]:
        self.world.generated.append(command)
        await self.world.step("generate")
        if worker.id in self.world.lost_workers:
            raise Overloaded("the worker is gone")
        self.world.open_streams += 1
        batches = self._batches(command)
        try:
            yield batches
        finally:
            self.world.open_streams -= 1
            self.world.closed.set()

    async def count(self, worker: m.Endpoint, command: m.CountPrompt) -> m.TokenCount:
        await self.world.step("count prompt")
        return m.TokenCount(len(command.prompt.items))

    async def _batches(self, command: m.Generate) -> AsyncIterator[Batch]:
        for batch in self.world.script(command):
            await self.world.step("batch")
            yield batch


@dataclass
class FakeSafety:
    world: World

    async def screen(self, command: m.Screen) -> m.Screened:
        if self.world.screen_gate is not None:
            await self.world.screen_gate.wait()
        await self.world.step("screen")
        self.world.screened.append(command)
        return self.world.verdict


@dataclass
class FakeStore(LocalConversations):
    world: World

    async def append(self, command: m.AppendTurn) -> m.Appended:
        await self.world.step("append")
        appended = await super().append(command)
        if command.save is not None:
            self.world.saved[command.save.response_id] = command.save
        return appended

    async def load_conversation(self, command: m.LoadConversation) -> m.ConversationTail:
        await self.world.step("load conversation")
        return await super().load_conversation(command)

    async def save(self, command: m.Save) -> None:
        await self.world.step("save")
        self.world.saved[command.response_id] = command

    async def load(self, command: m.Load) -> m.Chain:
        await self.world.step("load")
        turns: list[m.StoredTurn] = []
        response_id: str | None = command.response_id
        while response_id is not None:
            save = self.world.saved.get(response_id)
            if save is None or save.tenant != command.tenant:
                raise PreviousResponseNotFound("not stored", "previous_response_id")
            turns.insert(0, save.turn)
            response_id = save.parent_id
            if save.context is not None:
                turns[:0] = save.context.turns
                if save.context.conversation_id is not None:
                    turns[:0] = self.before(save)
                break
        return m.Chain(tuple(turns))

    async def fetch(self, command: m.Fetch) -> m.Stored:
        save = self.world.saved.get(command.response_id)
        if save is None or save.tenant != command.tenant:
            raise NotFound(f"Response with id '{command.response_id}' not found.")
        return m.Stored(save.response, save.turn.input)

    async def delete(self, command: m.Delete) -> None:
        await self.fetch(m.Fetch(command.tenant, command.response_id))
        del self.world.saved[command.response_id]


class NoBackground:
    """A storage without records of background responses, that takes none."""

    async def begin(self, command: m.BeginBackground) -> None:
        raise Overloaded("storage is away")

    async def record(self, command: m.RecordEvents | m.EndBackground) -> m.Recorded:
        raise Overloaded("storage is away")

    async def renew(self, command: m.RenewBackground) -> m.StillRunning:
        raise Overloaded("storage is away")

    async def cancel(self, command: m.CancelBackground) -> m.Stored:
        raise NotFound(f"Response with id '{command.response_id}' not found.")

    @asynccontextmanager
    async def follow(
        self, command: m.FollowBackground
    ) -> AsyncIterator[AsyncIterator[m.BackgroundEvents]]:
        raise NotFound(f"Response with id '{command.response_id}' not found.")
        yield


@dataclass
class FakeLedger:
    world: World

    def settle(self, record: m.UsageRecord) -> None:
        if len(self.world.records) >= self.world.ledger_room:
            raise Overloaded("the backlog is full")
        self.world.records.append(record)

    async def settled(self) -> None:
        await self.world.step("settled")


@dataclass
class FakeLeases:
    """One connection a lease; `refusal` is raised instead, when there is one."""

    world: World
    refusal: ApiError | None = None
    gate: asyncio.Event | None = None
    """Awaited before a lease is given."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    open_leases: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    forgotten: list[tuple[str, str]] = field(default_factory=list)
    """Tenant and id, of responses and conversations."""
    _shared: dict[str, LocalConnection] = field(default_factory=dict)
    _open: list[LocalConnection] = field(default_factory=list)
    """All of `lease`, also those that ended."""

    index_bytes = 0
    prompt_checks = 0, 0

    def forget(self, tenant: str, response_id: str, conversation_id: str | None = None) -> None:
        self.forgotten.append((tenant, conversation_id or response_id))
        for connection in (*self._open, *self._shared.values()):
            if connection.tenant != tenant:
                continue
            if conversation_id is None:
                connection.state.forget(response_id)
            else:
                connection.state.forget_conversation(conversation_id)

    @asynccontextmanager
    async def lease(self, tenant: str) -> AsyncIterator[LocalConnection]:
        if self.refusal is not None:
            raise self.refusal
        self.open_leases += 1
        self.asked.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
            connection = LocalConnection(self.world, tenant)
            self._open.append(connection)
            yield connection
        finally:
            self.open_leases -= 1
            self.ended.set()

    @asynccontextmanager
    async def shared(self, tenant: str) -> AsyncIterator[LocalConnection]:
        if self.refusal is not None:
            raise self.refusal
        if tenant not in self._shared:
            self._shared[tenant] = LocalConnection(self.world, tenant)
        yield self._shared[tenant]


def create(**fields: object) -> bytes:
    """A `response.create` frame."""
    body = {"type": "response.create", "model": MODEL.name, "store": False, "input": "hi"}
    return orjson.dumps({**body, **fields})
