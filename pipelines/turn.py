"""One turn, from a frame to its terminal event and its entry in the ledger, over the ports.

Before `response.created` a fault is raised to the caller, who answers with one error; afterwards
it ends the response as failed. However a turn ends, its parent is let go (`Commit` or `Abort`),
its worker is stopped, and what it used is settled once.
"""

import asyncio
import logging
from contextlib import suppress

from msgspec.structs import replace

from turnwire.pipelines import messages as m
from turnwire.pipelines.generation import Generation
from turnwire.pipelines.preparation import given_up, prepare
from turnwire.pipelines.protocol.errors import (
    ApiError,
    Internal,
    InvalidRequest,
)
from turnwire.pipelines.protocol.responses import echo_of
from turnwire.pipelines.screening import Screening
from turnwire.pipelines.services import Services
from turnwire.pipelines.stages import Stages
from turnwire.pipelines.summary import compact
from turnwire.pipelines.telling import Telling
from turnwire.pipelines.turn_request import Listener, Memory, TurnRequest
from turnwire.pipelines.turn_work import Work, stream_of

TIMINGS = "turnwire.timings"
WARNINGS = "turnwire.warnings"
"""In the metadata of the final response: what of the request the model did not get."""
MAX_AFTERMATHS = 16
"""Turns a connection may have left behind: over for the client, waiting for verdict or prefill."""

_KEEPS_PARENT = frozenset({401, 429, 503})
"""Refusals of admission: trying again may work, so the parent stays."""

logger = logging.getLogger("turnwire.turn")


class Turn:
    """One use each. `run` is the whole turn; cancelling it is how a client that left ends it."""

    def __init__(
        self, request: TurnRequest, memory: Memory, services: Services, listener: Listener
    ) -> None:
        self.id = request.response_id
        self.failure: ApiError | None = None
        """Why the response failed, after it was created."""
        self.usage: m.UsageRecord | None = None
        """What it used, once it is over."""
        received_s = request.received_s or services.clock.now_s()
        self.stages = Stages(services.clock.now_s, request.began_s or received_s)
        self.stages.passed("receive", received_s)
        self._frame = request.frame
        self._known_echo = memory.echo
        self._request = replace(request, frame=b"")
        self._memory = memory
        self._services = services
        self._listener = listener
        self._clock = services.clock
        self._work: Work | None = None
        self._status = "failed"
        self._finish: m.Finish | None = None
        self._evict = False
        self._released = False
        self._withdrawn = False
        self._deadline: asyncio.Timeout | None = None
        self._end_error: ApiError | None = None
        self._conversation_id: str | None = None

    @property
    def created(self) -> bool:
        """Has the response an id the client knows? Then the turn itself reports its faults."""
        return self._work is not None

    @property
    def response(self) -> m.Json | None:
        """The final response object, once there is one."""
        return None if self._work is None else self._work.stream.response

    async def run(self) -> None:
        """Raises an ApiError for a fault before `created`; later only what is a bug."""
        self.stages.passed("queue")
        self._services.settlements.admit()
        try:
            model = await self._resolve()
            work = self._begin(model, await self._prepare(model))
            async with work.screening:
                await self._respond(work)
                self._release()
                self.stages.passed("commit")
                if "settlement" in self._memory.ablated:
                    await self._settled(work)
                await self._aftermath(work)
        except ApiError as error:
            self._evict = error.status not in _KEEPS_PARENT
            raise
        finally:
            self._release()
            if self._work is not None:
                self._work.telling.prepared()
                if self.usage is None and not self._withdrawn:
                    self._settle(self._work)

    def end(self, error: ApiError) -> None:
        """End the response as failed with `error`, as soon as it exists."""
        self._end_error = error
        self._expire()

    def withdraw(self) -> None:
        """Its response was refused where it was to be recorded: it is no turn for the ledger."""
        self._withdrawn = True

    def left(self) -> None:
        """The client is gone: stop a prefill that nobody waits for, unless its worker goes on."""
        if self._work is not None and self._work.stream.ended:
            self._expire()

    def beat(self, now_s: float) -> None:
        """Time passed: repeat the state to a client that has heard nothing for long."""
        if self._work is not None:
            self._work.telling.beat(now_s, self._services.limits.heartbeat_s)

    async def _resolve(self) -> m.Model:
        name = self._request.model
        if not name:
            raise InvalidRequest("The field 'model' is required.", "model")
        give_up_s = self._clock.now_s() + self._services.limits.worker_wait_s
        anew = "route" in self._memory.ablated
        model = await self._memory.routes.resolved(name, give_up_s, anew=anew)
        self.stages.passed("route")
        return model

    async def _prepare(self, model: m.Model) -> m.Prepared:
        request, memory = self._request, self._memory
        self._known_echo = memory.echo
        command = m.Prepare(
            connection_id=memory.connection_id,
            response_id=self.id,
            frame=self._frame,
            model=model,
            lane=request.lane,
            transport=request.transport,
            known_echo=memory.echo.key,
            ablated=memory.ablated,
        )
        store = self._services.store
        prepared = await prepare(command, memory.connection, store, request.tenant, self._enter)
        self.stages.passed("prepare")
        self._frame = b""
        return prepared

    def _enter(self, conversation_id: str) -> None:
        """Raises ConversationLocked."""
        self._services.conversations.enter(self._request.tenant, conversation_id, self.id)
        self._conversation_id = conversation_id

    def _begin(self, model: m.Model, prepared: m.Prepared) -> Work:
        request, services = self._request, self._services
        echo = self._memory.echo = echo_of(
            prepared, self._known_echo, services.limits.echo_schema == "open_responses"
        )
        created_at = self._clock.today_s()
        stream = stream_of(request, services, prepared, echo, created_at)
        whole = "screening" in self._memory.ablated
        command = m.Screen(self.id, request.tenant, prepared.new_text, whole)
        screening = Screening(
            services.safety,
            command,
            services.limits.policy,
            services.limits.screen_s,
            self.stages,
            self.end,
        )
        held = screening.holds_output
        telling = Telling(self._listener, self._clock.now_s, prepared, stream)
        self._work = Work(request, model, prepared, stream, screening, created_at, held, telling)
        return self._work

    async def _respond(self, work: Work) -> None:
        """Ends with the terminal event, unless it is cancelled."""
        limit_s = 0.0 if self._end_error else self._services.limits.turn_s
        deadline = asyncio.timeout(limit_s)
        try:
            async with deadline:
                self._deadline = deadline
                await (self._answer(work) if work.prepared.generate else self._warm_up(work))
            return
        except asyncio.CancelledError:
            self._status = "cancelled"
            raise
        except ApiError as error:
            failure = error
        except Exception as error:
            failure = self._fault(error, deadline)
        finally:
            self._deadline = None
        self._fail(work, failure)

    def _fault(self, error: Exception, deadline: asyncio.Timeout) -> ApiError:
        if isinstance(error, TimeoutError) and deadline.expired():
            return self._end_error or Internal("The turn took longer than this server allows.")
        logger.error("turn.failed %s", self.id, exc_info=error)
        return Internal("The server had an internal error.")

    def _fail(self, work: Work, error: ApiError) -> None:
        self.failure = error
        self._evict = error.status not in _KEEPS_PARENT
        work.telling.created()
        work.telling.send([work.stream.failed(error)])

    async def _answer(self, work: Work) -> None:
        # Said behind the command to the worker: a long echo takes as long to make as a token.
        telling = work.telling
        generation = Generation(
            self._services, self._memory, work, sent=lambda: telling.started(now=False)
        )
        if work.prepared.background:
            # Its client waits for no token, only for the record that is made of these.
            telling.created()
            telling.send([])
        await generation.find_worker(telling.queued)
        self.stages.passed("route")
        if work.prepared.compaction and await self._compact(work):
            return

        async def take(batch: list[m.EngineEvent]) -> None:
            await self._take(work, batch)

        finish = await generation.run(take)
        self.stages.passed("decode")
        await self._conclude(work, finish)

    async def _compact(self, work: Work) -> bool:
        """True: that was all there is to do."""
        work.telling.started()
        ended = await compact(work, self._services, self._memory, work.telling.send)
        self.stages.passed("decode")
        if ended:
            await self._conclude(work, "stop")
        return ended

    async def _warm_up(self, work: Work) -> None:
        """Answered at once: the prompt is evaluated when the client does not wait any more."""
        work.telling.created()
        work.telling.send([])
        if work.held:
            await work.screening.passed()
        work.stream.counts = m.Counts(input_tokens=work.prepared.input_tokens)
        await self._conclude(work, "stop")

    async def _take(self, work: Work, batch: list[m.EngineEvent]) -> None:
        if work.held:
            await work.screening.passed()
            work.held = False
        first = batch[0]
        self.stages.evaluated(first.waited_us if type(first) is m.PromptEvaluated else 0)
        events = work.produced(batch)
        if events:
            self.stages.produced()
        if type(batch[-1]) is m.GenerationFinished:
            work.telling.keep(events)
        else:
            work.telling.send(events)

    async def _conclude(self, work: Work, finish: m.Finish) -> None:
        stream = work.stream
        if self._request.timings or work.prepared.facts.metadata.get(TIMINGS) == "1":
            stream.object.with_metadata(TIMINGS, self.stages.json())
        if work.prepared.warnings:
            stream.object.with_metadata(WARNINGS, " ".join(work.prepared.warnings))
        work.telling.keep(stream.closed(finish, self._clock.today_s()))
        if work.prepared.store or work.prepared.conversation_id is not None:
            work.telling.send([])
            await work.kept(self._services.store, finish)
            self.stages.passed("commit")
        work.telling.send([stream.terminal()])
        self._finish = finish
        self._status = stream.status if work.prepared.generate else "warm_up"

    async def _aftermath(self, work: Work) -> None:
        """What the client does not wait for: a warm-up's prefill, a verdict still out."""
        memory = self._memory
        warms_up = self._status == "warm_up" and memory.aftermaths < MAX_AFTERMATHS
        if memory.aftermaths >= MAX_AFTERMATHS:
            await work.screening.verdict()
        memory.aftermaths += 1
        self._listener.ended()
        try:
            if warms_up:
                await self._prefill(work)
            await work.screening.verdict()
        finally:
            memory.aftermaths -= 1

    async def _prefill(self, work: Work) -> None:
        async def take(batch: list[m.EngineEvent]) -> None:
            work.produced(batch)

        # Nobody waits for it: without it the next turn evaluates the prompt itself.
        deadline = self._deadline = asyncio.timeout(self._services.limits.turn_s)
        try:
            with suppress(ApiError, TimeoutError):
                async with deadline:
                    await Generation(self._services, self._memory, work, warm_up=True).run(take)
        finally:
            self._deadline = None

    def _settle(self, work: Work) -> None:
        self.stages.resumed()
        self.usage = work.usage(self._status)
        self._services.settlements.settle(self.usage)
        self.stages.passed("settle")

    async def _settled(self, work: Work) -> None:
        """The end is known to all who must know it: only to see what not waiting for it buys."""
        await self._memory.connection.told()
        self.stages.passed("commit")
        await work.screening.verdict()
        self._settle(work)
        await self._services.settlements.settled()
        self.stages.passed("settle")

    def _expire(self) -> None:
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(0)

    def _release(self) -> None:
        """Tell the connection how the turn ended, once, and before its next turn begins."""
        if self._released:
            return
        self._released = True
        memory, work = self._memory, self._work
        if work is None or self._finish is None:
            where = memory.connection_id, self._evict
            memory.connection.abort(given_up(self._request, self._frame, *where))
        else:
            memory.connection.commit(work.commit(memory.connection_id, self._finish))
        if self._conversation_id is not None:
            tenant = self._request.tenant
            self._services.conversations.leave(tenant, self._conversation_id, self.id)
