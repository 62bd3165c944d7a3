"""The log of a long conversation: appending stays as cheap as at its beginning, and it is loaded as a stream."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from ohsandbox import events
from ohsandbox.conversation.storage import read_stored
from ohsandbox.persistence import EventLog
from tests.bench.rows import Row

EVENTS = 100_000
BATCH = 1_000
LOAD_TARGET_S = 5.0
LOAD_TARGET_MB = 300

_LOAD = """
import sys, time
from pathlib import Path
from ohsandbox.agent import History
from ohsandbox.persistence import EventLog
def peak_mb(): return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
before, history, began = peak_mb(), History(), time.perf_counter()
EventLog(sys.argv[1], conversation_id="c", take=history.add).close()
history.messages()
print(time.perf_counter() - began, peak_mb() - before)
"""


def log_rows() -> list[Row]:
    """100,000 events written, loaded into a history in a process of its own, and looked at as a list does."""
    directory = Path(tempfile.mkdtemp(prefix="ohsandbox-bench-"))
    try:
        first, last = _append(directory / "c")
        done = subprocess.run(
            [sys.executable, "-c", _LOAD, str(directory / "c")], check=True, capture_output=True, text=True
        )
        load_s, more_mb = map(float, done.stdout.split())
        look_s = [_seconds_of_a_look(directory / "c") for _ in range(5)]
    finally:
        shutil.rmtree(directory)
    ratio = last / first
    loaded = load_s < LOAD_TARGET_S and more_mb < LOAD_TARGET_MB
    return [
        Row(
            f"append at {EVENTS:,} events / to a new log", f"{last * 1000:.3f} ms", f"{first * 1000:.3f} ms",
            f"{ratio:.2f}x", "<= 1.25x", ratio <= 1.25,
        ),
        Row(
            f"load {EVENTS:,} events", f"{load_s:.2f} s", f"{more_mb:.0f} MB more", "",
            f"< {LOAD_TARGET_S:g} s, < {LOAD_TARGET_MB} MB", loaded,
        ),
        Row("  its row in `conversations`", f"{statistics.median(look_s[1:]) * 1000:.2f} ms",
            f"{look_s[0]:.2f} s without metadata", "", "", None),
    ]  # fmt: skip


def _append(directory: Path) -> tuple[float, float]:
    """Median seconds of an append to a log that is new, and to one of EVENTS events, in turn: the disk is shared."""
    with EventLog(directory, conversation_id="c") as long, EventLog(directory / "new", conversation_id="n") as new:
        with patch("ohsandbox.persistence.log.sync_data"):  # what is not timed need not be durable: half a minute less
            for number in range(EVENTS - BATCH):
                long.append(_event(number))
        os.sync()
        times = [
            (_seconds_of_an_append(new, number), _seconds_of_an_append(long, number))
            for number in range(EVENTS - BATCH, EVENTS)
        ]
    first, last = zip(*times, strict=True)
    return statistics.median(first), statistics.median(last)


def _event(number: int) -> events.EventBody:
    call_id, response = f"call-{number // 2}", f"response-{number // 2}"
    if number % 2 == 0:
        return events.tool_call(
            tool_call_id=call_id, name="execute_bash", arguments='{"command": "ls -la /workspace/src"}',
            response_id=response, call_index=0, total_calls=1, thought="Let me look at it. " * 5,
        )  # fmt: skip
    result = events.ToolResult.ok("x" * 800)
    return events.tool_result(tool_call_id=call_id, name="execute_bash", result=result, details={"exit_code": 0})


def _seconds_of_an_append(log: EventLog, number: int) -> float:
    body = _event(number)
    began = time.perf_counter()
    log.append(body)
    return time.perf_counter() - began


def _seconds_of_a_look(directory: Path) -> float:
    began = time.perf_counter()
    read_stored(directory)
    return time.perf_counter() - began
