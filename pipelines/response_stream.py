"""From what an engine produced to the numbered wire events of one response. Pure.

Order of use: `created` or `accepted`, `started`, then any number of `produced` and `heartbeat`,
then either `closed` and `terminal`, or `failed`. There is exactly one terminal event, and the final
object's output is the accumulation of the items that were sent.
"""

from typing import assert_never

from msgspec.structs import astuple

from turnwire.pipelines.messages import (
    CallProduced,
    Counts,
    EngineEvent,
    Finish,
    GenerationFinished,
    Json,
    PrefixMissing,
    PromptEvaluated,
    ReasoningProduced,
    TextProduced,
    TokenIds,
)
from turnwire.pipelines.open_compaction import OpenCompaction
from turnwire.pipelines.open_custom_call import OpenCustomCall
from turnwire.pipelines.open_items import ItemStatus, OpenCall, OpenReasoning, OpenText
from turnwire.pipelines.protocol.errors import ApiError
from turnwire.pipelines.protocol.events import EventWriter
from turnwire.pipelines.protocol.ids import output_item_id
from turnwire.pipelines.protocol.responses import (
    Echo,
    ResponseObject,
    Status,
    failure_object,
    usage_object,
)
from turnwire.pipelines.sealing import Seal

_INCOMPLETE: dict[Finish, Json] = {
    "length": b'{"reason":"max_output_tokens"}',
    "content_filter": b'{"reason":"content_filter"}',
}


class ResponseStream:
    """The wire events of one response, in order and numbered."""

    def __init__(
        self,
        response_id: str,
        created_at: int,
        echo: Echo,
        turn_members: Json = b"",
        *,
        lane: str | None = None,
        trim_echo: bool = False,
        reasoning: type[OpenReasoning] | None = OpenReasoning,
        seal: Seal | None = None,
    ) -> None:
        """`reasoning`: how it is shown; None: not at all. `seal`: for its `encrypted_content`."""
        self.counts = Counts()
        self.spent = Counts()
        """What was used before the answer, for a summary."""
        self.response: Json | None = None
        """The final response object, once `closed` or `failed` made it."""
        self.object = ResponseObject(response_id, created_at, echo, turn_members)
        self.output_started = False
        """Has the client been sent any output?"""
        self.ended = False
        self._writer = EventWriter(lane)
        self._response_id = response_id
        self._trim_echo = trim_echo
        self._reasoning = reasoning
        self._seal = seal
        self._namespaced = echo.namespaced
        self._custom = echo.custom
        self._open_text: OpenText | None = None
        self._open_calls: dict[int, OpenCall] = {}
        self._finished_calls: set[int] = set()
        self._items: dict[int, Json] = {}
        self._opened = 0
        self._sampled: list[TokenIds] = []
        self._logprobs: list[Json] = []
        self._compaction: OpenCompaction | None = None
        self._state = b""
        """The members of the event that a heartbeat repeats, and its kind."""
        self._state_kind = b""
        self.status: Status = "in_progress"

    @property
    def exists(self) -> bool:
        """Does it have its beginning?"""
        return bool(self._state)

    @property
    def output(self) -> Json:
        """The finished items, as a JSON list."""
        return b"[%b]" % b",".join(self._items[index] for index in sorted(self._items))

    @property
    def sampled(self) -> TokenIds:
        return b"".join(self._sampled)

    def created(self) -> list[Json]:
        """The beginning; `queued` or `started` come next, except in a warm-up."""
        self._enter("in_progress")
        return [self._writer.event(b"response.created", self._state)]

    def accepted(self) -> list[Json]:
        """The beginning of a background response; `started` comes next."""
        self._enter("queued")
        return [self._writer.event(b"response.created", self._state), *self.heartbeat()]

    def queued(self) -> list[Json]:
        """It has to wait; `started` comes next."""
        self._enter("queued")
        return self.heartbeat()

    def started(self) -> list[Json]:
        self._enter("in_progress")
        return self.heartbeat()

    @property
    def total(self) -> Counts:
        """All that the response has used so far."""
        if self.spent == Counts():
            return self.counts
        pairs = zip(astuple(self.spent), astuple(self.counts), strict=True)
        return Counts(*map(sum, pairs))

    def spend(self, counts: Counts) -> None:
        self.spent = counts

    def compacting(self) -> tuple[str, list[Json]]:
        """A summary is being written: the id of its item. `compacted` comes next.

        It is no output of the answer: behind it a worker may still begin anew.
        """
        item_id = self._item_id(OpenCompaction.prefix)
        self._compaction = OpenCompaction(self._writer, item_id, self._opened)
        self._opened += 1
        return item_id, self._compaction.opened()

    def compacted(self, sealed: str) -> list[Json]:
        assert self._compaction is not None, "`compacting` comes first"
        events, item = self._compaction.closed(sealed)
        self._items[self._compaction.output_index] = item
        return events

    def heartbeat(self) -> list[Json]:
        """The state once more, for clients that give up on a silent turn."""
        if self.ended or not self._state:
            return []
        return [self._writer.event(self._state_kind, self._state)]

    def _enter(self, status: Status) -> None:
        self.status = status
        self._state_kind = b"response." + status.encode()
        self._state = b'"response":' + self.object.render(status, trimmed=self._trim_echo)

    def produced(self, batch: list[EngineEvent]) -> list[Json]:
        """Events for all that was ready at once: text of one item becomes one delta."""
        out: list[Json] = []
        run: list[str] = []
        kind: type[OpenText] = OpenText
        for event in batch:
            match event:
                case TextProduced(text, counts, ids, logprobs):
                    self.counts = counts
                    if ids:
                        self._sampled.append(ids)
                    if kind is not OpenText and text:
                        self._text(kind, run, out)
                        kind = OpenText
                    run.append(text)
                    if logprobs:
                        self._logprobs.append(logprobs)
                case ReasoningProduced(text, counts):
                    self.counts = counts
                    shown = self._reasoning
                    if shown is None or not text:
                        continue
                    if kind is not shown:
                        self._text(kind, run, out)
                        kind = shown
                    run.append(text)
                case CallProduced(counts=counts):
                    self.counts = counts
                    self._text(kind, run, out)
                    self._call(event, out)
                case _:
                    self._note(event)
        self._text(kind, run, out)
        return out

    def _note(self, event: PromptEvaluated | GenerationFinished | PrefixMissing) -> None:
        match event:
            case PromptEvaluated(counts):
                self.counts = counts
            case GenerationFinished(_, counts, ids):
                self.counts = counts
                self._sampled.append(ids)
            case PrefixMissing():
                pass
            case _:
                assert_never(event)

    def restarted(self) -> None:
        """Another worker begins anew; possible only before any output."""
        assert not self.output_started, "two answers must not be mixed"
        self.counts = Counts()
        self._sampled.clear()

    def closed(self, finish: Finish, completed_at: int) -> list[Json]:
        """Close what is open and settle the final object; `terminal` is still to be sent."""
        out: list[Json] = []
        incomplete = _INCOMPLETE.get(finish)
        if not self._opened and self.counts.output_tokens > 0:
            self._open(OpenText, out)
        self._close_open("completed" if incomplete is None else "incomplete", out)
        self.status = "completed" if incomplete is None else "incomplete"
        self._settle(
            self.status,
            usage_object(self.total),
            incomplete_details=incomplete or b"null",
            completed_at=completed_at if incomplete is None else None,
        )
        return out

    def terminal(self) -> Json:
        """The one terminal event of a response that was `closed`."""
        assert self.response is not None, "`terminal` comes after `closed`"
        return self._terminal(self.status)

    def failed(self, error: ApiError) -> Json:
        """The one terminal event of a response that could not be finished.

        Items still open are neither closed nor listed: clients keep what an item's done event
        carried, and would answer from half an item.
        """
        usage = usage_object(self.total) if self.total != Counts() else b"null"
        self._settle("failed", usage, error=failure_object(error))
        return self._terminal("failed")

    def _settle(
        self,
        status: Status,
        usage: Json,
        *,
        error: Json = b"null",
        incomplete_details: Json = b"null",
        completed_at: int | None = None,
    ) -> None:
        self.response = self.object.render(
            status,
            output=self.output,
            usage=usage,
            error=error,
            incomplete_details=incomplete_details,
            completed_at=completed_at,
        )

    def _terminal(self, status: Status) -> Json:
        assert not self.ended, "a response has one terminal event"
        assert self.response is not None, "the final object is made first"
        self.ended = True
        return self._writer.event(b"response." + status.encode(), b'"response":' + self.response)

    def _text(self, kind: type[OpenText], run: list[str], out: list[Json]) -> None:
        text = "".join(run)
        run.clear()
        if not text:
            return
        if type(self._open_text) is not kind:
            self._open(kind, out)
        assert self._open_text is not None, "just opened"
        if kind is OpenText and self._logprobs:
            out.append(self._open_text.delta(text, b",".join(self._logprobs)))
            self._logprobs.clear()
        elif event := self._open_text.delta(text):
            out.append(event)

    def _open(self, kind: type[OpenText], out: list[Json]) -> None:
        self._close_text("completed", out)
        self._open_text = kind(self._writer, self._item_id(kind.prefix), self._opened, self._seal)
        self._started()
        out += self._open_text.opened()

    def _call(self, event: CallProduced, out: list[Json]) -> None:
        if event.index in self._finished_calls:
            return
        self._close_text("completed", out)
        call = self._open_calls.get(event.index)
        if call is None:
            namespace, name = self._namespaced.get(event.name, ("", event.name))
            kind = OpenCustomCall if event.name in self._custom else OpenCall
            item_id = self._item_id(kind.prefix)
            call = kind(self._writer, item_id, self._opened, event.call_id, name, namespace)
            self._open_calls[event.index] = call
            self._started()
            out += call.opened()
        if event.arguments:
            out += call.delta(event.arguments)
        if event.finished:
            del self._open_calls[event.index]
            self._finished_calls.add(event.index)
            self._keep(call, "completed", out)

    def _started(self) -> None:
        self._opened += 1
        self.output_started = True

    def _close_open(self, last: ItemStatus, out: list[Json]) -> None:
        self._close_text(last, out)
        for call in self._open_calls.values():
            self._keep(call, last, out)
        self._open_calls.clear()

    def _close_text(self, status: ItemStatus, out: list[Json]) -> None:
        item, self._open_text = self._open_text, None
        if item is not None:
            self._keep(item, status, out)

    def _keep(self, item: OpenText | OpenCall, status: ItemStatus, out: list[Json]) -> None:
        events, finished = item.closed(status)
        out += events
        self._items[item.output_index] = finished

    def _item_id(self, prefix: str) -> str:
        return output_item_id(prefix, self._response_id, self._opened)
