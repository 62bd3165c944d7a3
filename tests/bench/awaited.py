"""What awaiting a call costs over calling it."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING

from tests.bench.rows import Row, ms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ohsandbox.runtime import Runtime

ROUNDS = 600


async def _both(blocking: Callable[[], object], awaited: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Medians in seconds, call by call in turn: what else this machine does meets both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        began = time.perf_counter()
        blocking()
        between = time.perf_counter()
        await awaited()
        times[0].append(between - began)
        times[1].append(time.perf_counter() - between)
    return statistics.median(times[0]), statistics.median(times[1])


def awaited_rows(runtime: Runtime) -> list[Row]:
    """The awaited form of two calls against the blocking one."""
    measured = {
        'aexecute("true") / execute': (lambda: runtime.execute("true"), lambda: runtime.aexecute("true")),
        'arun(["true"]) / run': (lambda: runtime.run(["true"]), lambda: runtime.arun(["true"])),
    }
    rows = []
    for work, (blocking, awaited) in measured.items():
        plain, ours = asyncio.run(_both(blocking, awaited))
        rows.append(Row(work, ms(ours), ms(plain), f"{ours / plain:.2f}x", "<= 1.1x", ours <= 1.1 * plain))
    return rows
