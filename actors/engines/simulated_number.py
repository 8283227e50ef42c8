"""A number within the bounds of a JSON schema. Pure."""

import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

_MAX_CANDIDATES = 64


class NoNumber(ValueError):
    """The bounds leave none, or none was found."""


def number(schema: Mapping[str, Any], variant: int, *, whole: bool) -> int | float:
    """A number that `schema` allows: another for another `variant`, where there are more.

    Computed with fractions: with floats a multiple of 0.1 soon is none.
    """
    low, high, step = _bounds(schema, whole=whole)
    start = low if low is not None else min(Fraction(1), high if high is not None else Fraction(1))
    if step is None:
        return _between(start, low, high, variant)
    first = (
        math.ceil(start / step) if low is not None or start != high else math.floor(start / step)
    )
    below = low is None and high is not None
    for offset in range(_MAX_CANDIDATES):
        nth = (variant + offset) % _MAX_CANDIDATES
        candidate = step * (first - nth if below else first + nth)
        if _allowed(schema, candidate) and _divides(step, candidate):
            return _json(candidate)
    raise NoNumber("no multiple within the bounds")


def _bounds(
    schema: Mapping[str, Any], *, whole: bool
) -> tuple[Fraction | None, Fraction | None, Fraction | None]:
    lows = [_exact(schema[k]) for k in ("minimum", "exclusiveMinimum") if k in schema]
    highs = [_exact(schema[k]) for k in ("maximum", "exclusiveMaximum") if k in schema]
    step = _exact(schema["multipleOf"]) if "multipleOf" in schema else None
    if step is not None and step <= 0:
        raise NoNumber("a multiple of nothing")
    if whole:
        # The multiples of a/b that are whole are the multiples of a, in lowest terms.
        step = Fraction(1) if step is None else Fraction(step.numerator)
    return max(lows, default=None), min(highs, default=None), step


def _exact(value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise NoNumber(f"{value!r} as a bound")
    return Fraction(str(value))


def _between(
    start: Fraction, low: Fraction | None, high: Fraction | None, variant: int
) -> int | float:
    end = high if high is not None else start + 2
    if low is None and high is not None:
        start = high - 2
    if start > end:
        raise NoNumber("no number between the bounds")
    if start == end:
        return float(start)
    return float(start + (end - start) * Fraction(1 + variant % 7, 8))


def _json(value: Fraction) -> int | float:
    """Whole numbers as such while everybody can read them."""
    return int(value) if value.denominator == 1 and abs(value) < 2**53 else float(value)


def _divides(step: Fraction, value: Fraction) -> bool:
    """Also for those who check with floats, where 0.3 is no multiple of 0.1."""
    return (float(value) / float(step)).is_integer()


def _allowed(schema: Mapping[str, Any], value: Fraction) -> bool:
    checks: dict[str, Callable[[Fraction, Fraction], bool]] = {
        "minimum": operator.ge,
        "maximum": operator.le,
        "exclusiveMinimum": operator.gt,
        "exclusiveMaximum": operator.lt,
    }
    return all(check(value, _exact(schema[k])) for k, check in checks.items() if k in schema)
