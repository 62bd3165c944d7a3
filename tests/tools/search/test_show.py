"""How names, lines and numbers are shown to the model."""

from __future__ import annotations

import subprocess

import pytest

from ohsandbox.content import OutputLimits
from ohsandbox.text import counted
from ohsandbox.tools.search.lines import MAX_LINE_CHARS, FileLines
from ohsandbox.tools.search.show import fitting, left_out, shown_file, shown_path, warnings
from ohsandbox.tools.search.walk import Listing
from tests.tools.search.replies import hit, near


@pytest.mark.parametrize("path", ["/a b", "/a\nb'\\", "/\udcff\t", "/\u2028"])
def test_a_shown_name_is_plain_or_a_word_that_bash_reads_as_it(path: str) -> None:
    shown = shown_path(path)
    if shown == path:
        assert path == "/a b"
    else:
        read = subprocess.run(["bash", "-c", f"printf %s {shown}"], capture_output=True, check=True)
        assert read.stdout == path.encode("utf-8", "surrogateescape")


def test_numbers_have_commas_and_nouns_their_plural() -> None:
    assert (counted(1, "file"), counted(2000, "file"), counted(0, "file")) == ("1 file", "2,000 files", "0 files")


def test_gaps_are_marked_only_beside_context() -> None:
    lines = (hit(1, "a"), hit(5, "b"))
    assert shown_file(FileLines("/f", 2, lines)) == ["/f", "1: a", "5: b"]
    assert shown_file(FileLines("/f", 2, (*lines, near(6, "c")))) == ["/f", "1: a", "--", "5: b", "6- c"]


def test_binary_data_is_counted_and_not_shown() -> None:
    file = FileLines("/f", 3, (hit(1, "a\x01b"),))
    assert shown_file(file) == ["/f: binary file, 3 matching lines not shown"]
    assert shown_file(file, only_count=True) == ["/f: 3"]


def test_a_line_is_cut_and_has_no_escape() -> None:
    [_, line] = shown_file(FileLines("/f", 1, (hit(1, "\x1b[1m" + "x" * 600),)))
    assert line.startswith("1: \\x1b[1mxxx")
    assert len(line) < MAX_LINE_CHARS + 30
    assert line.endswith(" [... line cut]")


def test_whole_lines_fit_in_the_limit() -> None:
    lines = ["x" * 399] * 4
    assert fitting(lines, OutputLimits(max_chars=1000)) == lines[:2]
    assert fitting(lines, OutputLimits(max_chars=1600)) == lines


def test_what_was_not_looked_at_and_why_an_answer_is_incomplete_is_told() -> None:
    assert left_out(hidden=True, ignored=True) == ""
    assert "`hidden`: true" in left_out(hidden=False, ignored=True)
    assert warnings(Listing([]), 30) == []
    told = warnings(Listing([], stopped=True, unreadable=True), 30)
    assert "Stopped after 30 s" in told[0]
    assert "may not be read" in told[1]
