"""Formats numbers for reports; None becomes a dash."""

from __future__ import annotations

NOTHING = "\N{EN DASH}"
_MINUTE, _HOUR = 60, 3600
_SHORT_S = 10
_CENT = 0.01
_LEAST = 0.0001


def percent(part: float | None, *, signed: bool = False) -> str:
    """Format a part of 1 with one decimal, as 12.5 %; 100 % and 0 % stand for all and nothing only.

    Signed: as percentage points.
    """
    if part is None:
        return NOTHING
    if signed:
        return f"{part * 100:+.1f} points"
    value = f"{part * 100:.1f}"
    return f"{value.removesuffix('.0') if part in {0.0, 1.0} else value} %"


def seconds(duration_s: float | None, *, signed: bool = False) -> str:
    """Format a duration: 1.2 s, 48 s, 3 min 20 s, 2 h 5 min."""
    if duration_s is None:
        return NOTHING
    sign = "-" if duration_s < 0 else "+" if signed else ""
    length = abs(duration_s)
    if round(length, 1) < _SHORT_S:
        return f"{sign}{length:.1f} s"
    rounded = round(length)
    if rounded < _MINUTE:
        return f"{sign}{rounded} s"
    if rounded < _HOUR:
        return f"{sign}{rounded // _MINUTE} min {rounded % _MINUTE} s"
    return f"{sign}{rounded // _HOUR} h {rounded % _HOUR // _MINUTE} min"


def dollars(cost_usd: float | None, *, signed: bool = False) -> str:
    """Format an amount: $1.25, and four decimals below a cent."""
    if cost_usd is None:
        return NOTHING
    sign = "-" if cost_usd < 0 else "+" if signed else ""
    return f"{sign}${abs(cost_usd):.{4 if 0 < abs(cost_usd) < _CENT else 2}f}"


def probability(value: float) -> str:
    """Format a p-value: `p = 0.0312`, or `p < 0.0001`."""
    return f"p < {_LEAST}" if value < _LEAST else f"p = {value:.4f}"
