"""How a request steers a simulated model through its `metadata`. Pure.

| key | value | meaning |
|---|---|---|
| `sim.tool_turns` | 0 ... 10000 | call tools until so many outputs follow the last user message |
| `sim.parallel_calls` | 1 ... 32 | calls in one response (1 with `parallel_tool_calls: false`) |
| `sim.output_tokens` | 1 ... 1000000 | length of the answer, or of all arguments together |
| `sim.reasoning_tokens` | 0 ... 1000000 | length of the reasoning before it |
| `sim.first_token_ms` | 0 ... 600000 | wait before the first token, beside prefill |
| `sim.tokens_per_second` | above 0 ... 10000000 | decode rate |
| `sim.prefill_us_per_token` | 0 ... 1000000 | prefill time of a token that is not cached |
| `sim.fail` | NAME or NAME@TOKEN | a failure once so many output tokens were sent (0: before all) |

The failures: `overloaded`, `rate_limit_exceeded`, `internal` are errors of that name; `bug` is an
error no engine should raise; `disconnect` ends the stream without an ending; `stall` sends nothing
more until the caller leaves.
"""

import math
import re
from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from turnwire.pipelines.protocol.errors import InvalidRequest

FailureName = Literal["overloaded", "rate_limit_exceeded", "internal", "bug", "disconnect", "stall"]

_PREFIX: Final = "sim."
_FAIL: Final = re.compile(r"([a-z_]+)(?:@(\d{1,7}))?")


class Profile(msgspec.Struct, frozen=True):
    """The pace of a simulated model. `tokens_per_second` may be infinite."""

    first_token_s: float
    tokens_per_second: float
    prefill_s_per_token: float


class Failure(msgspec.Struct, frozen=True):
    """`name` strikes once `token` output tokens were sent."""

    name: FailureName
    token: int = 0


class Steering(msgspec.Struct, frozen=True):
    """What one request asked for; None: the model's own way."""

    profile: Profile
    tool_turns: int | None = None
    parallel_calls: int = 1
    output_tokens: int | None = None
    reasoning_tokens: int = 0
    failure: Failure | None = None


def read_steering(metadata: Mapping[str, str], profile: Profile) -> Steering:
    """Raises `InvalidRequest` naming the key that is unknown or whose value cannot be used."""
    given = {k.removeprefix(_PREFIX): v for k, v in metadata.items() if k.startswith(_PREFIX)}
    if not given:
        return Steering(profile)
    numbers = {name: _number(name, given[name]) for name in given if name != "fail"}

    def whole(name: str) -> int | None:
        return int(numbers[name]) if name in numbers else None

    return Steering(
        Profile(
            numbers.get("first_token_ms", profile.first_token_s * 1e3) / 1e3,
            numbers.get("tokens_per_second", profile.tokens_per_second),
            numbers.get("prefill_us_per_token", profile.prefill_s_per_token * 1e6) / 1e6,
        ),
        tool_turns=whole("tool_turns"),
        parallel_calls=whole("parallel_calls") or 1,
        output_tokens=whole("output_tokens"),
        reasoning_tokens=whole("reasoning_tokens") or 0,
        failure=_failure(given["fail"]) if "fail" in given else None,
    )


class _Range(msgspec.Struct, frozen=True):
    low: float
    high: float
    whole: bool = True


_RANGES: Final = {
    "tool_turns": _Range(0, 10_000),
    "parallel_calls": _Range(1, 32),
    "output_tokens": _Range(1, 1_000_000),
    "reasoning_tokens": _Range(0, 1_000_000),
    "first_token_ms": _Range(0, 600_000, whole=False),
    "tokens_per_second": _Range(0.001, 10_000_000, whole=False),
    "prefill_us_per_token": _Range(0, 1_000_000, whole=False),
}


def _number(name: str, value: str) -> float:
    if name not in _RANGES:
        known = ", ".join(_PREFIX + key for key in (*_RANGES, "fail"))
        raise InvalidRequest(f"unknown key; there are {known}", _param(name))
    allowed = _RANGES[name]
    try:
        number = float(int(value)) if allowed.whole else float(value)
    except ValueError:
        number = math.nan
    if not allowed.low <= number <= allowed.high:
        kind = "a whole number" if allowed.whole else "a number"
        raise InvalidRequest(
            f"must be {kind} from {allowed.low:g} to {allowed.high:g}, as a string", _param(name)
        )
    return number


def _failure(value: str) -> Failure:
    found = _FAIL.fullmatch(value)
    for name in get_args(FailureName):
        if found and found[1] == name:
            return Failure(name, int(found[2] or 0))
    names = ", ".join(get_args(FailureName))
    raise InvalidRequest(f"must be NAME or NAME@TOKEN with a NAME of {names}", _param("fail"))


def _param(name: str) -> str:
    return f"metadata.{_PREFIX}{name}"
