"""What is typed for a key's name, and for a line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ohsandbox.runtime.shell.terminal import keystrokes


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("C-c", b"\x03"), ("C-C", b"\x03"), ("C-d", b"\x04"), ("C-z", b"\x1a"), ("C-\\", b"\x1c"), ("C-[", b"\x1b"),
        ("CTRL-c", b"\x03"), ("ctrl+c", b"\x03"), (" C-c\n", b"\x03"),
        ("ENTER", b"\n"), ("TAB", b"\t"), ("UP", b"\x1b[A"), ("DEL", b"\x1b[3~"), ("PGUP", b"\x1b[5~"),
    ],
)  # fmt: skip
def test_a_key_name_is_sent_as_the_key(name: str, sent: bytes) -> None:
    assert keystrokes(name) == sent


@pytest.mark.parametrize("text", ["up", "Enter", "C-cc", "C-1", "press C-c", "end", "Home"])
def test_what_only_looks_like_a_key_is_a_line(text: str) -> None:
    assert keystrokes(text) == text.encode() + b"\n"


def test_a_line_gets_one_newline_and_never_two() -> None:
    assert keystrokes("y") == keystrokes("y\n") == b"y\n"
    assert keystrokes("") == b"\n"


def test_blanks_around_a_line_are_typed() -> None:
    assert keystrokes("  a ") == b"  a \n"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_ends_in_a_newline_or_is_a_key(text: str) -> None:
    sent = keystrokes(text)
    assert sent in (text.encode(), text.encode() + b"\n") or len(text.strip()) <= 6
