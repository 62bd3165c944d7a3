"""What a command's output is: its own bytes, exactly, in bounded memory."""
# ruff: noqa: S101, D103, PLR2004 - cases are tests: their names are sentences, their values literal

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.testing.conformance.case import Session

HOST_GROWTH_KIB = 64 * 1024
"""The host may not feel what a command prints."""


def _prints(command: str, output: str) -> Callable[[Session], None]:
    """The case that a command's output is exactly this."""

    def check(shell: Session) -> None:
        assert shell(command).output == output

    return check


a_silent_command_has_no_output = _prints("true", "")
blanks_and_newlines_around_output_are_kept = _prints(r"printf '\n \t a\tb  c \t\n\n'", "\n \t a\tb  c \t\n\n")
nul_bytes_are_kept = _prints(r"printf 'a\000b\000'", "a\0b\0")
newlines_are_never_preceded_by_carriage_returns = _prints(r"seq 3; printf 'dos\r\n'", "1\n2\n3\ndos\n")
a_missing_final_newline_stays_missing = _prints("printf 'no newline'", "no newline")
progress_is_collapsed_to_its_last_state = _prints(r"printf 'a  b\n  1%%\r 50%%\r100%%\nc'", "a  b\n100%\nc")
escape_sequences_are_removed = _prints(r"printf '\033[1;31mred\033[0m \033]0;title\007x\033(B\n'", "red x\n")
invalid_utf_8_becomes_the_replacement_character = _prints(r"printf 'a\377\376b\n'", "a\ufffd\ufffdb\n")
a_character_cut_across_reads_is_whole = _prints(
    r"printf '\303'; sleep 0.2; printf '\251'; sleep 0.2; printf '\342\234'; sleep 0.2; printf '\223'", "é✓"
)
unicode_travels_both_ways = _prints("echo 'héllo ✓ 🎉 \u202e'", "héllo ✓ 🎉 \u202e\n")
a_line_like_an_announcement_is_kept = _prints(
    "sleep 0.1 & wait; echo '[1] 1'; echo '[2] 99999999'", "[1] 1\n[2] 99999999\n"
)
ten_thousand_lines_come_whole = _prints("seq 10000", "".join(f"{i}\n" for i in range(1, 10001)))


def a_command_answers_with_its_output_and_code(shell: Session) -> None:
    told = shell("echo hi")
    assert (told.output, told.exit_code, told.notice) == ("hi\n", 0, None)
    assert (told.timed_out, told.running, told.truncated, told.waiting_for_input) == (False, False, False, False)
    assert (told.command, told.session, told.output_bytes) == ("echo hi", shell.name, 3)


def a_line_of_carriage_returns_costs_no_time(shell: Session) -> None:
    told = shell(r"head -c 2000000 /dev/zero | tr '\000' '\r'; printf x", timeout_s=60)
    assert (told.output, told.omitted_bytes) == ("x", 0)


def a_control_string_without_its_end_hides_nothing(shell: Session) -> None:
    for introducer in (r"\033]", r"\302\235", r"\033P", r"\033_", r"\033^", r"\033X", r"\302\220"):
        assert shell(rf"printf 'a{introducer}b\nc\n'; sleep 0.05; echo d").output == "ab\nc\nd\n"


def a_character_cut_across_polls_is_whole(shell: Session) -> None:
    first = shell(r"printf 'a\303'; sleep 0.8; printf '\251\n'", idle_timeout_s=0.3)
    assert (first.output, first.running) == ("a", True)
    assert shell.poll().output == "é\n"


def undecodable_bytes_of_a_command_arrive(shell: Session) -> None:
    assert shell("printf '\udcff' | od -An -tx1").output.strip() == "ff"


def errors_are_shown_with_the_right_code(shell: Session) -> None:
    told = shell("(echo wrong >&2; exit 3)")
    assert (told.output, told.exit_code) == ("wrong\n", 3)


def output_and_errors_keep_their_order(shell: Session) -> None:
    told = shell("i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done")
    assert told.output == "".join(f"out {i}\nerr {i}\n" for i in range(500))


def a_line_of_500_kib_comes_whole(shell: Session) -> None:
    told = shell("head -c 512000 /dev/zero | tr '\\0' x; echo")
    assert told.output == "x" * 512000 + "\n"
    assert (told.truncated, told.omitted_bytes, told.output_path) == (False, 0, None)


def a_cut_in_the_middle_is_counted_exactly(shell: Session) -> None:
    told = shell("echo begin; head -c 5000000 /dev/zero | tr '\\0' x; echo end")
    assert (told.truncated, told.output_bytes) == (True, 5000010)
    assert told.output_bytes - told.omitted_bytes == len(told.output)
    assert (told.output[:6], told.output[-4:]) == ("begin\n", "end\n")


def the_whole_of_a_cut_output_is_in_a_file(shell: Session) -> None:
    told = shell("seq 700000")
    assert told.truncated
    assert told.output_path
    kept = shell.runtime.read_bytes(told.output_path)
    shell(f"rm {told.output_path}")
    assert kept == b"".join(b"%d\n" % i for i in range(1, 700001))


def output_without_end_costs_the_host_no_memory(shell: Session) -> None:
    before = _resident_kib()
    told = shell("head -c 200000000 /dev/zero | tr '\\0' a", timeout_s=60)
    _remove(shell, told.output_path)
    assert (told.output_bytes, told.exit_code) == (200000000, 0)
    assert _resident_kib() - before < HOST_GROWTH_KIB


def yes_is_stopped_by_its_timeout_and_counted(shell: Session) -> None:
    told = shell("yes", timeout_s=0.5)
    _remove(shell, told.output_path)
    assert told.timed_out
    assert told.output.startswith("y\ny\n")
    assert told.output_bytes >= len(told.output)


def a_reader_that_stops_early_ends_the_writer_silently(shell: Session) -> None:
    told = shell("yes | head -n 1")
    assert (told.output, told.exit_code) == ("y\n", 0)


def random_bytes_become_loadable_text(shell: Session) -> None:
    told = shell("head -c 1000000 /dev/urandom")
    assert told.output_bytes == 1000000
    assert "\x1b" not in told.output
    assert type(told).model_validate_json(told.model_dump_json()) == told


def a_forged_mark_of_another_command_is_plain_output(shell: Session) -> None:
    told = shell(r"printf '\033]7117;%032d;end\007x\n' 7; echo after; (exit 4)")
    assert (told.output, told.exit_code) == ("x\nafter\n", 4)


def a_forged_end_mark_forges_no_result(shell: Session) -> None:
    find = "set | sed -n 's/^ohsandbox_.*_n=.*\\([0-9a-f]\\{32\\}\\).*/\\1/p'"
    assert len(shell(find).output) == len(f"{'n' * 32}\n")
    told = shell(f'printf "\\033]7117;%s;end\\007" "$({find})"; sleep 0.3; (exit 4)')
    assert told.exit_code == 4


def a_trace_shows_the_command_and_nothing_of_ours(shell: Session) -> None:
    shell("set -x")
    told = shell("echo hi")
    assert re.fullmatch(r"\++ echo hi\nhi\n", told.output)
    assert "ohs_" not in shell("set +x").output


def verbose_mode_shows_nothing_of_ours(shell: Session) -> None:
    shell("set -v")
    told = shell("echo hi")
    assert told.output.endswith("hi\n")
    assert "ohs_" not in told.output + shell("set +v").output


def the_prompt_is_never_output(shell: Session) -> None:
    shell("PROMPT_COMMAND='echo P'; PS1='$(date)'; PS2='more'; PS0=zero; PS4='+'")
    told = shell("echo hi")
    assert (told.output, told.background_output) == ("hi\n", "")


def a_background_job_of_several_lines_is_not_announced(shell: Session) -> None:
    begin = "{ echo hi; sleep 0.1\n} >/dev/null 2>&1 </dev/null &\n"
    told = shell(f"{begin}while kill -0 $! 2>/dev/null; do sleep 0.1; done\nwait $!")
    assert (told.output, told.exit_code) == ("", 0)


def a_background_job_is_not_announced(shell: Session) -> None:
    told = shell("sleep 0.1 & echo hi; wait")
    assert (told.output, told.background_output) == ("hi\n", "")


def a_program_inherits_no_descriptor_of_ours(shell: Session) -> None:
    assert shell("ls -x /proc/self/fd").output.split() == ["0", "1", "2", "3"]


def output_goes_to_a_terminal_of_a_stated_size(shell: Session) -> None:
    told = shell("test -t 0 && test -t 1 && test -t 2 && stty size")
    assert re.fullmatch(r"\d+ \d+\n", told.output)


def _remove(shell: Session, path: str | None) -> None:
    """A whole output is up to 64 MiB of the sandbox's disk."""
    if path:
        shell(f"rm -f {path}")


def _resident_kib() -> int:
    """VmRSS of proc(5)."""
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text("ascii"))
    return int(found[1]) if found else 0
