"""When a simulated model's tokens are due. Pure: the time is an argument.

Token n is due at an absolute moment, so that late wake-ups never add up to a slower stream.
"""

import math
from typing import Final

import msgspec

from turnwire.actors.engines.simulated_steering import Profile

ALL: Final = 1 << 62
"""More tokens than any answer has."""

_ROUNDING: Final = 1e-6
"""Of a token: at the very moment one is due it is there, whatever the last bit says."""


class Pace(msgspec.Struct, frozen=True):
    """The moments of one generation, in seconds of the engine's clock."""

    first_s: float
    """The prompt is evaluated and the first token is there."""
    tokens_per_second: float

    @classmethod
    def of(cls, profile: Profile, start_s: float, uncached_tokens: int) -> "Pace":
        prefill_s = profile.prefill_s_per_token * uncached_tokens
        return cls(start_s + profile.first_token_s + prefill_s, profile.tokens_per_second)

    def due(self, now_s: float) -> int:
        """How many tokens there are by now."""
        if now_s < self.first_s:
            return 0
        if math.isinf(self.tokens_per_second):
            return ALL
        return 1 + int((now_s - self.first_s) * self.tokens_per_second + _ROUNDING)

    def when(self, tokens: int, now_s: float, tick_s: float) -> float:
        """When to look again for more than `tokens`: the first at once, others on a tick.

        All generations share the ticks, so that one wake-up serves them all.
        """
        if tokens == 0:
            return self.first_s
        due_s = self.first_s + tokens / self.tokens_per_second
        if due_s <= now_s:
            return now_s
        return math.ceil(due_s / tick_s) * tick_s
