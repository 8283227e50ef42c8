"""The summary inside of a turn: asked of the model, kept by its connection, shown as an item.

It is a generation like any other: on whichever worker, counted and settled with its turn,
cancelled with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from turnwire.pipelines.generation import Generation
from turnwire.pipelines.messages import (
    Compact,
    CountPrompt,
    Counts,
    EngineEvent,
    ItemPrompt,
    Json,
    Model,
    Prepared,
    Recall,
    Summarize,
    TextProduced,
)
from turnwire.pipelines.prompts.output import OutputParser, output_parser, parsed
from turnwire.pipelines.protocol.errors import Internal
from turnwire.pipelines.services import Services
from turnwire.pipelines.turn_request import Memory, TurnRequest
from turnwire.pipelines.turn_work import Work


@dataclass(slots=True)
class Summary:
    """A summary while it is written. Nobody sees it before its end: any worker may begin anew."""

    request: TurnRequest
    model: Model
    prepared: Prepared
    """With the prompt that asks for it."""
    counted: Callable[[Counts], None]
    output_started: bool = False
    _pieces: list[str] = field(default_factory=list)
    _parser: OutputParser = field(init=False)

    def __post_init__(self) -> None:
        self.restarted()

    @property
    def text(self) -> str:
        return "".join(self._pieces).strip()

    def restarted(self) -> None:
        self._pieces.clear()
        self._parser = output_parser(self.model, self.request.response_id, calls=False)

    async def take(self, batch: list[EngineEvent]) -> None:
        for event in batch:
            if counts := getattr(event, "counts", None):
                self.counted(counts)
        for piece in parsed(self._parser, batch):
            if type(piece) is TextProduced:
                self._pieces.append(piece.text)


async def compact(
    work: Work, services: Services, memory: Memory, emit: Callable[[list[Json]], None]
) -> bool:
    """Compact the conversation of a turn that says so. True: there is nothing behind it.

    Afterwards the turn's prompt is the one that goes on. Raises as a generation does, NotFound
    when the connection's state is gone, Internal for a model that writes nothing.
    """
    prepared, stream = work.prepared, work.stream
    where = memory.connection_id, work.request.response_id
    if prepared.compaction == "count":
        whole = await memory.connection.recall(Recall(*where))
        if not await _is_long(work, services, memory, whole):
            return False
        asked = await memory.connection.summarize(Summarize(*where))
        prepared = replace(prepared, facts=asked.facts, prompt=asked.prompt)
    if work.held:
        await work.screening.passed()
        work.held = False
    item_id, events = stream.compacting()
    emit(events)
    summary = Summary(work.request, work.model, prepared, stream.spend)
    await Generation(services, memory, summary).run(summary.take)
    if not summary.text:
        raise Internal("The model wrote no summary.")
    done = await memory.connection.compact(Compact(*where, item_id, summary.text))
    emit(stream.compacted(done.sealed))
    if done.facts is None or done.prompt is None:
        return True
    work.prepared = replace(prepared, facts=done.facts, prompt=done.prompt)
    return False


async def _is_long(work: Work, services: Services, memory: Memory, whole: object) -> bool:
    assert isinstance(whole, ItemPrompt), "other prompts are counted where they are made"
    name = work.request.model or work.model.name
    give_up_s = services.clock.now_s() + services.limits.worker_wait_s
    route = memory.routes.valid(name) or await memory.routes.find(name, give_up_s)
    command = CountPrompt(work.model.name, work.request.tenant, whole)
    counted = await services.engine.count(route.worker, command)
    return counted.input_tokens >= work.prepared.compact_threshold
