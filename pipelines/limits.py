"""Bounds over all connections of a gateway, each with its named refusal. Pure."""

from collections import deque

from turnwire.pipelines.messages import UsageRecord
from turnwire.pipelines.ports import Ledger
from turnwire.pipelines.protocol.errors import Overloaded


class ByteBudget:
    """Request bytes held at once."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0

    def take(self, count: int) -> None:
        """Raises Overloaded when `count` more bytes do not fit; nothing is taken then."""
        if self.held_bytes + count > self.max_bytes:
            raise Overloaded("the server holds too many request bytes; try again in a moment")
        self.held_bytes += count

    def give_back(self, count: int) -> None:
        self.held_bytes -= count

    def __repr__(self) -> str:
        return f"<ByteBudget {self.held_bytes}/{self.max_bytes}>"


class Places:
    """Clients served at once: sockets, and HTTP requests that make or follow a response."""

    def __init__(self, max_places: int) -> None:
        self.max_places = max_places
        self.taken = 0

    def take(self) -> None:
        if self.taken >= self.max_places:
            raise Overloaded(f"{self.taken} clients are served already; try again in a moment")
        self.taken += 1

    def give_back(self) -> None:
        self.taken -= 1

    def __repr__(self) -> str:
        return f"<Places {self.taken}/{self.max_places}>"


class Settlements:
    """The ledger as turns use it: a record is never lost, and a full backlog stops new turns.

    Records the ledger does not take wait here. There are never more of them than turns that were
    running when its backlog filled up, because `admit` lets no turn start meanwhile.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._owed: deque[UsageRecord] = deque()

    def admit(self) -> None:
        """Raises Overloaded while records of finished turns wait for room in the ledger."""
        self.deliver()
        if self._owed:
            raise Overloaded("the ledger's backlog is full; try again in a moment")

    def settle(self, record: UsageRecord) -> None:
        self._owed.append(record)
        self.deliver()

    async def settled(self) -> None:
        """Returns when all that the ledger took is written."""
        await self._ledger.settled()

    @property
    def owed(self) -> int:
        return len(self._owed)

    def deliver(self) -> None:
        """Hand over what waits, as far as there is room."""
        while self._owed:
            try:
                self._ledger.settle(self._owed[0])
            except Overloaded:
                return
            self._owed.popleft()
