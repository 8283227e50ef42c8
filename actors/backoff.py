"""How long to wait between two tries: doubling up to a bound, from the start after a success."""

from dataclasses import dataclass, field


@dataclass
class Backoff:
    first_s: float = 0.05
    max_s: float = 2.0
    _next_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._next_s = self.first_s

    def next_s(self) -> float:
        """The wait before the next try."""
        wait_s = self._next_s
        self._next_s = min(self.max_s, wait_s * 2)
        return wait_s
