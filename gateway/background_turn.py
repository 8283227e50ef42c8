"""One turn in the background: what it reports goes to its record, which storage keeps."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from turnwire.actors.backoff import Backoff
from turnwire.gateway import render
from turnwire.gateway.observation import ObservedTurn
from turnwire.gateway.turns import Serving, cut_short, restarting
from turnwire.pipelines import messages as m
from turnwire.pipelines.background import Recorder, Write
from turnwire.pipelines.ports import Engine, Store
from turnwire.pipelines.protocol.errors import (
    ApiError,
    ConversationLocked,
    NotFound,
    Overloaded,
)
from turnwire.pipelines.turn import Turn
from turnwire.pipelines.turn_request import Memory, TurnRequest

logger = logging.getLogger("turnwire.gateway")


class BackgroundTurn:
    """Listens to its turn, and is a client as far as time and the server's end go."""

    def __init__(
        self, serving: Serving, request: TurnRequest, owner: str, observed: ObservedTurn
    ) -> None:
        settings = serving.settings.background
        self.id = request.response_id
        self.tenant = request.tenant
        self.streams = False
        """Did the request ask for a stream?"""
        self.task: asyncio.Task[None] | None = None
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """The record is committed, or the request refused."""
        # Nobody may be there any more to be told.
        self.begun.add_done_callback(lambda begun: begun.cancelled() or begun.exception())
        self.recorder = Recorder(
            tenant=request.tenant,
            response_id=request.response_id,
            owner=owner,
            created_at=serving.clock.today_s(),
            lease_s=settings.lease_s,
            max_running=settings.max_running_per_tenant,
            max_unsaved_bytes=settings.max_unsaved_bytes,
        )
        self._serving = serving
        self._settings = settings
        self._request: TurnRequest | None = request
        self._held_bytes = len(request.frame)
        self._observed = observed
        self._turn: Turn | None = None
        self._news = asyncio.Event()
        self._kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopped = False
        self._refusal: ApiError | None = None

    async def run(self, memory: Memory) -> None:
        """Returns when the turn and its record are over. Cancelling it stops the turn."""
        assert self._request is not None, "one use each"
        services = self._serving.services
        services = replace(
            services,
            store=_RecordedStore(services.store, self),
            engine=_RecordedEngine(services.engine, self),
        )
        turn = self._turn = Turn(self._request, memory, services, self)
        self._request = None
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(self._write())
            if not await self._finished(turn):
                writing.cancel()

    async def _finished(self, turn: Turn) -> bool:
        """False when there is no response, only a refusal."""
        try:
            await turn.run()
        except Exception as error:
            told = render.hidden(error, turn.id)
            if turn.created and self.recorder.accepted:
                self.recorder.fail(told)
                self._news.set()
            else:
                self.refuse(told)
        finally:
            self._observed.ended(turn, self._refusal)
        return self._refusal is None

    def refuse(self, error: ApiError) -> None:
        """There is no response, unless its record was begun."""
        if not self.begun.done():
            self._refusal = error
            if self._turn is not None:
                self._turn.withdraw()
            self.begun.set_exception(error)

    def stop(self) -> None:
        """Its record was ended by somebody else, or cannot be written."""
        if not self._stopped and self.task is not None:
            self._stopped = True
            self.task.cancel()

    def close(self) -> None:
        """Nothing of it runs any more."""
        self.refuse(restarting())
        self._frame_released()

    async def recorded(self) -> None:
        """Returns when there is a record; a turn without one is stopped."""
        await asyncio.wait((self.begun,))
        if self.begun.exception() is not None:
            await asyncio.Event().wait()

    async def kept(self, command: m.Save | m.AppendTurn) -> None:
        """Returns when it is done and the record ended, in one commit. Raises what refuses it."""
        self.recorder.conclude(command)
        self._news.set()
        await self._kept

    # --- turn_request.Listener ------------------------------------------------------------------

    def events(self, events: list[m.Json], *, now: bool = True) -> None:
        try:
            self.recorder.add(events)
        except Overloaded as error:
            if self._turn is not None:
                self._turn.end(error)
        self._news.set()

    def prepared(self, prepared: m.Prepared) -> None:
        self.streams = prepared.stream
        self.recorder.input = prepared.stored_input or b"[]"
        self._observed.prepared(prepared)
        self._frame_released()

    def ended(self) -> None:
        """The record says so itself."""

    # --- turns.Client ---------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        if self._turn is not None:
            self._turn.beat(now_s)

    def drain(self) -> None:
        """It finishes."""

    def expired(self) -> None:
        if self._turn is not None:
            self._turn.end(cut_short())

    # --- writing --------------------------------------------------------------------------------

    def _frame_released(self) -> None:
        self._serving.inbound.give_back(self._held_bytes)
        self._held_bytes = 0

    async def _write(self) -> None:
        """The one writer of the record: each write is committed before the next is made."""
        while not self.recorder.over:
            await self._news.wait()
            self._news.clear()
            while (write := self.recorder.next()) is not None:
                try:
                    if not await self._committed(write):
                        self.stop()
                        return
                except (ConversationLocked, NotFound) as refusal:
                    self._not_kept(refusal)
                    continue
                self.recorder.written(write)
                if isinstance(write, m.BeginBackground):
                    self.begun.set_result(None)
                else:
                    await asyncio.sleep(0 if self.recorder.over else self._settings.flush_s)
        if not self._kept.done():
            self._kept.set_result(None)

    def _not_kept(self, refusal: ApiError) -> None:
        """Its conversation has changed or is gone: the turn fails, if it still waits for this."""
        self.recorder.refused()
        if self._kept.done():
            self.recorder.fail(refusal)
        else:
            self._kept.set_exception(refusal)

    async def _committed(self, write: Write) -> bool:
        """False when its record was ended, or storage was away for too long.

        Raises what refuses the conversation of an answer.
        """
        store, clock, backoff = self._serving.ports.background, self._serving.clock, Backoff()
        if isinstance(write, m.BeginBackground):
            try:
                await store.begin(write)
            except ApiError as error:
                self.refuse(error)
                return False
            return True
        give_up_s = clock.now_s() + self._settings.storage_wait_s
        while clock.now_s() < give_up_s:
            try:
                return (await store.record(write)).accepted
            except (ConversationLocked, NotFound):
                raise
            except ApiError as error:
                logger.warning("background.not_recorded %s: %s", self.id, error)
                await asyncio.sleep(backoff.next_s())
        return False


class _RecordedStore(Store):
    """Keeps the response together with the end of its record."""

    def __init__(self, store: Store, turn: BackgroundTurn) -> None:
        self._store = store
        self._turn = turn

    async def save(self, command: m.Save) -> None:
        await self._turn.kept(command)

    async def load(self, command: m.Load) -> m.Chain:
        return await self._store.load(command)

    async def load_conversation(self, command: m.LoadConversation) -> m.ConversationTail:
        return await self._store.load_conversation(command)

    async def append(self, command: m.AppendTurn) -> m.Appended:
        await self._turn.kept(command)
        return m.Appended(command.version + 1)


class _RecordedEngine(Engine):
    """Generates nothing for a response that has no record yet: it may be refused."""

    def __init__(self, engine: Engine, turn: BackgroundTurn) -> None:
        self._engine = engine
        self._turn = turn

    @asynccontextmanager
    async def generate(
        self, worker: m.Endpoint, command: m.Generate
    ) -> AsyncIterator[AsyncIterator[list[m.EngineEvent]]]:
        await self._turn.recorded()
        async with self._engine.generate(worker, command) as batches:
            yield batches

    async def count(self, worker: m.Endpoint, command: m.CountPrompt) -> m.TokenCount:
        return await self._engine.count(worker, command)
