"""Makes names, messages and output of trials fit for a report: no markup, no control or invisible characters."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError
from ohsandbox.evaluation.verifier import OUTPUT_NAME
from ohsandbox.private_files import open_regular
from ohsandbox.review_text import on_one_line, visible
from ohsandbox.runtime.shell.terminal import sanitize_for_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.evaluation.reports.report import Report
    from ohsandbox.evaluation.results import TrialResult

TAIL_BYTES = 4096
"""Bytes shown of the end of a verifier's output: about fifty lines, where failures stand."""
_MAX_TAILS_BYTES = 8 * 1024**2
"""Size of all output tails of a report: GitLab reads JUnit files of up to 30 MB, and a browser has to hold the page."""
MAX_NAME_CHARS = 200
MAX_MESSAGE_CHARS = 2000

_ILLEGAL = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0, fifth edition, does not allow in section 2.2, and control characters of C1."""


def name(text: str) -> str:
    """Return a name on one line, with invisible characters spelt out."""
    return _cut(on_one_line(visible(text)), MAX_NAME_CHARS)


def message_line(text: str) -> str:
    """Return prose on one line."""
    return _cut(" ".join(visible(text).split()), MAX_MESSAGE_CHARS)


def terminal_text(text: str) -> str:
    """Return a program's output as its terminal would show it; all of its characters are legal in XML 1.0."""
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", sanitize_for_terminal(text))


def reason(result: TrialResult) -> str:
    """Return why a trial has its outcome, on one line; "" for a pass without a fault."""
    if (fault := result.fault) is not None:
        return f"{fault.phase}: {fault.kind}: {fault.message}"
    if result.outcome == "pass":
        return ""
    return result.outcome if result.reward is None else f"reward {result.reward:g}"


def tail_limit(report: Report) -> int:
    """Return how many bytes of each trial's output a report can hold."""
    others = report.trials_finished - report.outcomes.get("pass", 0)
    return min(TAIL_BYTES, _MAX_TAILS_BYTES // max(1, others))


def output_tail(directory: Path | None, *, of_agent: bool = False, limit_bytes: int = TAIL_BYTES) -> str:
    """The end of what the verifiers of a trial printed, one after the other, as `terminal_text` shows it; or "".

    Args:
        directory: of the trial; None where it is not here.
        of_agent: also what the agent's programs printed, before that.
        limit_bytes: of each file.
    """
    if directory is None:
        return ""
    parts = []
    for step_directory in (directory, *sorted(directory.glob("steps/*"))):
        step = "" if step_directory == directory else f"step {name(step_directory.name)}, "
        logs = sorted(step_directory.glob("agent/*.txt")) if of_agent else []
        parts += [(f"{step}agent, {path.name}", _tail(path, limit_bytes)) for path in logs]
        parts.append((f"{step}verifier", _tail(step_directory / "verifier" / OUTPUT_NAME, limit_bytes)))
    outputs = [(title, tail) for title, tail in parts if tail]
    if [title for title, _ in outputs] == ["verifier"]:
        return outputs[0][1]
    return "\n".join(f"--- {title} ---\n{tail}" for title, tail in outputs)


def _tail(path: Path, limit_bytes: int) -> str:
    try:
        file = os.fdopen(open_regular(path, os.O_RDONLY, name="Output"), "rb")
    except UsageError:
        return ""
    with file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - limit_bytes))
        data = file.read(limit_bytes)
    left_out = f"[... {size - len(data)} bytes before this ...]\n" if size > len(data) else ""
    return left_out + terminal_text(data.decode(errors="replace"))


def _cut(line: str, limit_chars: int) -> str:
    return line if len(line) <= limit_chars else f"{line[: limit_chars - 1]}…"
