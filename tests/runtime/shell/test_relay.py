"""What a listener hears of a command's output, however it was cut."""

from __future__ import annotations

import pytest

from ohsandbox.runtime.shell.relay import PENDING_BYTES, ListenerFailed, OutputRelay
from ohsandbox.runtime.shell.terminal import clean
from ohsandbox.secrets import Masker

OUTPUT = "caf\u00e9 \x1b[1mbold\x1b]0;title\x07 hunter2-hunter2\r\n10%\r\r20%\rdone\r\n\texit\nexit\nend\u2713".encode()
SECRET = Masker({"TOKEN": "hunter2-hunter2"})


def heard_of(*pieces: bytes, farewell: bool = False, masker: Masker = SECRET) -> str:
    heard: list[str] = []
    relay = OutputRelay(heard.append, masker)
    for piece in pieces:
        relay.feed(piece)
        relay.hand_on(relay.take())
    relay.finish(relay.take(), farewell=farewell)
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
    relay = OutputRelay(str, SECRET)
    for _ in range(1000):
        relay.hand_on(b"\r" * 1000)
    assert relay._held == b"\r"


def test_the_end_of_a_secret_behind_a_gap_is_not_heard() -> None:
    heard: list[str] = []
    relay = OutputRelay(heard.append, SECRET)
    relay.feed(b"hunter2 and more\n", after_gap=True)
    relay.hand_on(relay.take())
    assert "hunter2" not in "".join(heard)


def test_it_is_full_at_its_limit_and_empty_once_taken() -> None:
    relay = OutputRelay(str, SECRET)
    relay.feed(bytes(PENDING_BYTES - 1))
    assert (relay.pending, relay.full) == (True, False)
    relay.feed(b"x")
    assert relay.full
    assert len(relay.take()) == PENDING_BYTES
    assert (relay.pending, relay.full) == (False, False)


def test_what_the_listener_raises_is_told_with_it() -> None:
    def fail(text: str) -> None:
        raise KeyError(text)

    with pytest.raises(ListenerFailed) as caught:
        OutputRelay(fail, SECRET).finish(b"x")
    assert isinstance(caught.value.error, KeyError)
