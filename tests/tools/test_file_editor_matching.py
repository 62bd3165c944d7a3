"""Where `str_replace` finds no place, or several."""

from __future__ import annotations

import random

import pytest

from ohsandbox.errors import ToolError
from ohsandbox.runtime.files.text import decode
from ohsandbox.tools.file_editor.matching import match_once


def refusal(text: str, old: str) -> str:
    with pytest.raises(ToolError) as caught:
        match_once(decode(text.encode()), old, "new")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "old", "said"),
    [
        ("a\nb\r\na\nxa\n", "a", "3 times, on lines 1, 3, 4;"),
        ("a\n" * 50, "a", "50 times, on lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...;"),
        ("aaa\n", "aa", "2 times, on line 1;"),
        ("a\r\nb\r\nx\na\nb\n", "a\nb", "2 times, on lines 1, 4;"),
        ("ab" * 1_000_000, "ab", "1000000 times, on lines 1, ...;"),
    ],
)
def test_text_that_is_there_more_than_once_is_counted_with_its_lines(text: str, old: str, said: str) -> None:
    assert said in refusal(text, old)  # F32


@pytest.mark.parametrize(
    ("text", "old", "hint"),
    [
        ("if x:\n\tgo()\n", "if x:\n    go()", "the file has tabs"),
        ("if x:\n    go()\n", "if x:\n  go()", "indentation"),
        ("go()\n", "  go()", "indentation"),
        ("if x:\n\tgo()\n", "    go()", "the file has tabs"),
        ("a  \nb\n", "a\nb", "blanks at the end of a line"),
        ("a = 1\n", "a  = 1", "blanks or line breaks"),
        ("a\n\n\nb\n", "a\n\nb", "line breaks"),
        ("a\nb\n", "a\r\nb", "old_str has CRLF"),
        ("say “hi”\n", 'say "hi"', "U+201C LEFT DOUBLE QUOTATION MARK"),
        ("a\u00a0b\n", "a b", "line 1"),
        ("cafe\u0301\n", "café", "looks the same"),
        ("раss\n", "pass", "CYRILLIC SMALL LETTER ER"),  # noqa: RUF001
        ("a\u200bb\n", "ab", "ZERO WIDTH SPACE"),
        ("Hello\n", "hello", "letter case"),
        ("one\ntwo\n", "     1\tone\n     2\ttwo", "line numbers"),
        ('say("a")\ndo(b)\n', 'say(\\"a\\")\\ndo(b)', "escape sequences"),
        ("x\ndef f():\n    return 1\n", "def f():\n    return 2", "line 3 is 'return 1'"),
        ("alpha beta gamma\n", "alpha beta gammo", "Line 1 comes closest"),
        ("a\n", "entirely different", "Nothing in the file comes close"),
        ("last", "last\n", "It has exactly: 'last'"),
        ("", "x", "0 lines"),
    ],
)
def test_near_miss_says_what_differs(text: str, old: str, hint: str) -> None:
    said = refusal(text, old)
    assert hint in said
    assert "nothing was changed" in said
    assert len(said) < 1_000


def test_file_too_large_for_hints_says_how_to_search() -> None:
    assert "grep -n" in refusal("line\n" * 500_000, "other")


@pytest.mark.parametrize("seed", range(20))
def test_replacement_in_mixed_line_ends_changes_the_named_lines_only(seed: int) -> None:
    chance = random.Random(seed)
    lines = [f"line {number}{chance.choice([chr(10), chr(13) + chr(10)])}" for number in range(30)]
    first, last = sorted(chance.sample(range(30), 2))
    changed = chance.randint(first, last)
    document = decode("".join(lines).encode())
    old = "".join(lines[first : last + 1]).replace("\r\n", "\n")
    start, end, new = match_once(document, old, old.replace(f"line {changed}\n", "other\n"))
    lines[changed] = lines[changed].replace(f"line {changed}", "other")
    assert document.text[:start] + new + document.text[end:] == "".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("0 " * 900_000, "0 " * 5_000 + "1"),
        ("0\r\n" * 600_000, "0\n" * 5_000 + "1"),
        ("a\u0301\u0323" * 1_000 + "\u0301\u0323" * 800_000, "b"),
        ("x" * 99 + "y\n" + ("x" * 100 + "\n") * 15_000, "xy" * 50),
        ("line\n" * 300_000, "line\n" * 20_000 + "x"),
    ],
)
def test_hostile_text_is_searched_to_its_end(text: str, old: str) -> None:
    assert "nothing was changed" in refusal(text, old)  # the suite's timeout is the test: a pattern takes minutes
