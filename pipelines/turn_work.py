"""A turn whose response exists: what was prepared, what it became, and what is said of it."""

import logging
from dataclasses import dataclass, field

from turnwire.pipelines.answer_rules import AnswerCheck
from turnwire.pipelines.messages import (
    AppendTurn,
    Commit,
    EngineEvent,
    Finish,
    Json,
    Model,
    Prepared,
    Save,
    StoredTurn,
    TokenPrompt,
    UsageRecord,
)
from turnwire.pipelines.open_items import shown_as
from turnwire.pipelines.ports import Store
from turnwire.pipelines.prompts.output import OutputParser, output_parser, parsed
from turnwire.pipelines.protocol.errors import ApiError, ConversationLocked, NotFound, Overloaded
from turnwire.pipelines.protocol.responses import Echo
from turnwire.pipelines.response_stream import ResponseStream
from turnwire.pipelines.screening import Screening
from turnwire.pipelines.sealing import reasoning_seal
from turnwire.pipelines.services import Services
from turnwire.pipelines.telling import Telling
from turnwire.pipelines.turn_request import TurnRequest

logger = logging.getLogger("turnwire.turn")


@dataclass(slots=True)
class Work:
    request: TurnRequest
    model: Model
    prepared: Prepared
    stream: ResponseStream
    screening: Screening
    created_at: int
    held: bool
    """Output waits for the verdict."""
    telling: Telling
    conversation_version: int = 0
    """The version that it made of its conversation, once it was appended."""
    parser: OutputParser = field(init=False)
    check: AnswerCheck | None = field(init=False)

    def __post_init__(self) -> None:
        self.parser, self.check = self._new_parser(), self._new_check()

    @property
    def output_started(self) -> bool:
        return self.stream.output_started

    def restarted(self) -> None:
        """Another worker begins anew."""
        self.stream.restarted()
        self.parser, self.check = self._new_parser(), self._new_check()

    def _new_check(self) -> AnswerCheck | None:
        rules = self.prepared.rules
        return None if rules is None else AnswerCheck(rules)

    def _new_parser(self) -> OutputParser:
        calls = self.prepared.facts.calls
        prompt = self.prepared.prompt
        thinking = isinstance(prompt, TokenPrompt) and prompt.thinking
        return output_parser(self.model, self.request.response_id, calls=calls, thinking=thinking)

    def produced(self, batch: list[EngineEvent]) -> list[Json]:
        """The wire events of what an engine produced, in the model's own format or told apart."""
        pieces = parsed(self.parser, batch)
        if self.check is not None:
            pieces = self.check.feed(pieces)
        return self.stream.produced(pieces)

    async def kept(self, store: Store, finish: Finish) -> None:
        """Returns when it is committed, to the responses and to its conversation, as asked for."""
        try:
            if self.prepared.conversation_id is None:
                await store.save(self.save(finish))
            else:
                appended = await store.append(self.append(finish))
                self.conversation_version = appended.version
        except (ConversationLocked, NotFound):
            raise
        except ApiError as error:
            logger.warning("turn.not_stored %s: %s", self.request.response_id, error)
            message = "The response could not be stored; try again, or send store: false."
            raise Overloaded(message) from error

    def save(self, finish: Finish) -> Save:
        """For a response that is closed."""
        prepared, stream, request = self.prepared, self.stream, self.request
        assert stream.response is not None, "the response is closed before it is saved"
        return Save(
            tenant=request.tenant,
            response_id=request.response_id,
            created_at=self.created_at,
            response=stream.response,
            turn=self._stored_turn(finish),
            parent_id=prepared.parent_id,
            context=prepared.stored_context,
        )

    def append(self, finish: Finish) -> AppendTurn:
        """For a response in a conversation: there it is kept also where `store` is false."""
        prepared = self.prepared
        assert prepared.conversation_id is not None, "the turn is in a conversation"
        return AppendTurn(
            tenant=self.request.tenant,
            conversation_id=prepared.conversation_id,
            version=prepared.conversation_version,
            turn=self._stored_turn(finish),
            save=self.save(finish) if prepared.store else None,
        )

    def _stored_turn(self, finish: Finish) -> StoredTurn:
        return StoredTurn(
            response_id=self.request.response_id,
            input=self.prepared.stored_input or b"[]",
            output=self.stream.output,
            model=self.prepared.facts.model,
            sampled=self.stream.sampled,
            finish=finish,
        )

    def commit(self, connection_id: str, finish: Finish) -> Commit:
        stream = self.stream
        return Commit(
            connection_id,
            self.request.response_id,
            stream.output,
            stream.sampled,
            finish,
            conversation_version=self.conversation_version,
        )

    def usage(self, status: str) -> UsageRecord:
        return UsageRecord(
            response_id=self.request.response_id,
            tenant=self.request.tenant,
            key_id=self.request.key_id,
            model=self.prepared.facts.model,
            status=status,
            created_at=self.created_at,
            counts=self.stream.total,
            flagged=self.screening.marks(),
        )


def stream_of(
    request: TurnRequest, services: Services, prepared: Prepared, echo: Echo, created_at: int
) -> ResponseStream:
    """What turns output into the events this request is to see."""
    limits = services.limits
    seal = reasoning_seal(services.keyring, request.tenant, prepared.include)
    return ResponseStream(
        request.response_id,
        created_at,
        echo,
        prepared.echo_turn,
        lane=request.lane,
        trim_echo=limits.trim_echo,
        reasoning=shown_as(limits.reasoning_events, sealed=seal is not None),
        seal=seal,
    )
