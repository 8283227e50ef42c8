"""How long the stages of a turn took, in one place."""

from collections.abc import Callable
from dataclasses import dataclass, field

import orjson


@dataclass(slots=True)
class Stages:
    """Marks since `start_s`, in microseconds, each the end of the stage it names."""

    now_s: Callable[[], float]
    start_s: float
    marks_us: dict[str, int] = field(default_factory=dict)

    def mark(self, stage: str) -> None:
        """The first mark of a stage counts."""
        if stage not in self.marks_us:
            self.marks_us[stage] = round((self.now_s() - self.start_s) * 1e6)

    def json(self) -> str:
        return orjson.dumps(self.marks_us).decode()
