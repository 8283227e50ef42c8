"""Connection actors: the state of one WebSocket, or of several of one tenant, behind a channel.

`ConnectionCore` answers commands and knows nothing of sockets or Ray; `ConnectionActor` gives it a
listener, and is made a Ray actor by whoever leases it out.
"""

import asyncio
import gc
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import orjson
from msgspec.structs import replace

from turnwire.actors.channel import Caller, Listener, UnaryHandler
from turnwire.actors.prompt_checks import PromptChecks
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings, ConnectionSettings
from turnwire.pipelines.connection import ConnectionState
from turnwire.pipelines.prompts.check import PromptCheck
from turnwire.pipelines.prompts.format import AnyFormat, format_of
from turnwire.pipelines.protocol.errors import ApiError, Forbidden, NotFound, Overloaded
from turnwire.pipelines.protocol.ids import RandomBytes
from turnwire.pipelines.remembered import Remembered
from turnwire.pipelines.sealing import Keyring

_log = logging.getLogger(__name__)

_REHEARSED = b"""{"model":%b,"store":false,"instructions":"Be brief.","input":[
{"role":"user","content":"hello"},
{"type":"function_call","call_id":"call_1","name":"f","arguments":"{}"},
{"type":"function_call_output","call_id":"call_1","output":"done"}],
"tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{}}}]}"""
_ANSWER = b'[{"type":"message","id":"msg_1","role":"assistant","content":"fine"}]'

_CLOSING_SHARE = 2
"""Connections an actor holds at most, as a multiple of those it serves: some may be closing."""


class ConnectionCore:
    """The connections of one tenant that share an actor. No method waits.

    The first `Open` binds it to a tenant for good.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        random_bytes: RandomBytes = os.urandom,
        formats: Callable[[m.Model], AnyFormat] = format_of,
        sampled: Callable[[PromptCheck], None] | None = None,
        keyring: Keyring | None = None,
    ) -> None:
        """`sampled`: as for `ConnectionState`."""
        self._sampled = sampled
        self.keyring = keyring or Keyring()
        self._settings = settings
        self._random_bytes = random_bytes
        self._formats = formats
        self._tenant: str | None = None
        self._remembered = Remembered(settings.content_index_bytes)
        self._connections: dict[str, ConnectionState] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def handlers(self) -> dict[type[m.Message], UnaryHandler]:
        """What a listener is to serve. All are plain functions, so commands keep their order."""
        return {
            m.Open: lambda command, _: self.open(command),
            m.Close: lambda command, _: self.close(command),
            m.Prepare: lambda command, _: self.prepare(command),
            m.Commit: lambda command, _: self.commit(command),
            m.Abort: lambda command, _: self.abort(command),
            m.Recall: lambda command, _: self.recall(command),
            m.Summarize: lambda command, _: self.summarize(command),
            m.Compact: lambda command, _: self.compact(command),
            m.CountTokens: lambda command, _: self.count(command),
            m.Forget: lambda command, _: self.forget(command),
            m.Collect: lambda command, _: self.collect(command),
        }

    def open(self, command: m.Open) -> m.Done:
        """Raises Forbidden for another tenant. Opening what is open changes nothing."""
        if self._tenant not in (None, command.tenant):
            raise Forbidden("this actor serves another tenant")
        if command.connection_id in self._connections:
            return m.Done()
        if len(self) >= self._settings.connections_per_actor * _CLOSING_SHARE:
            raise Overloaded(f"this actor holds {len(self)} connections")
        self._tenant = command.tenant
        self._connections[command.connection_id] = ConnectionState(
            command.tenant,
            self._settings,
            self._random_bytes,
            self._formats,
            self._remembered,
            self._sampled,
            self.keyring,
        )
        return m.Done()

    def close(self, command: m.Close) -> m.Done:
        self._connections.pop(command.connection_id, None)
        return m.Done()

    def prepare(
        self, command: m.Prepare
    ) -> m.Prepared | m.ParentUnknown | m.ContentUnknown | m.ConversationAt:
        """Raises what is wrong with the request; Overloaded when the connection is not open."""
        return self._open_connection(command.connection_id).prepare(command)

    def commit(self, command: m.Commit) -> m.Done:
        if connection := self._connections.get(command.connection_id):
            connection.commit(command)
        return m.Done()

    def abort(self, command: m.Abort) -> m.Done:
        if connection := self._connections.get(command.connection_id):
            connection.abort(command)
        return m.Done()

    def recall(self, command: m.Recall) -> m.Prompt:
        """Raises NotFound."""
        return self._known(command.connection_id).recall(command)

    def summarize(self, command: m.Summarize) -> m.Summarizing:
        """Raises NotFound."""
        return self._known(command.connection_id).summarize(command)

    def compact(self, command: m.Compact) -> m.Compacted:
        """Raises NotFound."""
        return self._known(command.connection_id).compact(command)

    def count(self, command: m.CountTokens) -> m.TokenCount | m.ParentUnknown | m.ConversationAt:
        """Raises what is wrong with the request; Overloaded when the connection is not open."""
        return self._open_connection(command.connection_id).count(command)

    def forget(self, command: m.Forget) -> m.Done:
        for connection in self._connections.values():
            if command.conversation_id is None:
                connection.forget(command.response_id)
            else:
                connection.forget_conversation(command.conversation_id)
        if command.conversation_id is None:
            self._remembered.forget(command.response_id)
        return m.Done()

    def collect(self, command: m.Collect) -> m.Collected:
        """What ended on any connection, also on those that are closed by now."""
        return self._remembered.collect(command.after)

    def _known(self, connection_id: str) -> ConnectionState:
        connection = self._connections.get(connection_id)
        if connection is None:
            raise NotFound("no such connection is open here")
        return connection

    def _open_connection(self, connection_id: str) -> ConnectionState:
        connection = self._connections.get(connection_id)
        if connection is None:
            raise Overloaded("the connection's state is gone; try again")
        return connection

    def drop_all(self) -> None:
        """Nobody will come back for these connections."""
        self._connections.clear()
        self._remembered.clear()


class ConnectionActor:
    """The process around a core. `start`, then commands on its channel, then `close`.

    A gateway whose channel broke dials again and finds everything as it left it. One that stays
    away for `orphan_s` does not come back.
    """

    def __init__(
        self,
        id: str,
        node: str,
        folder: str,
        settings: ConnectionSettings,
        channel: ChannelSettings,
        tcp_host: str | None = None,
        models: tuple[m.Model, ...] = (),
    ) -> None:
        """`models`: those whose tokenizers are loaded before the first turn asks for them."""
        self._folder = Path(folder)
        self._settings = settings
        self._tcp_host = tcp_host
        self._models = models
        self._checks = PromptChecks(settings.check_every)
        self._core = ConnectionCore(settings, sampled=self._checks.over)
        self._listener = Listener(
            id,
            node,
            self._core.handlers() | {m.Collect: self._collect},
            {},
            channel,
            self._lost,
            unhurried=frozenset({m.Commit, m.Abort}),
        )
        self._orphaned: asyncio.TimerHandle | None = None

    async def start(self, keys: bytes = b"") -> m.Endpoint:
        """Load tokenizers, then listen. `keys`: of the deployment's `Keyring`."""
        self._core.keyring.fill(keys)
        for model in self._models:
            await asyncio.to_thread(_warm, model)
        await asyncio.to_thread(rehearse, self._settings, self._models)
        # All that is loaded by now stays; a collector that looks at it again makes turns wait.
        gc.collect()
        gc.freeze()
        return await self._listener.start(folder=self._folder, tcp_host=self._tcp_host)

    async def secret(self) -> bytes:
        """What callers over TCP must hold."""
        return self._listener.secret

    async def close(self) -> None:
        if self._orphaned is not None:
            self._orphaned.cancel()
        await self._listener.close()
        await self._checks.close()
        self._core.drop_all()

    def _collect(self, command: m.Message, _caller: Caller) -> m.Collected:
        assert isinstance(command, m.Collect), "what it is served for"
        checks = self._checks
        found = self._core.collect(command)
        return replace(found, checked=checks.checked, mismatched=checks.mismatched)

    def _lost(self, _caller: Caller) -> None:
        if self._orphaned is not None:
            self._orphaned.cancel()
        loop = asyncio.get_running_loop()
        self._orphaned = loop.call_later(self._settings.orphan_s, self._drop_orphans)

    def _drop_orphans(self) -> None:
        self._orphaned = None
        if not self._listener.callers:
            self._core.drop_all()


def rehearse(settings: ConnectionSettings, models: tuple[m.Model, ...]) -> None:
    """Two turns a model, thrown away: what a first turn loads is there before a client waits."""
    core = ConnectionCore(settings)
    core.open(m.Open("", ""))
    for number, model in enumerate(models):
        frame = _REHEARSED % orjson.dumps(model.name)
        for response_id in (f"resp_{number}", f"resp_{number}_again"):
            with suppress(ApiError):
                core.prepare(m.Prepare("", response_id, frame, model))
                core.commit(m.Commit("", response_id, _ANSWER, bytes(4)))


def _warm(model: m.Model) -> None:
    """A model that cannot be prompted says so to the turns that name it, not here."""
    if model.form != "tokens":
        return
    try:
        format_of(model)
    except ApiError as error:
        _log.warning("connection.tokenizer_unavailable %s: %s", model.name, error.message)
