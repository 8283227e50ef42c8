"""What a turn needs of the outside, as roles. Shells in `actors/`, fakes in tests.

Every method raises an ApiError for what the other side refuses, and `Overloaded` when it is gone.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from turnwire.pipelines import messages as m


class Connection(Protocol):
    """The actor that owns one connection's state."""

    async def prepare(
        self, command: m.Prepare
    ) -> m.Prepared | m.ParentUnknown | m.ConversationAt: ...
    async def recall(self, command: m.Recall) -> m.Prompt: ...
    async def summarize(self, command: m.Summarize) -> m.Summarizing: ...
    async def compact(self, command: m.Compact) -> m.Compacted: ...
    async def count(
        self, command: m.CountTokens
    ) -> m.TokenCount | m.ParentUnknown | m.ConversationAt: ...
    def commit(self, command: m.Commit) -> None:
        """Deliver in order, before any later Prepare of the connection; never waits."""

    def abort(self, command: m.Abort) -> None:
        """As `commit`."""

    async def told(self) -> None:
        """Returns when every commit and abort was carried out."""


class Router(Protocol):
    """Model names to live workers."""

    async def resolve(self, command: m.Resolve) -> m.Route: ...
    def valid(self, route: m.Route) -> bool:
        """Is the worker of an earlier answer still there and not draining? No I/O."""


class Engine(Protocol):
    """One inference worker."""

    def generate(
        self, worker: m.Endpoint, command: m.Generate
    ) -> AbstractAsyncContextManager[AsyncIterator[list[m.EngineEvent]]]:
        """Batches of events, all that is ready at once. Leaving the block stops the worker."""

    async def count(self, worker: m.Endpoint, command: m.CountPrompt) -> m.TokenCount:
        """The length of a prompt of items, as a turn would report it."""


class Safety(Protocol):
    async def screen(self, command: m.Screen) -> m.Screened: ...


class Store(Protocol):
    async def save(self, command: m.Save) -> None: ...
    async def load(self, command: m.Load) -> m.Chain: ...
    async def load_conversation(self, command: m.LoadConversation) -> m.ConversationTail: ...
    async def append(self, command: m.AppendTurn) -> m.Appended: ...


class Ledger(Protocol):
    def settle(self, record: m.UsageRecord) -> None:
        """Take the record into the bounded backlog; never waits. Overloaded when it is full."""

    async def settled(self) -> None:
        """Returns when every record is in the ledger, which nothing delays from now on."""


class BackgroundStore(Protocol):
    """The records of background responses. Sending a write again changes nothing."""

    async def begin(self, command: m.BeginBackground) -> None: ...
    async def record(self, command: m.RecordEvents | m.EndBackground) -> m.Recorded: ...
    async def renew(self, command: m.RenewBackground) -> m.StillRunning: ...
    async def cancel(self, command: m.CancelBackground) -> m.Stored: ...
    def follow(
        self, command: m.FollowBackground
    ) -> AbstractAsyncContextManager[AsyncIterator[m.BackgroundEvents]]:
        """The first message comes at once, if only an empty one. Refusals come with it."""
