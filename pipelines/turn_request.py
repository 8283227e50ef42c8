"""What a turn starts from: the request, the connection it came on, and who listens to it."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from turnwire.pipelines.messages import Json, Prepared
from turnwire.pipelines.ports import Connection
from turnwire.pipelines.protocol.responses import Echo
from turnwire.pipelines.routes import Routes


class TurnRequest(msgspec.Struct, frozen=True):
    """What is known of a turn before its frame is read."""

    response_id: str
    frame: Json
    tenant: str
    key_id: str
    model: str | None
    lane: str | None = None
    transport: Literal["websocket", "http"] = "websocket"
    timings: bool = False
    received_s: float = 0.0
    """All of it was there; `began_s`: its first bytes. 0: when the turn was made."""
    began_s: float = 0.0


@dataclass(slots=True)
class Memory:
    """What a gateway keeps for a connection between its turns."""

    connection: Connection
    connection_id: str
    routes: Routes
    echo: Echo = field(default_factory=Echo)
    aftermaths: int = 0
    ablated: tuple[str, ...] = ()
    """Savings that are left out here (`pipelines/ablation.py`)."""


class Listener(Protocol):
    """Where a turn's events go. Nothing here waits or raises."""

    def events(self, events: list[Json], *, now: bool = True) -> None:
        """Unless `now`, they may wait some milliseconds for others to leave with."""

    def prepared(self, prepared: Prepared) -> None:
        """The frame is not held any more; events follow."""

    def ended(self) -> None:
        """The terminal event is out and the parent let go: the lane may go on. At most once."""
