"""What a session wants done, as data: performed by the gateway in the order given."""

import msgspec

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.errors import ApiError


class Accepted(msgspec.Struct, frozen=True):
    """One `response.create` that was accepted."""

    response_id: str
    frame: Json
    lane: str | None = None
    model: str | None = None
    generate: bool = True
    received_s: float = 0.0
    began_s: float = 0.0


class StartTurn(msgspec.Struct, frozen=True):
    turn: Accepted


class CancelTurn(msgspec.Struct, frozen=True):
    response_id: str


class EndTurn(msgspec.Struct, frozen=True):
    """Its time is over: unlike a cancelled one it is ended as failed, for a client that listens."""

    response_id: str
    error: ApiError


class SendError(msgspec.Struct, frozen=True):
    error: ApiError
    lane: str | None = None


class SendEvent(msgspec.Struct, frozen=True):
    event: Json


class CloseSocket(msgspec.Struct, frozen=True):
    code: int
    reason: str


Effect = StartTurn | CancelTurn | EndTurn | SendError | SendEvent | CloseSocket
