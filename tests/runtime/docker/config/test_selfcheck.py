"""What a sandbox prints about itself is no number yet, whoever wrote it."""

from __future__ import annotations

import pytest

from ohsandbox.runtime.docker.config.selfcheck import parse_cpu_list
from ohsandbox.runtime.docker.monitoring.process_writes import parse_writes

DIGITS = "1" * 5000


def test_a_list_of_processors_is_read() -> None:
    assert parse_cpu_list("0,2-3") == {0, 2, 3}


@pytest.mark.parametrize("said", ["", "x", "0-99999999999", DIGITS, "²", ",".join(["0-8191"] * 5000)])
def test_a_list_that_no_machine_has_is_none(said: str) -> None:
    assert parse_cpu_list(said) == set()


def test_a_process_of_too_many_digits_is_left_out() -> None:
    assert parse_writes(f"{DIGITS} 1 1 1 1 0:0 sh\n² 1 1 1 1 0:0 sh\n".encode()) == {}
    assert parse_writes(b"7 1 1 1 1 q name\n") == {}
    assert list(parse_writes("8 1 1 1 1 0:0 x\v7 ? ? 9 9 1:1 a\u20289 ? ? 9 9 1:1 a\n".encode())) == [8]
    [process] = parse_writes(f"7 {DIGITS} ² 3 4 0:0 sh\n".encode()).values()
    assert process[:4] == (None, None, 3, 4)
    for separator in "\x0b\x0c\x1c\x1d\x1e\x85\u2028":
        assert set(parse_writes(f"6 1 1 1 1 0:0 x{separator}7 ? ? 9 9 q a\n".encode())) == {6}
    for user in ("q", "q:0", "0", "²:0", "0:0:0"):
        assert parse_writes(f"7 ? ? 9 9 {user} a\n".encode()) == {}
