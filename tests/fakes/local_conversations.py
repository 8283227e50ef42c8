"""Conversations in the memory of this process: the real tables and queries, without a pool."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from turnwire.actors.conversation_schema import metadata
from turnwire.actors.stored_conversations import StoredConversations
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import StorageSettings
from turnwire.pipelines.protocol.errors import PreviousResponseNotFound


class LocalConversations:
    """The part of the storage port that is about conversations."""

    conversation_limits = StorageSettings()

    @cached_property
    def _engine(self) -> sa.Engine:
        engine = sa.create_engine("sqlite://", poolclass=StaticPool)
        metadata.create_all(engine)
        return engine

    @contextmanager
    def _open(self) -> Iterator[tuple[StoredConversations, sa.Connection]]:
        with self._engine.begin() as connection:
            yield StoredConversations(self.conversation_limits), connection

    async def load_conversation(self, command: m.LoadConversation) -> m.ConversationTail:
        with self._open() as (stored, connection):
            return stored.load(connection, command)

    async def append(self, command: m.AppendTurn) -> m.Appended:
        return await self.change(command)

    async def conversation(self, command: Any) -> Any:  # noqa: ANN401 -- as the port
        with self._open() as (stored, connection):
            if isinstance(command, m.FetchConversation):
                return stored.fetch(connection, command)
        return await self.change(command)

    async def items(self, command: Any) -> m.ItemPage:  # noqa: ANN401 -- as the port
        with self._open() as (stored, connection):
            if isinstance(command, m.ListItems):
                return stored.page(connection, command)
            return stored.item(connection, command)

    async def change(self, command: Any) -> Any:  # noqa: ANN401 -- as the port
        with self._open() as (stored, connection):
            return stored.change(connection, command)

    def before(self, save: m.Save) -> list[m.StoredTurn]:
        """What was in the conversation before a stored response. Raises as a load does."""
        assert save.context is not None
        named = save.context.conversation_id
        assert named is not None
        with self._open() as (stored, connection):
            turns = stored.before(connection, save.tenant, named, save.response_id)
        if turns is None:
            raise PreviousResponseNotFound("not stored", "previous_response_id")
        return list(turns)
