"""How the output of grep and rg becomes lines, without a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.tools.search import lines
from ohsandbox.tools.search.lines import FileLines, read_matches
from ohsandbox.tools.search.regexes import Regex
from tests.tools.search.replies import Answers, hit, near, said

if TYPE_CHECKING:
    import pytest

REGEX = Regex("x")


def test_lines_context_and_gaps_are_told_apart() -> None:
    output = "/a-1-before\n/a:2:x\n--\n/a:7:x:8:y\n/b:1:\n"
    matches = read_matches(Answers(said(output)), ["/a", "/b"], REGEX, context=1)
    assert matches.files == [
        FileLines("/a", 2, (near(1, "before"), hit(2, "x"), hit(7, "x:8:y"))),
        FileLines("/b", 1, (hit(1, ""),)),
    ]


def test_a_name_that_looks_like_a_line_s_beginning_is_searched_alone() -> None:
    runtime = Answers(said("/b:1:x\n"), said("/a:3:c:1:x\n"))
    matches = read_matches(runtime, ["/a:3:c", "/b"], REGEX)
    assert [file.path for file in matches.files] == ["/a:3:c", "/b"]
    assert [words[-1] for words in runtime.arguments] == ["/b", "/a:3:c"]


def test_a_file_without_a_match_is_left_out() -> None:
    assert [file.path for file in read_matches(Answers(said("/b:1:x\n")), ["/a", "/b"], REGEX).files] == ["/b"]


def test_only_counts_asks_for_no_line() -> None:
    runtime = Answers(said("/a:0\n/b:12\n"))
    assert read_matches(runtime, ["/a", "/b"], REGEX, only_counts=True).files == [FileLines("/b", 12, ())]
    assert runtime.arguments[0][4] == "0"


def test_what_is_cut_off_is_counted_by_a_second_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINES_BYTES", 19)
    matches = read_matches(Answers(said("/a:1:x\n/a:2:x\n/a:3:"), said("/a:900\n")), ["/a"], REGEX)
    assert matches.files == [FileLines("/a", 900, (hit(1, "x"), hit(2, "x")))]


def test_a_file_that_may_not_be_read_and_a_stop_are_told() -> None:
    matches = read_matches(Answers(*[said("/a:1\n", "@sgrep 2\0")] * 2), ["/a", "/b"], REGEX)
    assert (matches.unreadable, matches.stopped) == (True, False)
    assert read_matches(Answers(said("", "@sgrep 143\0")), ["/a"], REGEX).stopped
