"""TOML that nobody trusts: its numbers, its depth and the cost of its keys are bounded."""

from __future__ import annotations

import pytest

from ohsandbox.strict_toml import InvalidToml, parse_toml


@pytest.mark.parametrize(
    ("text", "line", "fact"),
    [
        ("a = 1" + "0" * 5000, 1, "an integer has more than 64 bits"),
        ("\n\na = [1, -1" + "_0" * 5000 + "]", 3, "an integer has more than 64 bits"),
        ("[a]\nb = [0x1" + "0" * 16 + "]", None, "a.b.0 has 65 bits: expected an integer of at most 64"),
        ("a = 1e400", None, "a = inf: expected a finite number"),
        ("a = nan", None, "a = nan: expected a finite number"),
        ("a = " + "[" * 70 + "1" + "]" * 70, None, "nested too deeply"),
        ("a = " + "[" * 100_000, None, "nested too deeply"),
        ("\n" + ".".join("a" * 100) + " = 1", 2, "a key has over 64 parts"),
        ("\n[" + " . ".join(['"a\\"b"'] * 100) + "]", 2, "a key has over 64 parts"),
        ("a = 1\na = @", 2, "not TOML: Invalid value"),
        ("a = '\0'", 1, "not TOML: "),
        ('a = "\\ud800"', 1, "not TOML: "),
    ],
)
def test_a_hostile_text_is_one_line_and_no_other_error(text: str, line: int | None, fact: str) -> None:
    with pytest.raises(InvalidToml) as caught:
        parse_toml(text)
    assert fact in str(caught.value)
    assert caught.value.line == line
    assert len(str(caught.value)) < 200


def test_what_people_write_is_read() -> None:
    text = "version = '1.2.3.4'\n[a.b.c]\nd = 18_446_744_073_709_551_615\ne = 0x10\nf = 1e300\n"
    assert parse_toml(text) == {"version": "1.2.3.4", "a": {"b": {"c": {"d": 2**64 - 1, "e": 16, "f": 1e300}}}}
