"""What all turns of a gateway share: the outside as roles, a clock, and the numbers to keep."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from turnwire.pipelines.conversations import ConversationTurns
from turnwire.pipelines.limits import Settlements
from turnwire.pipelines.ports import Engine, Router, Safety, Store
from turnwire.pipelines.sealing import Keyring


class Clock(Protocol):
    """Time, injected so that tests need not wait for it."""

    def now_s(self) -> float:
        """Seconds that only grow; their zero means nothing."""

    def today_s(self) -> int:
        """Seconds since 1970, as the API writes them."""

    async def sleep(self, delay_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How a turn behaves; the meanings are those of `GatewaySettings` and `SafetySettings`."""

    policy: Literal["off", "score", "block"] = "score"
    screen_s: float = 5.0
    turn_s: float = 3600.0
    worker_wait_s: float = 20.0
    heartbeat_s: float = 15.0
    reasoning_events: Literal["openai", "open_responses", "hidden"] = "openai"
    echo_schema: Literal["openai", "open_responses"] = "openai"
    trim_echo: bool = False


@dataclass(frozen=True, slots=True)
class Services:
    router: Router
    engine: Engine
    safety: Safety
    store: Store
    settlements: Settlements
    clock: Clock
    limits: TurnLimits = TurnLimits()
    conversations: ConversationTurns = field(default_factory=ConversationTurns)
    keyring: Keyring = field(default_factory=Keyring)
    """Seals what clients carry for us."""
