"""Shell words on one line, read back by a real shell."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ohsandbox.errors import UsageError
from ohsandbox.runtime.process.invocation import NEWLINE, check_env_names, quote, quote_all, script_on_stdin

WORDS = st.lists(st.binary().filter(lambda raw: b"\0" not in raw) | st.sampled_from([b"'", b"\n", b"'\n'\"", b"$x`"]))


@pytest.mark.slow
@given(st.binary().filter(lambda raw: b"\0" not in raw))
def test_a_quoted_word_holds_no_newline(raw: bytes) -> None:
    assert b"\n" not in quote(raw)


@settings(max_examples=25, deadline=None)
@given(WORDS)
def test_a_shell_reads_back_what_was_quoted(words: list[bytes]) -> None:
    script = NEWLINE.encode() + b"\nset -- " + b" ".join(quote(word) for word in words) + b"\nprintf '%s\\0' \"$@\"\n"
    read = subprocess.run(["/bin/sh", "-s"], input=script, capture_output=True, check=True).stdout
    assert read == b"".join(word + b"\0" for word in words or [b""])


def test_text_is_quoted_as_its_bytes() -> None:
    assert quote("é\udcff") == b"'\xc3\xa9\xff'"
    assert quote_all(["a b", ""]) == b"'a b' ''"


def test_a_nul_is_refused_with_the_remedy() -> None:
    with pytest.raises(UsageError, match="stdin or in a file"):
        quote("a\0b")


@pytest.mark.parametrize("name", ["", "1A", "A B", "A=B", "Ä", "A\n", "a-b"])
def test_names_that_no_shell_exports_are_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_env_names(["FINE", name])
    assert repr(name) in str(refused.value)


def test_names_that_shells_export_pass() -> None:
    check_env_names(["A", "_", "a1_B"])


def test_a_told_shell_runs_its_script_and_leaves_the_rest_of_stdin() -> None:
    argv, script = script_on_stdin('echo "$0 $1"; cat\n', "name", "first")
    result = subprocess.run(argv, input=script + b"rest", capture_output=True, check=True)
    assert result.stdout == b"name first\nrest"
