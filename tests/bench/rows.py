"""What the rows of the table are made of."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

BIG = 100 * 1024 * 1024


class Row(NamedTuple):
    """One comparison. met is None where the figure stands for itself."""

    work: str
    ours: str
    other: str
    ratio: str
    target: str
    met: bool | None


def median_s(work: Callable[[], object], *, rounds: int) -> float:
    """Median wall time of rounds calls, after one that warms up."""
    work()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def faster(work: str, ours_s: float, other_s: float, *, times: float) -> Row:
    """A row where ours shall take at most 1/times of the other's time."""
    ratio = other_s / ours_s
    return Row(work, ms(ours_s), ms(other_s), f"1/{ratio:.1f}", f"<= 1/{times:g}", ratio >= times)


def share(work: str, ours_s: float, raw_s: float, *, least: float) -> Row:
    """A row of throughput, as a share of the raw stream's."""
    mb = BIG / 1e6
    ratio = raw_s / ours_s
    return Row(
        work, f"{mb / ours_s:.0f} MB/s", f"{mb / raw_s:.0f} MB/s", f"{ratio:.2f}x", f">= {least}x", ratio >= least
    )


def ms(seconds: float) -> str:
    """Milliseconds as the table shows them."""
    return f"{seconds * 1000:.2f} ms"
