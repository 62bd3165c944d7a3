"""Progress of an evaluation on stderr: a live table at a terminal, else plain lines in the order of completion."""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, Self, TextIO

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ohsandbox.cli.rendering.tables import open_console
from ohsandbox.cli.rendering.text import progress_text, prose_line, safe_line
from ohsandbox.evaluation.progress import (
    ImageAbsent,
    PhaseBegan,
    RateLimited,
    RunBegan,
    TrialBegan,
    TrialCancelled,
    TrialEnded,
    TryFailed,
)
from ohsandbox.evaluation.reports.foreign_text import reason
from ohsandbox.evaluation.reports.numbers import percent, seconds
from ohsandbox.evaluation.results import COUNTED
from ohsandbox.runtime.results import PullProgress

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ohsandbox.evaluation.progress import RunEvent
    from ohsandbox.evaluation.results import Outcome, TrialKey, TrialResult

_MAX_WHY_CHARS = 160
MAX_TASK_CHARS = 60
IMAGE_LINES_S = 10.0
"""Shortest time between two plain lines about one image; a new status is printed at once."""
HEARTBEAT_S = 60.0
"""Longest time without a plain line: some CI systems end a job that prints nothing for 10 minutes."""
_REFRESHES_PER_S = 4
_BAR_COLUMNS = 40
_ECHO_COLUMNS = 4
"""Columns left free at the left, where the terminal echoes `^C`."""
_STYLES: dict[Outcome, str] = {"pass": "green", "fail": "red", "agent_error": "red"}


class _RunningTrial(NamedTuple):
    """The state of a running trial."""

    phase: str
    since: float
    """Start of the trial, not of its phase, as `time.monotonic`."""


class EvalProgress(ABC):
    """Receives the events of a run and shows them. At the end of the `with` block temporary output is removed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """Needed because the run's threads send events while another thread draws."""
        self._began = time.monotonic()
        self._trials = self._before = self._ended = 0
        self._outcomes = Counter[str]()
        self._running: dict[TrialKey, _RunningTrial] = {}
        self._images: dict[str, PullProgress] = {}

    @abstractmethod
    def __enter__(self) -> Self:
        """Start showing progress."""

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Stop showing progress."""

    def __call__(self, event: RunEvent) -> None:
        """Record an event and show it."""
        with self._lock:
            self._handle(event)
            self.show(event)

    @abstractmethod
    def show(self, event: RunEvent) -> None:
        """Show an event that has been recorded."""

    def _handle(self, event: RunEvent) -> None:
        match event:
            case RunBegan(trials, finished):
                counted = [result.outcome for result in finished.values() if not result.is_repeat]
                self._trials, self._before, self._began = trials, len(counted), time.monotonic()
                self._outcomes.update(counted)
            case TrialBegan(key):
                self._running[key] = _RunningTrial("waits", time.monotonic())
            case PhaseBegan(key, phase) if key in self._running:
                self._running[key] = self._running[key]._replace(phase=phase)
            case TryFailed(key, _) | TrialCancelled(key):
                self._running.pop(key, None)
            case TrialEnded(result):
                self._running.pop((result.task, result.attempt), None)  # type: ignore[call-overload] # equal to the key
                if not result.is_repeat:
                    self._ended += 1
                    self._outcomes[result.outcome] += 1
            case PullProgress(image, "done"):
                self._images.pop(image, None)
            case PullProgress(image):
                self._images[image] = event

    def _counts(self) -> str:
        """Return the counts: `12/30, 10 pass, 2 fail, pass rate 83.3 %, about 2 min 5 s left`."""
        counted = sum(self._outcomes[name] for name in COUNTED)
        counts = [f"{self._before + self._ended}/{self._trials}"]
        counts += [f"{count} {name}" for name, count in sorted(self._outcomes.items(), key=lambda pair: -pair[1])]
        if counted:
            counts.append(f"pass rate {percent(self._outcomes['pass'] / counted)}")
        remaining = self._trials - self._before - self._ended
        if self._ended and remaining > 0:
            counts.append(f"about {seconds(remaining * (time.monotonic() - self._began) / self._ended)} left")
        return ", ".join(counts)


def open_progress(*, no_tui: bool) -> EvalProgress:
    """Return a live table if stderr is a terminal, else plain lines."""
    console = open_console(stderr=True)
    if no_tui or not console.is_terminal or console.is_dumb_terminal:
        return PlainProgress()
    return LiveProgress(console)


class PlainProgress(EvalProgress):
    """Prints `12:00:01  12/30  pass  sum-files  1.9 s` for each trial that ends, and lines about image preparation."""

    def __init__(self, out: TextIO | None = None) -> None:
        super().__init__()
        self._out = out or sys.stderr
        self._wrote_at = time.monotonic()
        self._told: dict[str, tuple[str, float]] = {}
        """By image: the status and the time of its last line."""
        self._end = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop printing lines."""
        self._end.set()
        self._heart.join()

    def show(self, event: RunEvent) -> None:
        """Print the event's line, if it has one."""
        match event:
            case RunBegan(trials) if self._before:
                self._line(f"{self._before} of {trials} trials were finished before")
            case TrialEnded(result):
                number = "repeat" if result.is_repeat else f"{self._before + self._ended}/{self._trials}"
                self._line(f"{number}  {describe(result)}")
            case PullProgress() if self._is_news(event):
                self._line(f"image  {safe_line(progress_text(event))}")
            case _ if line := _problem_line(event):
                self._line(line)

    def _is_news(self, progress: PullProgress) -> bool:
        now = time.monotonic()
        status, at = self._told.get(progress.image, ("done", now))
        if status == progress.status and now - at < IMAGE_LINES_S:
            return False
        self._told[progress.image] = progress.status, now
        return status != progress.status or progress.status != "done"

    def _beat(self) -> None:
        while not self._end.wait(HEARTBEAT_S / 4):
            with self._lock:
                if time.monotonic() - self._wrote_at >= HEARTBEAT_S:
                    self._line(f"{len(self._running)} running; {self._counts()}")

    def _line(self, text: str) -> None:
        line = f"{datetime.now(UTC).astimezone():%H:%M:%S}  {text}".rstrip()
        encoding = self._out.encoding or "utf-8"
        self._out.write(line.encode(encoding, "replace").decode(encoding) + "\n")
        self._out.flush()
        self._wrote_at = time.monotonic()


class LiveProgress(EvalProgress):
    """A live table of running trials; a line for each trial that did not pass stays above it."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._live = Live(
            console=console, get_renderable=self.view, refresh_per_second=_REFRESHES_PER_S, transient=True
        )  # fmt: skip

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the table."""
        self._live.stop()

    def show(self, event: RunEvent) -> None:
        """Print the lines that stay above the table."""
        match event:
            case TrialEnded(result) if result.outcome != "pass":
                self._console.print(Text(describe(result), style=_STYLES.get(result.outcome, "yellow")))
            case _ if line := _problem_line(event):
                self._console.print(Text(line, style="yellow"))

    def view(self) -> RenderableType:
        """Return as much of the table of running trials as fits on the screen."""
        with self._lock:
            now = time.monotonic()
            room = max(1, self._console.height - 5 - len(self._images))
            table = Table(box=None, pad_edge=False, show_header=False, expand=False)
            for number, (key, trial) in enumerate(sorted(self._running.items(), key=lambda pair: pair[1].since)):
                if number == room:
                    table.add_row("", Text(f"and {len(self._running) - room} more", style="dim"))
                    break
                table.add_row(
                    Text(_task(key.task, key.attempt)), Text(safe_line(trial.phase), style="cyan"),
                    Text(seconds(now - trial.since), style="dim"),
                )  # fmt: skip
            images = [
                Text(safe_line(progress_text(image_progress)), style="dim") for image_progress in self._images.values()
            ]
            summary = Text(f"{self._counts()}, {seconds(now - self._began)}", no_wrap=True, overflow="ellipsis")
            width = max(1, min(_BAR_COLUMNS, self._console.width - _ECHO_COLUMNS))
            bar = ProgressBar(total=max(1, self._trials), completed=self._before + self._ended, width=width)
            return Group(*([table] if self._running else []), *images, summary, bar)


def describe(result: TrialResult) -> str:
    """Describe a trial on one line that is safe to print: `fail  sum-files  1.9 s  reward 0`."""
    reason_text = prose_line(reason(result), limit_chars=_MAX_WHY_CHARS)
    return f"{result.outcome}  {_task(result.task, result.attempt)}  {seconds(result.seconds)}  {reason_text}".rstrip()


def _problem_line(event: RunEvent) -> str:
    """Return the line for an event that delays the run or may fail it; empty for any other."""
    match event:
        case TryFailed(key, fault):
            cause = "" if fault is None else prose_line(f"{fault.kind}: {fault.message}", limit_chars=_MAX_WHY_CHARS)
            return f"retry  {_task(key.task, key.attempt)}  {cause}".rstrip()
        case ImageAbsent(image, cause):
            why = prose_line(cause, limit_chars=_MAX_WHY_CHARS)
            return f"image {safe_line(image)} is not here and cannot be pulled: {why}"
        case RateLimited(model, wait_s):
            return f"{safe_line(model)} limits the rate of requests: all trials wait {wait_s:.0f} s"
    return ""


def _task(task: str, attempt: int) -> str:
    return safe_line(task, limit_chars=MAX_TASK_CHARS) + (f" #{attempt}" if attempt > 1 else "")
