"""Output in bounded memory, and what a listener hears of it, however it was cut."""

from __future__ import annotations

import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ohsandbox.runtime.shell.output import (
    CAPTURE_BYTES,
    PENDING_BYTES,
    Capture,
    ListenerFailed,
    OutputRelay,
    printable_end,
)
from ohsandbox.runtime.shell.terminal import clean
from ohsandbox.schema.execution import LAST_OUTPUT_BYTES
from ohsandbox.secrets import Masker
from ohsandbox.secrets.masker import placeholder

CHUNKS = st.lists(st.binary(max_size=40))
LETTERS = st.lists(st.text("abc\n", max_size=40).map(str.encode))


def fed(chunks: list[bytes], limit_bytes: int = CAPTURE_BYTES) -> Capture:
    capture = Capture(limit_bytes=limit_bytes)
    for chunk in chunks:
        capture.feed(chunk)
    return capture


@given(CHUNKS)
def test_short_output_is_taken_whole_however_it_was_cut(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    assert fed(chunks).read(final=True) == (clean(whole), len(whole), 0)


@given(LETTERS, st.integers(2, 60))
def test_what_was_kept_and_what_was_left_out_add_up(chunks: list[bytes], limit_bytes: int) -> None:
    whole = b"".join(chunks)
    taken = fed(chunks, limit_bytes).read(final=True)
    assert taken.output_bytes == len(whole)
    assert len(taken.text) + taken.omitted_bytes == len(whole)


@given(LETTERS, st.integers(2, 60))
def test_the_beginning_and_the_end_are_kept(chunks: list[bytes], limit_bytes: int) -> None:
    text = b"".join(chunks).decode()
    taken = fed(chunks, limit_bytes).read(final=True)
    half = limit_bytes // 2
    assert taken.text.startswith(text[:half])
    assert taken.text.endswith(text[-half:])


@given(st.text(), st.lists(st.integers(0, 200)))
@example("\x9d0", [2])
@example("a\x9d0;title\x9cb", [3, 6, 11])
def test_takes_between_characters_never_split_one(text: str, cuts: list[int]) -> None:
    raw = text.replace("\r", "").replace("\x1b", "").encode()
    capture, taken, done = Capture(), "", 0
    for cut in sorted(cuts):
        capture.feed(raw[done : max(done, cut)])
        taken += capture.read(final=False).text
        done = max(done, cut)
    capture.feed(raw[done:])
    assert taken + capture.read(final=True).text == clean(raw)


PIECES = rb"\x1b|]|[|P|\|\x07|\n|a|3|m| |\xc2|\x9d|\x9c|\x9b|\xc2\x9d|\x18|\xc3\xa9".split(b"|")
HOSTILE = st.lists(
    st.sampled_from([piece.decode("unicode_escape").encode("latin-1") for piece in PIECES if piece != b"\\"])
    | st.sampled_from([b"\\", b"b" * 4090, b"0;" * 150]),
    max_size=12,
)


@given(HOSTILE, st.lists(st.integers(1, 9000), max_size=6))
@example([b"\xc2", b"\x1b", b"\x9d"], [2])
@example([b"\xc2", b"\x1b", b"[", b"m", b"\x9d"], [4])
def test_polled_output_is_what_the_whole_would_be(pieces: list[bytes], steps: list[int]) -> None:
    raw, capture, taken = b"".join(pieces), Capture(), ""
    rest = raw
    for step in steps:
        capture.feed(rest[:step])
        rest = rest[step:]
        taken += capture.read(final=False).text
    capture.feed(rest)
    assert taken + capture.read(final=True).text == clean(raw)


@given(LETTERS, st.integers(2, 60))
def test_an_overflow_is_given_every_byte_from_the_first_one(chunks: list[bytes], limit_bytes: int) -> None:
    spilled: list[bytes] = []
    capture = Capture(limit_bytes=limit_bytes, on_overflow=spilled.append)
    for chunk in chunks:
        capture.feed(chunk)
    whole = b"".join(chunks)
    assert b"".join(spilled) == (whole if capture.read(final=True).omitted_bytes else b"")


def test_memory_stays_near_the_limit() -> None:
    capture = Capture(limit_bytes=1000)
    for _ in range(10_000):
        capture.feed(b"x" * 100)
    assert capture.read(final=True).omitted_bytes >= 1_000_000 - 1100


def test_taking_starts_anew() -> None:
    capture = fed([b"first"])
    assert capture.read(final=True).text == "first"
    assert capture.read(final=True) == ("", 0, 0)


def test_looking_at_the_last_bytes_takes_nothing() -> None:
    capture = fed([b"abc", b"def"])
    assert capture.last(4) == b"cdef"
    assert capture.read(final=True).text == "abcdef"


def test_an_unfinished_escape_waits_for_its_end() -> None:
    capture = fed([b"red \x1b[3"])
    assert capture.read(final=False).text == "red "
    capture.feed(b"1mx")
    assert capture.read(final=False).text == "x"


@pytest.mark.parametrize("value", ["hunter2-hunter2", "aaaaaaaaaa", "abcabcabcabc"])
def test_a_value_that_begins_as_it_ends_is_masked_however_it_is_polled(value: str) -> None:
    masker = Masker({"KEY": value})
    data = f"key {value} end".encode()
    for first in range(len(data)):
        for second in range(first, len(data)):
            capture, shown = Capture(), ""
            for piece in (data[:first], data[first:second]):
                capture.feed(piece)
                shown += capture.read(final=False, masker=masker).text
            capture.feed(data[second:])
            shown += capture.read(final=True, masker=masker).text
            assert shown == f"key {placeholder('KEY')} end"


# --- the relay to a listener ---------------------------------------------------------------------

OUTPUT = "caf\u00e9 \x1b[1mbold\x1b]0;title\x07 hunter2-hunter2\r\n10%\r\r20%\rdone\r\n\texit\nexit\nend\u2713".encode()
SECRET = Masker({"TOKEN": "hunter2-hunter2"})


def heard_of(*pieces: bytes, farewell: bool = False, masker: Masker = SECRET) -> str:
    heard: list[str] = []
    relay = OutputRelay(heard.append, masker, changed=threading.Condition())
    for piece in pieces:
        relay.feed(piece)
        relay.hand_on()
    relay.finish(farewell=farewell)
    assert "" not in heard
    return "".join(heard)


def test_what_is_heard_becomes_the_output_once_lines_are_rewritten() -> None:
    assert clean(heard_of(OUTPUT).encode()) == SECRET.mask(clean(OUTPUT))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_cuts_make_no_difference(size: int) -> None:
    pieces = [OUTPUT[at : at + size] for at in range(0, len(OUTPUT), size)]
    assert clean(heard_of(*pieces).encode()) == SECRET.mask(clean(OUTPUT))


def test_every_single_cut_keeps_the_secret() -> None:
    for at in range(len(OUTPUT)):
        assert "hunter" not in heard_of(OUTPUT[:at], OUTPUT[at:]).replace("<secret:TOKEN>", ""), at


def test_what_a_shell_says_as_it_leaves_is_not_heard_and_what_a_program_says_is() -> None:
    assert heard_of(b"a\nexit\n", farewell=True) == heard_of(b"a\n", b"exit\n", farewell=True) == "a\n"
    assert heard_of(b"a\nexit\n") == heard_of(b"a\n", b"exit\n") == "a\nexit\n"


def test_carriage_returns_without_end_are_not_kept() -> None:
    relay = OutputRelay(str, SECRET, changed=threading.Condition())
    for _ in range(1000):
        relay.feed(b"\r" * 1000)
        relay.hand_on()
    assert relay._held == b"\r"


def test_the_end_of_a_secret_behind_a_gap_is_not_heard() -> None:
    heard: list[str] = []
    relay = OutputRelay(heard.append, SECRET, changed=threading.Condition())
    relay.feed(b"hunter2 and more\n", after_gap=True)
    relay.hand_on()
    assert "hunter2" not in "".join(heard)


def test_it_is_full_at_its_limit_and_empty_once_passed_on() -> None:
    heard: list[str] = []
    relay = OutputRelay(heard.append, SECRET, changed=threading.Condition())
    relay.feed(b"a" * (PENDING_BYTES - 1))
    assert (relay.pending, relay.full) == (True, False)
    relay.feed(b"x")
    assert relay.full
    relay.finish()
    assert len("".join(heard)) == PENDING_BYTES
    assert (relay.pending, relay.full) == (False, False)


def test_what_the_listener_raises_is_told_with_it() -> None:
    def fail(text: str) -> None:
        raise KeyError(text)

    relay = OutputRelay(fail, SECRET, changed=threading.Condition())
    relay.feed(b"x")
    with pytest.raises(ListenerFailed) as caught:
        relay.finish()
    assert isinstance(caught.value.error, KeyError)


@pytest.mark.parametrize("guess", ["sk-ant-api03-Zx81", "sk-ant-api03-Zx82"])
def test_a_poll_tells_nothing_of_a_hidden_value_that_the_command_guesses(guess: str) -> None:
    capture = Capture(limit_bytes=100)
    masker = Masker({"T": "a-known-value"}, hidden={"K": "sk-ant-api03-Zx81kQ0aVn72LmWq55TtPo39RsYb"})
    capture.feed(f"is it {guess}".encode())
    assert capture.read(final=False, masker=masker).text == f"is it {guess}"
    for byte in f"{guess}{'.' * 64}{guess}{guess}".encode():
        capture.feed(bytes([byte]))
    assert capture.read(final=True, masker=masker).text == f"{guess}{'.' * (100 - 3 * len(guess))}{guess}{guess}"
    text = f"{guess}\n".encode() * 600 + guess.encode()
    assert printable_end(text[-LAST_OUTPUT_BYTES:], masker).endswith(f"\n{guess}")
