"""What a person and a log see of a run; `tests/evaluation/results.py` makes the trials."""

import io
import re

import pytest
from rich.console import Console

from ohsandbox.cli.rendering import eval_progress
from ohsandbox.cli.rendering.eval_progress import EvalProgress, LiveProgress, PlainProgress, open_progress
from ohsandbox.evaluation.progress import (
    ImageAbsent,
    PhaseBegan,
    RateLimited,
    RunBegan,
    TrialBegan,
    TrialEnded,
    TryFailed,
)
from ohsandbox.evaluation.results import Fault, TrialKey
from ohsandbox.runtime.results import PullProgress
from tests.evaluation.results import HOSTILE_NAMES, trial


def _lines(out: io.StringIO) -> list[str]:
    """Without the time of day."""
    lines = out.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d  \S", line) for line in lines)
    return [line[10:] for line in lines]


def _run(progress: EvalProgress, *names: str) -> None:
    with progress:
        progress(RunBegan(len(names), {}))
        for name in names:
            progress(TrialBegan(TrialKey(name, 1), 1))
            progress(PhaseBegan(TrialKey(name, 1), "agent"))
            progress(TrialEnded(trial(name, "agent_error")))


def test_without_a_terminal_each_trial_is_a_line_when_it_ends() -> None:
    out = io.StringIO()
    with PlainProgress(out) as progress:
        progress(RunBegan(3, {TrialKey("a", 1): trial("a")}))
        progress(ImageAbsent("no\x1bbody/x:1", "manifest\nunknown"))
        progress(TrialBegan(TrialKey("b", 1), 1))
        progress(TryFailed(TrialKey("b", 1), Fault(phase="image", kind="ImageUnavailable", message="not found")))
        progress(TrialBegan(TrialKey("b", 1), 2))
        progress(TrialEnded(trial("b", "fail")))
        progress(RateLimited("openai/gpt", 20.0))
        progress(TrialEnded(trial("c")))
    assert _lines(out) == [
        "1 of 3 trials were finished before",
        "image no\\u{1b}body/x:1 is not here and cannot be pulled: manifest unknown",
        "retry  b  ImageUnavailable: not found",
        "2/3  fail  b  2.0 s  reward 0",
        "openai/gpt limits the rate of requests: all trials wait 20 s",
        "3/3  pass  c  2.0 s",
    ]


def test_repeats_are_not_counted_among_the_trials() -> None:
    out = io.StringIO()
    with PlainProgress(out) as progress:
        progress(RunBegan(2, {TrialKey("a", 1): trial("a"), TrialKey("a", 2): trial("a", attempt=2, is_repeat=True)}))
        progress(TrialEnded(trial("b", "fail")))
        progress(TrialEnded(trial("b", attempt=2, is_repeat=True)))
    assert _lines(out) == [
        "1 of 2 trials were finished before", "2/2  fail  b  2.0 s  reward 0", "repeat  pass  b #2  2.0 s"
    ]  # fmt: skip


def test_an_image_is_told_when_its_status_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    with PlainProgress(out) as progress:
        for done in range(5):
            progress(PullProgress("python:3.12", "pulling", done * 1_000_000, 9_000_000, done, 7))
        monkeypatch.setattr(eval_progress, "IMAGE_LINES_S", 0.0)
        progress(PullProgress("python:3.12", "pulling", 8_000_000, 9_000_000, 6, 7))
        progress(PullProgress("python:3.12", "done"))
        progress(PullProgress("here-already", "done"))
    assert _lines(out) == [
        "image  python:3.12: pulling 0 B of 9 MB, 0 of 7 layers",
        "image  python:3.12: pulling 8 MB of 9 MB, 6 of 7 layers",
        "image  python:3.12: done",
    ]


def test_a_log_that_gets_no_line_for_long_gets_one_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_progress, "HEARTBEAT_S", 0.01)
    out = io.StringIO()
    with PlainProgress(out) as progress:
        progress(RunBegan(2, {}))
        progress(TrialBegan(TrialKey("a", 1), 1))
        while "1 running; 0/2" not in out.getvalue():
            pass
    assert not progress._heart.is_alive()


def test_hostile_names_are_one_line_each_without_controls() -> None:
    out = io.StringIO()
    _run(PlainProgress(out), *HOSTILE_NAMES)
    assert len(_lines(out)) == len(HOSTILE_NAMES)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out.getvalue())


def test_hostile_names_bring_no_escape_to_the_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=20, highlight=False, markup=False, emoji=False)
    _run(LiveProgress(console), *HOSTILE_NAMES)
    rest = re.sub(r"\x1b\[(?:[0-9;]*m|\?25[lh]|\d*[AK]|2K)", "", out.getvalue())  # colours, cursor, lines of the table
    assert not re.search("[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", rest)
    assert "agent_error" in rest


def test_the_table_shows_what_runs_and_fits_on_the_screen() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=12)
    progress = LiveProgress(console)
    progress(RunBegan(50, {}))
    for number in range(30):
        progress(TrialBegan(TrialKey(f"task-{number}", 2), 1))
        progress(PhaseBegan(TrialKey(f"task-{number}", 2), "verifier"))
    progress(TrialEnded(trial("task-0", attempt=2)))
    progress(PullProgress("python:3.12", "pulling", 1, 2))
    with console.capture() as captured:
        console.print(progress.view())
    shown = captured.get()
    assert len(shown.splitlines()) <= 12
    assert re.search(r"task-1 #2 +\S*verifier", shown)
    assert "task-0 " not in shown
    assert "and 23 more" in shown
    assert "python:3.12: pulling" in shown
    assert "1/50, 1 pass, pass rate 100 %" in shown


def test_lines_are_chosen_where_stderr_is_no_terminal() -> None:
    assert isinstance(open_progress(no_tui=False), PlainProgress)
