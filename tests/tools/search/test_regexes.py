"""Regular expressions for `grep -E`, without a sandbox."""

from __future__ import annotations

import subprocess

import pytest

from ohsandbox.errors import ToolError
from ohsandbox.tools.search.regexes import Regex


@pytest.mark.parametrize(
    ("pattern", "posix"),
    [
        (r"\d+\.\d{2,3}", r"[0-9]+\.[0-9]{2,3}"), (r"\D\W\S", r"[^0-9][^[:alnum:]_][^[:space:]]"),
        (r"[\d.]+", "[0-9.]+"), (r"(?:a|b)*?c+?", "(a|b)*c+"), (r"a{2,3}?", "a{2,3}"), (r"[^\]a]", "[^]a]"),
        (r"[\]\-]", "[]-]"), (r"[]a]", "[]a]"), (r"[\^]", r"\^"), (r"[\^\-]", "[-^]"), (r"[a\^]", "[a^]"),
        (r"[[:alpha:]\w]", "[[:alpha:][:alnum:]_]"), (r"\bx\B", r"\bx\B"), (r"a\tb[\t]", "a\tb[\t]"),
        (r"f\(\) \{$", r"f\(\) \{$"), ("\u00e9|x", "\u00e9|x"), ("[a", "[a"),
    ],
)  # fmt: skip
def test_grep_is_given_what_posix_defines(pattern: str, posix: str) -> None:
    assert Regex(pattern).words("posix") == ("-sE", posix)
    assert Regex(pattern).words("rg") == ("-s", pattern)


def test_case_is_ignored_by_option_or_by_flag() -> None:
    assert Regex("a", ignore_case=True).words("rg") == ("-i", "a")
    assert Regex("(?i)a").words("posix") == ("-sEi", "a")
    assert Regex("a", ignore_case=True).words("posix") == ("-sEi", "a")


@pytest.mark.parametrize("pattern", ["a(?=b)", "(?<!a)b", r"\pL", r"\x41", r"[\x41]", "a\nb"])
def test_what_grep_would_misread_is_refused_in_one_line(pattern: str) -> None:
    with pytest.raises(ToolError) as told:
        Regex(pattern).words("posix")
    assert str(told.value).startswith(f"Invalid pattern {pattern!r}: ")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [(r"\d", ["a1"]), (r"[\w-]+=", ["x-y="]), (r"[\]]", ["]"]), (r"^[\^]", ["^"]), (r"(?:a|x).??1", ["a1"])],
)
def test_grep_finds_what_the_pattern_says(pattern: str, lines: list[str]) -> None:
    options, posix = Regex(pattern).words("posix")
    text = "a1\nd\nx-y=\n]\n^\n"
    found = subprocess.run(["grep", options, "-e", posix], input=text, capture_output=True, text=True, check=False)
    assert found.stdout.splitlines() == lines
