"""How long the stages of a turn took: measured here, for its log line, the metrics and the client.

| stage | what it is |
|---|---|
| `receive` | from the first bytes of the request to all of them |
| `queue` | behind earlier turns of its lane, and at the worker for a place |
| `route` | looking for a worker; next to nothing while the connection's route holds |
| `prepare` | at the connection's actor: checked, parent found, rendered |
| `prefill` | from the command to the worker until the prompt is evaluated, without the queue |
| `first_token` | from there to the first event of output |
| `decode` | from there to the end of the output; and the summary that a compaction begins with |
| `commit` | the response stored, if it is to be, and the answer handed to the connection |
| `settle` | the usage record handed to the ledger |
| `screen` | until the verdict; beside the others, so it is no part of their sum |
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

STAGES = (
    "receive",
    "queue",
    "route",
    "prepare",
    "prefill",
    "first_token",
    "decode",
    "commit",
    "settle",
    "screen",
)


@dataclass(slots=True)
class Stages:
    """Microseconds a stage, of one turn whose first bytes came at `start_s`."""

    now_s: Callable[[], float]
    start_s: float
    spent_us: dict[str, int] = field(default_factory=dict)
    _last_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._last_s = self.start_s

    def passed(self, stage: str, at_s: float | None = None) -> None:
        """What went by since the last stage was passed (until `at_s`: now) belongs to this one."""
        now_s = self.now_s() if at_s is None else at_s
        self.took(stage, round((now_s - self._last_s) * 1e6))
        self._last_s = now_s

    def evaluated(self, waited_us: int) -> None:
        """A worker has the prompt; before, it made it wait for so long. The first time counts."""
        if "prefill" not in self.spent_us:
            self.took("queue", waited_us)
            self.took("prefill", -waited_us)
            self.passed("prefill")

    def produced(self) -> None:
        """There is output. The first time counts."""
        if "first_token" not in self.spent_us:
            self.passed("first_token")

    def took(self, stage: str, us: int) -> None:
        """A stage that was measured elsewhere."""
        self.spent_us[stage] = self.spent_us.get(stage, 0) + us

    def resumed(self) -> None:
        """What went by since the last stage was passed belongs to none."""
        self._last_s = self.now_s()

    def __str__(self) -> str:
        """As it stands in the log."""
        return ",".join(f"{stage}:{us}" for stage, us in self.spent_us.items())

    def json(self) -> str:
        """An object; with `total`, from the first bytes until now."""
        total = {"total": round((self.now_s() - self.start_s) * 1e6)}
        return orjson.dumps(self.spent_us | total).decode()
