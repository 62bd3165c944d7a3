"""Results as a run leaves them, made without an engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ohsandbox.evaluation.results import (
    RUN_NAME,
    Fault,
    Outcome,
    Phase,
    ResultsDirectory,
    RunRecord,
    TrialKey,
    TrialResult,
)

if TYPE_CHECKING:
    from pathlib import Path

BEGAN = datetime(2026, 11, 22, 20, 0, 0, tzinfo=UTC)
HOSTILE_NAMES = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a\u202egnp.exe",
    "\x1b[31mred\x07\x00",
    "` | x | y |",
    "[link](javascript:alert(1)) **bold** @everyone",
    "::error::annotation",
    "]]>&<!--",
)
HOSTILE_OUTPUT = (
    b"\x1b[31mE assert\x1b[0m </script><script>alert(1)</script> ]]> "
    b"\x00\xff\xc2\x9b31m \xe2\x80\xae \xef\xbf\xbf end\n"
)


def trial(task: str, outcome: Outcome = "pass", attempt: int = 1, **fields: Any) -> TrialResult:
    """A trial that took 2 s, with a fault where its outcome has one."""
    fault = None if outcome in {"pass", "fail"} else Fault(phase="agent", kind="Timeout", message="it took too long")
    given = {
        "reward": float(outcome == "pass"), "fault": fault, "agent": "oracle", "task_digest": "sha256:1",
        "image": "python:3.12", "image_digest": "sha256:abc", "started_at": BEGAN + timedelta(seconds=attempt),
        "seconds": 2.0, "phases": [Phase(name="agent", started_at=BEGAN, seconds=1.5)],
    }  # fmt: skip
    return TrialResult(task=task, outcome=outcome, attempt=attempt, **given | fields)


def write_run(
    directory: Path,
    trials: list[TrialResult],
    *,
    attempts: int = 1,
    tasks: dict[str, str] | None = None,
    output: bytes = b"",
    **fields: Any,
) -> Path:
    """A results directory of these trials; tasks that have none are not finished."""
    results = ResultsDirectory(directory)
    digests = tasks or {one.task: "sha256:1" for one in trials}
    record = RunRecord(run_id="run1", agent="oracle", attempts=attempts, tasks=digests, **fields)
    results.write_json(RUN_NAME, record.model_dump_json())
    for one in trials:
        place = results.begin(TrialKey(one.task, one.attempt)) / "verifier"
        place.mkdir()
        if output:
            (place / "test-stdout.txt").write_bytes(output)
        results.finish(one)
    return directory
