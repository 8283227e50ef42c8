"""Conversations in the memory of this process: the real tables and queries, without a pool."""

from functools import cached_property
from typing import Any, get_args

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from turnwire.actors.conversation_rows import ConversationRead, turns_before
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

    def ask(self, command: Any) -> Any:  # noqa: ANN401 -- as the port
        stored = StoredConversations(self._engine, self.conversation_limits, lambda *_: None)
        if isinstance(command, get_args(ConversationRead)):
            return stored.read(command)
        with self._engine.begin() as connection:
            return stored.change(connection, command)

    async def load_conversation(self, command: m.LoadConversation) -> m.ConversationTail:
        tail: m.ConversationTail = self.ask(command)
        return tail

    async def append(self, command: m.AppendTurn) -> m.Appended:
        appended: m.Appended = self.ask(command)
        return appended

    async def conversation(self, command: Any) -> Any:  # noqa: ANN401 -- as the port
        return self.ask(command)

    async def items(self, command: Any) -> Any:  # noqa: ANN401 -- as the port
        return self.ask(command)

    async def change(self, command: Any) -> Any:  # noqa: ANN401 -- as the port
        return self.ask(command)

    def before(self, save: m.Save) -> list[m.StoredTurn]:
        """What was in the conversation before a stored response. Raises as a load does."""
        assert save.context is not None
        named = save.context.conversation_id
        assert named is not None
        with self._engine.connect() as connection:
            turns = turns_before(connection, save.tenant, named, save.response_id)
        if turns is None:
            raise PreviousResponseNotFound("not stored", "previous_response_id")
        return list(turns)
