from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.evaluation.reports import read_results
from ohsandbox.evaluation.reports.markdown import MAX_BYTES, markdown_report
from tests.evaluation.results import HOSTILE_NAMES, trial, write_run

if TYPE_CHECKING:
    from pathlib import Path

CODE_SPAN = re.compile(r"`[^`\n]+`")


def test_the_page_says_rate_interval_outcomes_and_what_did_not_pass(tmp_path: Path) -> None:
    page = markdown_report(read_results([write_run(tmp_path, [trial("a"), trial("b", "agent_error")])]).report)
    assert "Pass rate 50.0 %, 95% interval 9.5 % to 90.5 % (Wilson), over 2 tasks and 2 trials." in page
    assert "| outcomes | 1 pass, 1 agent_error |" in page
    assert "| `b` | 1 | agent_error | 2.0 s | `agent: Timeout: it took too long` |" in page
    assert "`a`" not in page


def test_a_partial_run_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path, [trial("a")], tasks={"a": "sha256:1", "b": "sha256:1"})
    assert "**Partial: 1 of 2 trials are finished.**" in markdown_report(read_results([run]).report)


def test_hostile_names_stay_in_their_code_spans_and_cells(tmp_path: Path) -> None:
    page = markdown_report(read_results([write_run(tmp_path, [trial(name, "fail") for name in HOSTILE_NAMES])]).report)
    rows = [line for line in page.splitlines() if line.endswith("`reward 0` |")]
    assert len(rows) == len(HOSTILE_NAMES)
    for row in rows:
        assert row.count("|") == 6
        assert not re.search(r"[<>*\[\]@!`]", CODE_SPAN.sub("", row))
    assert page.isprintable() or not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page)


def test_the_page_fits_into_a_job_summary(tmp_path: Path) -> None:
    digests = {f"task-{number:05}": "sha256:1" for number in range(6000)}
    source = read_results([write_run(tmp_path, [trial("task-00000", "agent_error")], tasks=digests)])
    long = trial("x" * 190, "agent_error").model_copy(update={"task": "\N{SNOWMAN}" * 190})
    report = source.report.model_copy(update={"trials": [long] * 6000})
    page = markdown_report(report)
    assert MAX_BYTES - 1000 < len(page.encode()) <= MAX_BYTES
    assert re.search(r"\n\d{4} more are in the other reports\.\n$", page)
