"""The gateway's backlog of usage records: what is sent next, what is done, when it is full. Pure.

A record leaves the backlog only when the ledger has acknowledged its commit; until then the same
batch is sent again, which changes nothing there (one row a `response_id`).
"""

from collections import deque
from dataclasses import dataclass, field

from turnwire.pipelines.messages import Settle, UsageRecord
from turnwire.pipelines.protocol.errors import Overloaded

BATCH = 256
"""Records a message; one message is one transaction of the ledger at most."""


@dataclass
class Backlog:
    """Records that are not yet known to be in the ledger, oldest first."""

    limit: int
    _records: deque[UsageRecord] = field(default_factory=deque)
    _in_flight: int = 0

    def put(self, record: UsageRecord) -> None:
        """Raises Overloaded when `limit` records wait; the record is then not taken."""
        if len(self._records) >= self.limit:
            raise Overloaded(f"{self.limit} usage records wait for the ledger")
        self._records.append(record)

    @property
    def nearly_full(self) -> bool:
        """Should new turns be refused, so that those running still find room?"""
        return len(self._records) >= max(1, self.limit - self.limit // 10)

    def batch(self) -> Settle:
        """The oldest records; the same ones, and perhaps more, until `settled`."""
        count = min(len(self._records), BATCH)
        self._in_flight = count
        return Settle(tuple(self._records[at] for at in range(count)))

    def settled(self) -> None:
        """The last `batch` is committed."""
        for _ in range(self._in_flight):
            self._records.popleft()
        self._in_flight = 0

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<Backlog {len(self._records)}/{self.limit} | {self._in_flight} in flight>"
