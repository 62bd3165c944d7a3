"""How an answer of the script is read, without a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import ToolError
from ohsandbox.tools.search.script import engine_of, run_job, use_engine
from tests.tools.search.replies import Answers, said

if TYPE_CHECKING:
    from ohsandbox.runtime.results import ExecResult


def test_records_are_told_from_complaints_and_kinds_from_each_other() -> None:
    reply = run_job(Answers(said("out", "@sgrep 1\0@i./.gitignore\0@sxargs 123\0")), "look", "/w", "")
    assert reply.statuses == {"grep": 1, "xargs": 123}
    assert reply.texts("i") == ["./.gitignore"]
    assert (reply.stdout, reply.stopped) == ("out", False)


@pytest.mark.parametrize("answer", [said(code=None), said(stderr="@sfind 143\0")])
def test_a_call_or_a_program_that_reached_its_limit_is_stopped(answer: ExecResult) -> None:
    assert run_job(Answers(answer), "look", "/w", "").stopped


@pytest.mark.parametrize(
    ("answer", "fact"),
    [
        (said(code=127), "lacks a program"),
        (said(stderr="@sstat 126\0"), "lacks a program"),
        (said(stderr="@sgrep 137\0"), "ran out of the sandbox's memory"),
        (said(stderr="grep: memory exhausted\n"), "ran out of the sandbox's memory"),
        (said(stderr="@sgrep 2\0grep: Unmatched ( or \\(\n"), "did not run: 'grep: Unmatched"),
    ],
)
def test_a_search_that_did_not_run_is_told_with_its_remedy(answer: ExecResult, fact: str) -> None:
    with pytest.raises(ToolError, match=fact) as caught:
        run_job(Answers(answer), "look", "/w", "")
    assert any(remedy in str(caught.value) for remedy in ("Install it", "`path`", "Escape"))


def test_a_complaint_of_a_stopped_search_is_no_error() -> None:
    assert run_job(Answers(said(stderr="grep: killed\n@sgrep 143\0")), "look", "/w", "").stopped


def test_programs_are_looked_for_once_and_again_after_one_was_missing() -> None:
    class Probed(Answers):
        probes = 0

        def run(self, argv: object, **_: object) -> ExecResult:
            if isinstance(argv, list) and "--files" in argv[2]:
                self.probes += 1
                return said("rg\nfind\n")
            return said(code=127)

    runtime = Probed()
    use_engine(runtime, None)
    assert [engine_of(runtime), engine_of(runtime)] == [(True, "find")] * 2
    assert runtime.probes == 1
    with pytest.raises(ToolError):
        run_job(runtime, "look", "/w", "")
    assert engine_of(runtime).has_rg
    assert runtime.probes == 2
