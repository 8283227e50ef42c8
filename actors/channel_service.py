"""The serving side of a connection: frames to handlers, and what the handlers answer to frames."""

import asyncio
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from turnwire.actors.channel_frames import (
    Kind,
    Undecodable,
    decode,
    decode_credit,
    encode,
    encode_error,
)
from turnwire.actors.channel_link import Link
from turnwire.actors.channel_producer import Produced, Producer
from turnwire.pipelines.config import ChannelSettings
from turnwire.pipelines.messages import Message
from turnwire.pipelines.protocol.errors import ApiError, Internal, InvalidRequest, Overloaded

logger = logging.getLogger(__name__)


class Caller:
    """An accepted connection as handlers see it. Compared and hashed by identity."""

    __slots__ = ("__weakref__", "id", "peer")

    def __init__(self, id: str, peer: str) -> None:
        self.id = id
        self.peer = peer

    def __repr__(self) -> str:
        return f"<Caller {self.id} {self.peer}>"


# Any: each handler takes the one type of message it is registered under.
UnaryHandler = Callable[[Any, Caller], Message | Awaitable[Message]]
StreamHandler = Callable[[Any, Caller], Produced]


@dataclass
class Service:
    """What one listener serves, shared by its connections."""

    id: str
    unary: Mapping[type[Message], UnaryHandler]
    streams: Mapping[type[Message], StreamHandler]
    settings: ChannelSettings
    on_lost: Callable[[Caller], None]
    unhurried: frozenset[type[Message]] = frozenset()
    """Types whose answer nobody waits for: it leaves with what is sent next."""
    draining: bool = False
    tasks: set[asyncio.Future[Message | None]] = field(default_factory=set)
    """Every handler that runs, whatever became of its connection."""
    connections: set["Accepted"] = field(default_factory=set)
    waiting: frozenset[type[Message]] = field(init=False)
    """Types whose handler is a coroutine function."""

    def __post_init__(self) -> None:
        self.waiting = frozenset(
            kind for kind, handler in self.unary.items() if inspect.iscoroutinefunction(handler)
        )


class Accepted:
    """One caller's connection. Handlers start in the order of their frames, plain ones at once.

    A handler belongs to its connection: it is cancelled when the caller cancels or is lost.
    """

    def __init__(self, service: Service, caller: Caller) -> None:
        self.caller = caller
        self.link: Link
        """Set by the listener, which knows the door."""
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, asyncio.Future[Message | None] | asyncio.Handle] = {}
        self._producers: dict[int, Producer] = {}
        self._alive = 0
        self._starting = 0

    # --- LinkOwner ------------------------------------------------------------------------------

    def frame_received(self, kind: int, stream_id: int, payload: memoryview) -> None:
        if kind in (Kind.CALL, Kind.OPEN):
            self._command(kind, stream_id, payload)
        elif kind == Kind.CANCEL:
            self._cancel(stream_id)
        elif kind == Kind.CREDIT:
            if producer := self._producers.get(stream_id):
                producer.grant(decode_credit(payload))
        else:
            self.link.lose(f"a caller sent a frame of kind {kind}")

    def writable(self) -> None:
        for producer in self._producers.values():
            producer.look_again()

    def ended(self, reason: str) -> None:
        self._service.connections.discard(self)
        for stream_id in tuple(self._running):
            self._cancel(stream_id)
        try:
            self._service.on_lost(self.caller)
        except Exception as error:
            log_bug("on_lost", error)

    # --- commands -------------------------------------------------------------------------------

    def _command(self, kind: int, stream_id: int, payload: memoryview) -> None:
        if not stream_id or stream_id in self._running:
            self.link.lose(f"stream id {stream_id} is not free")
            return
        try:
            message = decode(payload)
            if self._alive >= self._service.settings.max_pending:
                raise Overloaded(f"{self._service.id} has {self._alive} calls running")
            if kind == Kind.CALL:
                self._call(stream_id, message)
            else:
                self._open(stream_id, message)
        except Undecodable as error:
            self._refuse(stream_id, InvalidRequest(str(error)))
        except ApiError as error:
            self._refuse(stream_id, error)

    def _call(self, stream_id: int, message: Message) -> None:
        handler = self._service.unary.get(type(message))
        if handler is None:
            raise InvalidRequest(f"{self._service.id} answers no {type(message).__name__}")
        if self._starting and type(message) not in self._service.waiting:
            # Behind the handlers that came before and have not begun.
            later = self._loop.call_soon(self._answer_deferred, stream_id, handler, message)
            self._running[stream_id] = later
            self._will_start()
        else:
            self._answer(stream_id, handler, message)

    def _open(self, stream_id: int, message: Message) -> None:
        handler = self._service.streams.get(type(message))
        if handler is None:
            raise InvalidRequest(f"{self._service.id} streams no {type(message).__name__}")
        if self._service.draining:
            raise Overloaded(f"{self._service.id} is draining")
        producer = Producer(self.link, stream_id, self._service.settings.max_frame_bytes)
        self._producers[stream_id] = producer
        self._start(stream_id, self._produce(stream_id, handler, message, producer), message)

    def _cancel(self, stream_id: int) -> None:
        if producer := self._producers.pop(stream_id, None):
            producer.stop()
            self.link.outbox.drop_items(stream_id)
        if running := self._running.pop(stream_id, None):
            running.cancel()

    # --- running them ---------------------------------------------------------------------------

    def _answer_deferred(self, stream_id: int, handler: UnaryHandler, message: Message) -> None:
        del self._running[stream_id]
        self._answer(stream_id, handler, message)

    def _answer(self, stream_id: int, handler: UnaryHandler, message: Message) -> None:
        try:
            answer = handler(message, self.caller)
            if isinstance(answer, Message):
                now = type(message) not in self._service.unhurried
                self.link.send(Kind.REPLY, stream_id, self._payload(answer), now=now)
            else:
                self._start(stream_id, answer, message)
        except Exception as error:
            self._refuse(stream_id, _wire_error(type(message).__name__, error))

    def _start(self, stream_id: int, handling: Awaitable[Message | None], message: Message) -> None:
        # The task is the handler itself: one cancelled before its first step leaves nothing behind.
        task = asyncio.ensure_future(handling)
        self._running[stream_id] = task
        self._service.tasks.add(task)
        self._alive += 1
        task.add_done_callback(partial(self._finished, stream_id, type(message).__name__))
        self._will_start()

    async def _produce(
        self, stream_id: int, handler: StreamHandler, message: Message, producer: Producer
    ) -> Message | None:
        await producer.run(handler(message, self.caller))
        if not producer.stopped:
            # Said here and not when the task is over: so it leaves in one write with what was last.
            self.link.send(Kind.END, stream_id)
        return None

    def _finished(self, stream_id: int, name: str, task: asyncio.Future[Message | None]) -> None:
        self._service.tasks.discard(task)
        self._alive -= 1
        wanted = self._running.get(stream_id) is task
        failure = None if task.cancelled() else task.exception()
        error = None if failure is None else _wire_error(name, failure)
        if not wanted:
            return
        del self._running[stream_id]
        if task.cancelled():
            # Cancelled by nobody we know: without an answer its caller would wait for ever.
            logger.error("channel.handler_failed %s: cancelled from inside", name)
            error = Internal("internal error")
        if error is not None:
            self._producers.pop(stream_id, None)
            self._refuse(stream_id, error)
        elif self._producers.pop(stream_id, None) is None:
            self._reply_with(stream_id, name, task.result())

    def _reply_with(self, stream_id: int, name: str, answer: Message | None) -> None:
        try:
            payload = self._payload(answer)
        except Exception as error:
            self._refuse(stream_id, _wire_error(name, error))
        else:
            self.link.send(Kind.REPLY, stream_id, payload)

    def _will_start(self) -> None:
        # The loop calls in order, so this runs right after the first step of what was scheduled.
        self._starting += 1
        self._loop.call_soon(self._has_started)

    def _has_started(self) -> None:
        self._starting -= 1

    def _payload(self, answer: Message | None) -> bytes:
        """The answer as a frame's payload, if it may be sent."""
        if not isinstance(answer, Message):
            raise TypeError(f"a handler answered with a {type(answer).__name__}")
        payload = encode(answer)
        settings = self._service.settings
        if len(payload) > settings.max_frame_bytes:
            logger.error("channel.answer_too_large %s", type(answer).__name__)
            raise Internal("the answer is larger than a frame may be")
        if self.link.unsent_bytes >= settings.max_write_bytes:
            raise Overloaded("answers are not read fast enough")
        return payload

    def _refuse(self, stream_id: int, error: ApiError) -> None:
        self.link.send(Kind.FAILURE, stream_id, encode_error(error))


def _wire_error(name: str, error: BaseException) -> ApiError:
    """What the caller may know. A bug is logged here, once."""
    if isinstance(error, ApiError):
        return error
    log_bug(name, error)
    return Internal("internal error")


def log_bug(name: str, error: BaseException) -> None:
    """Where it happened, without the error's text: that may quote what a user wrote."""
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("channel.handler_failed %s: %s\n%s", name, type(error).__name__, where)
