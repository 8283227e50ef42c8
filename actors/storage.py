"""The storage pool: stored responses, written by one pinned thread, read by another.

Content of `store: false` turns never comes here: only `Save` carries content, and only a turn that
is to be stored sends one.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar, get_args

from turnwire.actors import background_schema, conversation_schema, storage_schema
from turnwire.actors.background import BackgroundStorage
from turnwire.actors.background_reading import BackgroundReading
from turnwire.actors.background_records import BackgroundRecords
from turnwire.actors.channel import Listener
from turnwire.actors.conversation_rows import ConversationRead, ConversationWrite
from turnwire.actors.database import open_database
from turnwire.actors.deletes import Deletes
from turnwire.actors.fenced_writer import Fenced, FencedWriter
from turnwire.actors.group_commit import GroupCommit
from turnwire.actors.owned_tasks import OwnedTasks
from turnwire.actors.retention import Retention, Sweep
from turnwire.actors.stored_conversations import StoredConversations
from turnwire.actors.stored_responses import StoredResponses
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, StorageSettings
from turnwire.pipelines.protocol.errors import (
    ApiError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PreviousResponseNotFound,
)

SCHEMAS = (storage_schema.SCHEMA, conversation_schema.SCHEMA, background_schema.SCHEMA)
"""All tables a storage worker keeps, each part with its own migrations."""
RETAINED = (storage_schema.responses,)
"""What the settings' age and bytes bound."""
AGE_CHECK_S = 60.0

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class StorageActor:
    """One worker of the pool. `start`, then any number of calls on its channel, then `close`.

    `slot`: which of the pool's workers it is. The one that had it before cannot write any more.
    """

    def __init__(
        self,
        id: str,
        node: str,
        settings: StorageSettings,
        channel: ChannelSettings,
        slot: int = 0,
    ) -> None:
        self._settings = settings
        self._slot = slot
        self._background = BackgroundStorage(settings, self._write, self._page, self._found)
        self._deletes = Deletes()
        self._listener = Listener(
            id,
            node,
            {
                m.Save: self._written,
                m.Delete: self._delete,
                **dict.fromkeys(get_args(ConversationWrite), self._written),
                m.DeleteConversation: self._delete_conversation,
                **dict.fromkeys(get_args(ConversationRead), self._read_conversation),
                m.Load: self._load,
                m.Fetch: self._fetch,
                **self._background.handlers(),
            },
            {m.WatchDeletes: self._deletes.watch, **self._background.streams()},
            channel,
        )
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="storage-read")
        self._reading = 0
        self._changed = False
        self._blocks = AsyncExitStack()

    async def start(self, folder: Path, tcp_host: str | None = None) -> m.Worker:
        """Open the database and listen. Raises Internal when the database cannot be used."""
        async with AsyncExitStack() as blocks:
            blocks.callback(self._reader.shutdown, wait=False)
            await asyncio.get_running_loop().run_in_executor(self._reader, self._open)
            blocks.callback(self._engine.dispose)
            # A read that is under way has a connection of the engine.
            blocks.push_async_callback(asyncio.to_thread, self._reader.shutdown)
            self._queue: GroupCommit[object, object] = await blocks.enter_async_context(
                GroupCommit(self._writer.commit, self._settings.max_queued, "storage")
            )
            tasks = OwnedTasks("storage")
            blocks.push_async_callback(tasks.close)
            tasks.start(self._retain())
            tasks.start(self._background.sweep_until_cancelled())
            endpoint = await self._listener.start(folder=folder, tcp_host=tcp_host)
            blocks.push_async_callback(self._listener.close, self._settings.drain_s)
            blocks.callback(self._background.close)
            blocks.callback(self._deletes.close)
            self._blocks = blocks.pop_all()
        return m.Worker(endpoint, "storage", max_ongoing=self._settings.max_ongoing)

    def _open(self) -> None:
        self._engine = open_database(self._settings.url, "storage", SCHEMAS)
        try:
            self._responses = StoredResponses(self._engine)
            self._retention = Retention(self._engine, RETAINED, self._settings)
            writes = self._responses.writes
            self._conversations = StoredConversations(self._engine, self._settings, writes[m.Save])
            writes = {**writes, **self._conversations.writes, **self._retention.writes}
            self._records = BackgroundReading(self._engine)
            background = BackgroundRecords(self._settings, writes, time.time)
            writes = {**writes, **background.writes}
            self._writer = FencedWriter(self._engine, self._slot, writes)
        except BaseException:
            self._engine.dispose()
            raise

    async def close(self) -> None:
        """Answer what runs, at most for `drain_s`, then stop listening and close the database."""
        await self._blocks.aclose()

    @property
    def secret(self) -> bytes:
        return self._listener.secret

    def load(self) -> tuple[int, int]:
        """Calls running and waiting, now."""
        return min(self._reading, 1), self._queue.queued + max(0, self._reading - 1)

    def check_health(self) -> None:
        """Raises Fenced once another worker has taken its place: then this one is to go."""
        if self._writer.fenced:
            raise Fenced("this storage worker was replaced")

    async def _write(self, command: object) -> object:
        answer = await self._queue.submit(command)
        self._changed = True
        return answer

    async def _written(self, command: m.Message, _caller: object) -> m.Message:
        answer = await self._write(command)
        assert isinstance(answer, m.Message), "what answers a command is a message"
        return answer

    async def _read_conversation(self, command: ConversationRead, _caller: object) -> m.Message:
        return await self._read(lambda: self._conversations.read(command))

    async def _delete(self, command: m.Delete, caller: object) -> m.Message:
        done = await self._written(command, caller)
        self._background.changed(command.tenant, command.response_id)
        self._deletes.add(m.Deleted(command.tenant, command.response_id))
        return done

    async def _delete_conversation(
        self, command: m.DeleteConversation, caller: object
    ) -> m.Message:
        done = await self._written(command, caller)
        self._deletes.add(m.Deleted(command.tenant, "", command.conversation_id))
        return done

    async def _retain(self) -> None:
        """Sweeps when there is something to sweep, with room for others between two steps."""
        checked_s = -AGE_CHECK_S
        while True:
            if self._changed or time.monotonic() >= checked_s + AGE_CHECK_S:
                self._changed = False
                checked_s = time.monotonic()
                try:
                    while await self._read(lambda: self._retention.due(time.time())):
                        if not await self._queue.submit(Sweep(time.time())):
                            break
                except ApiError as error:
                    self._changed = True
                    _log.warning("storage.sweep_failed: %s", error)
            await asyncio.sleep(self._settings.sweep_s)

    async def _load(self, command: m.Load, _caller: object) -> m.Chain:
        return await self._read(lambda: self._chain(command))

    def _chain(self, command: m.Load) -> m.Chain:
        try:
            return self._responses.load(command)
        except PreviousResponseNotFound:
            if not self._records.runs(command):
                raise
        raise InvalidRequest(
            f"Previous response with id {command.response_id!r} is still running; "
            "continue from it when it is completed.",
            "previous_response_id",
        )

    async def _fetch(self, command: m.Fetch, _caller: object) -> m.Stored:
        return await self._found(command)

    async def _found(self, command: m.Fetch) -> m.Stored:
        return await self._read(lambda: self._stored(command))

    def _stored(self, command: m.Fetch) -> m.Stored:
        try:
            return self._responses.fetch(command)
        except NotFound:
            found = self._records.fetch(command)
            if found is None:
                raise
            return found

    async def _page(self, command: m.FollowBackground) -> tuple[m.BackgroundEvents, bool]:
        return await self._read(lambda: self._records.page(command))

    async def _read(self, query: Callable[[], Answer]) -> Answer:
        if self._reading >= self._settings.max_queued:
            raise Overloaded(f"{self._reading} reads wait for the storage")
        self._reading += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, query)
        except ApiError:
            raise
        except Exception as error:
            # The text of a database error may quote what is stored.
            raise Overloaded(f"the storage cannot read: {type(error).__name__}") from error
        finally:
            self._reading -= 1
