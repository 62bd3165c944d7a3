"""Marks between bytes, and bytes made fit to read."""

from __future__ import annotations

import secrets
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ohsandbox.runtime.shell.terminal import Mark, MarkSplitter, clean, keystrokes, sanitize_for_terminal, whole_prefix

NONCE = "0123456789abcdef" * 2
BEGIN, END = Mark(NONCE, "begin"), Mark(NONCE, "end")
PLAIN = st.text("ab \n\t\r\x1b[]7;1").map(str.encode)


def wire(piece: bytes | Mark) -> bytes:
    return piece if isinstance(piece, bytes) else f"\x1b]7117;{piece.nonce};{piece.kind}\x07".encode()


def split(raw: bytes, cuts: list[int]) -> list[bytes | Mark]:
    splitter, pieces, done = MarkSplitter(), [], 0
    for cut in [*sorted(cuts), len(raw)]:
        pieces += splitter.feed(raw[done : max(done, cut)])
        done = max(done, cut)
    return pieces


def joined(pieces: list[bytes | Mark]) -> list[bytes | Mark]:
    """Neighbouring bytes as one piece."""
    out: list[bytes | Mark] = []
    for piece in pieces:
        if isinstance(piece, bytes) and out and isinstance(last := out[-1], bytes):
            out[-1] = last + piece
        else:
            out.append(piece)
    return out


@given(PLAIN, PLAIN, st.lists(st.integers(0, 160)))
def test_marks_are_found_wherever_the_stream_is_cut(before: bytes, between: bytes, cuts: list[int]) -> None:
    raw = before + wire(BEGIN) + between + wire(END)
    expected = [piece for piece in (before, BEGIN, between, END) if piece]
    assert joined(split(raw, cuts)) == expected


@given(st.binary(), st.lists(st.integers(0, 60)))
def test_no_byte_is_lost_before_the_next_mark(raw: bytes, cuts: list[int]) -> None:
    pieces = joined(split(raw + b"." + wire(END), cuts))
    assert b"".join(wire(piece) for piece in pieces) == raw + b"." + wire(END)
    assert pieces[-1] == END


def test_what_only_begins_like_a_mark_is_output() -> None:
    splitter = MarkSplitter()
    assert splitter.feed(b"a\x1b]71") == [b"a"]
    assert splitter.feed(b"99;x\x07") == [b"\x1b]7199;x\x07"]


def test_a_mark_with_another_word_is_output() -> None:
    raw = f"\x1b]7117;{NONCE};stop\x07".encode()
    assert b"".join(piece for piece in MarkSplitter().feed(raw + b" " * 60) if isinstance(piece, bytes)).strip() == raw


def test_ordinary_output_is_never_held_back() -> None:
    assert MarkSplitter().feed(b"no newline") == [b"no newline"]
    assert MarkSplitter().feed(b"\x1b[31mred") == [b"\x1b[31mred"]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\n \t a\tb  \0 \n\n", "\n \t a\tb  \0 \n\n"),
        (b"a\r\nb\r\r\nc", "a\nb\nc"),
        (b"1%\r50%\r100%\n", "100%\n"),
        (b"kept\n1%\r2%\rdone", "kept\ndone"),
        (b"50%\r", "50%"),
        (b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b(B\x1b=\x1bM", "red x"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bPq#0\x1b\\x\x1b_apc\x1b\\y", "xy"),
        ("\x9b31mred\x9d0;t\x07x\x85".encode(), "redx"),
        (b"a\xff\xfeb", "a\ufffd\ufffdb"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        ("é✓🎉\u202e".encode(), "é✓🎉\u202e"),
    ],
)
def test_bytes_of_a_terminal_become_text(raw: bytes, text: str) -> None:
    assert clean(raw) == text


INTRODUCERS = [b"\x1b]", b"\x1bP", b"\x1b_", b"\x1b^", b"\x1bX", *(f"{c}".encode() for c in "\x90\x98\x9d\x9e\x9f")]


@pytest.mark.parametrize("introducer", INTRODUCERS)
def test_a_control_string_that_never_ends_hides_nothing(introducer: bytes) -> None:
    assert clean(b"seen " + introducer + b"0;and\nall\nof this\n") == "seen 0;and\nall\nof this\n"
    assert clean(introducer + b"x" * 100_000) == "x" * 100_000
    assert clean(introducer + b"0;t\x18after") == "0;t\x18after"
    assert clean(introducer + b"one" + introducer + b"two\x07three") == "onethree"


def test_a_title_with_letters_beyond_ascii_is_removed_whole() -> None:
    assert clean("\x1b]0;Übung ½\x07x\x9dÜ½\x9cy\x1b]Ü\x1b\\z".encode()) == "xyz"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x1b")))
def test_text_without_control_functions_is_kept_to_the_byte(text: str) -> None:
    kept = "".join(character for character in text if not "\x80" <= character <= "\x9f")
    if kept == text:
        assert clean(text.encode()) == text


@given(st.binary())
def test_no_escape_and_no_carriage_return_is_left(raw: bytes) -> None:
    assert not set(clean(raw)) & {"\x1b", "\x9b", "\x9d", "\x90"}
    assert "\r\n" not in clean(raw)


@given(st.binary())
def test_a_persons_terminal_gets_no_control_character(raw: bytes) -> None:
    shown = sanitize_for_terminal(raw.decode("utf-8", "surrogateescape"))
    assert all(unicodedata.category(character) != "Cc" or character in "\n\t" for character in shown)
    assert not set(shown) & set("\u202a\u202e\u2066\u200b\ufeff")


def test_a_persons_terminal_shows_pictures_of_controls() -> None:
    assert sanitize_for_terminal("bell\x07 del\x7f\tx\n") == "bell\u2407 del\u2421\tx\n"


PRINTABLE = st.text(st.characters(exclude_characters="\x1b", exclude_categories=("Cs", "Cc")))


@given(PRINTABLE, st.integers(0, 4))
def test_a_growing_stream_is_shown_up_to_its_last_whole_character(text: str, missing: int) -> None:
    raw = text.encode()
    cut = raw[: max(0, len(raw) - missing)]
    shown = cut[: whole_prefix(cut)].decode()  # strictly: an unfinished character would raise
    assert text.startswith(shown)
    assert len(cut) - whole_prefix(cut) < 4


def test_random_bytes_are_cut_within_four_bytes() -> None:
    for _ in range(200):
        raw = secrets.token_bytes(50).replace(b"\x1b", b"").replace(b"\xc2", b"")
        assert len(raw) - whole_prefix(raw) < 4


# --- what is typed for a key's name, and for a line -----------------------------------------------


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
