"""What a session wants done, as data: performed by the gateway in the order given."""

from dataclasses import dataclass

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.errors import ApiError


@dataclass(frozen=True, slots=True)
class Accepted:
    """One `response.create` that was accepted."""

    response_id: str
    frame: Json
    lane: str | None = None
    model: str | None = None
    generate: bool = True
    received_s: float = 0.0
    began_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StartTurn:
    turn: Accepted


@dataclass(frozen=True, slots=True)
class CancelTurn:
    response_id: str


@dataclass(frozen=True, slots=True)
class EndTurn:
    """Its time is over: unlike a cancelled one it is ended as failed, for a client that listens."""

    response_id: str
    error: ApiError


@dataclass(frozen=True, slots=True)
class SendError:
    error: ApiError
    lane: str | None = None


@dataclass(frozen=True, slots=True)
class SendEvent:
    event: Json


@dataclass(frozen=True, slots=True)
class CloseSocket:
    code: int
    reason: str


Effect = StartTurn | CancelTurn | EndTurn | SendError | SendEvent | CloseSocket
