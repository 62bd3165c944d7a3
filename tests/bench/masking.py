"""Masking: lines of a log, a long text, a stream, and whether it matters how many secrets there are."""

from __future__ import annotations

import random
import resource
import statistics
from typing import TYPE_CHECKING

from ohsandbox.secrets import Masker
from tests.bench.rows import Row

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST_MB_S = 100
LINE_US = 10.0
CHUNK = 64 * 1024
MEGABYTES = 4
ROUNDS = 9


def masking_rows() -> list[Row]:
    """Medians of CPU time; a busy machine does not slow them."""
    text = "".join(f"INFO {at}: built module{at % 97}.py in {at % 13}.{at % 7} s\n" for at in range(100_000))
    text = text[: MEGABYTES * 1_000_000]
    lines = text.splitlines()[:20_000]
    rows = []
    for count in (3, 100):
        masker = Masker({f"SECRET_{number}": _token(number) for number in range(count)})

        def stream(masker: Masker = masker) -> None:
            stream = masker.stream()
            for at in range(0, len(text), CHUNK):
                stream.feed(text[at : at + CHUNK])
            stream.flush()

        rows += [
            _speed(f"mask with halves, {count} secrets", lambda masker=masker: masker.mask_cut(text), len(text)),  # type: ignore[misc]
            _speed(f"mask a stream, {count} secrets", stream, len(text)),
        ]
        took = _cpu_s(lambda masker=masker: [masker.mask_cut(line) for line in lines]) / len(lines) * 1e6  # type: ignore[misc]
        rows.append(
            Row(f"mask a log line, {count} secrets", f"{took:.2f} us", "", "", f"<= {LINE_US:g} us", took <= LINE_US)
        )
    return rows


def _token(number: int) -> str:
    return f"ghp_{random.Random(number).randbytes(18).hex()}"


def _speed(work: str, run: Callable[[], object], size: int) -> Row:
    speed = size / 1e6 / _cpu_s(run)
    return Row(work, f"{speed:.0f} MB/s", "", "", f">= {LEAST_MB_S} MB/s", speed >= LEAST_MB_S)


def _cpu_s(run: Callable[[], object]) -> float:
    """Median CPU seconds of a call, after one that warms up."""
    run()
    times = []
    for _ in range(ROUNDS):
        before = resource.getrusage(resource.RUSAGE_SELF)
        run()
        after = resource.getrusage(resource.RUSAGE_SELF)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(times)
