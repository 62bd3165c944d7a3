"""Time limits, the kill ladder, lost shells, background jobs: what is left afterwards, and what is told."""
# ruff: noqa: S101, D103, PLR2004, S108 - cases are tests: their names are sentences, their values literal

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError
from ohsandbox.testing.conformance.case import PASSING, held_by_host, is_running, needs, number_nobody_sleeps, refuses
from ohsandbox.testing.conformance.scratch import soon

if TYPE_CHECKING:
    from ohsandbox.testing.conformance.case import Session

GRACE_S = 30.0
"""Whatever a command does, `execute` returns this soon after its limit."""


# --- our own programs ---


@needs("isolated")
def a_signal_to_every_cat_ends_none_of_ours(shell: Session) -> None:
    shell("kept=yes")
    shell(
        'for d in /proc/[0-9]*; do read -r name 2>/dev/null <"$d/comm" && [ "$name" = cat ] && kill "${d##*/}"; done; :'
    )
    assert shell("echo $kept").output == "yes\n"


# --- hard limits ---


def a_timeout_is_a_result_with_the_partial_output(shell: Session) -> None:
    shell("kept=yes; cd /tmp")
    told = shell("echo a; sleep 60", timeout_s=0.4)
    assert (told.output, told.timed_out, told.running, told.exit_code) == ("a\n", True, False, None)
    assert (told.cwd, told.notice) == ("/tmp", None)
    assert shell("echo $kept; pwd").output == "yes\n/tmp\n"


def a_timeout_leaves_nothing_of_the_command(shell: Session) -> None:
    number = number_nobody_sleeps()
    command = f"setsid sleep {number} & nohup sleep {number} >/dev/null 2>&1 & sh -c 'sleep {number}' & sleep {number}"
    assert shell(command, timeout_s=0.4).timed_out
    assert not is_running(shell.runtime, f"sleep {number}")


@needs("isolated")
def a_timeout_leaves_nothing_even_of_children_that_hide(shell: Session) -> None:
    number = number_nobody_sleeps()
    hidden = f"env -i setsid sh -c 'sleep {number} & sleep {number}'"
    assert shell(f"{hidden} & (setsid {hidden} &) ; sleep 60", timeout_s=0.4).timed_out
    assert not is_running(shell.runtime, f"sleep {number}")


def a_timeout_spares_what_other_calls_started_meanwhile_though_it_has_no_mark(shell: Session) -> None:
    runtime = shell.runtime
    of_session, of_run, own = (number_nobody_sleeps() for _ in range(3))
    hidden = "env -i setsid sh -c 'sleep {0} & sleep {0}' & sleep {1}"
    others = [
        threading.Thread(target=partial(runtime.execute, hidden.format(of_session, 5), session="another")),
        threading.Thread(target=partial(runtime.run, ["sh", "-c", hidden.format(of_run, 5)])),
    ]
    for other in others:
        other.start()
    assert shell(hidden.format(own, 60), timeout_s=1).timed_out
    assert runtime.run(["sh", "-c", hidden.format(own, 60)], timeout_s=1).timed_out
    for other in others:
        other.join()
    try:
        assert is_running(runtime, f"sleep {of_session}")
        assert is_running(runtime, f"sleep {of_run}")
        assert not is_running(runtime, f"sleep {own}")
    finally:
        runtime.close_session("another")
        for number in (of_session, of_run):
            end = (
                f'for p in /proc/[0-9]*; do ! grep -qs {number} "$p/cmdline" || kill "${{p#/proc/}}"; done 2>/dev/null'
            )
            runtime.run(["sh", "-c", end.replace(number, f"[{number[0]}]{number[1:]}")])


def a_timeout_spares_what_an_earlier_background_job_starts_meanwhile(shell: Session) -> None:
    number = number_nobody_sleeps()
    shell(f"(sleep 1; sleep {number}; true) &")
    assert shell("sleep 60", timeout_s=1.5).timed_out
    assert is_running(shell.runtime, f"sleep {number}")
    shell("kill %1; wait")


def a_timeout_spares_earlier_background_jobs(shell: Session) -> None:
    number = number_nobody_sleeps()
    shell(f"sleep {number} &")
    time.sleep(0.1)  # its age is told from the command's by the clock, in hundredths of a second
    assert shell("sleep 60", timeout_s=0.4).timed_out
    assert is_running(shell.runtime, f"sleep {number}")
    assert shell("kill %1; wait; echo gone").output.endswith("gone\n")


def a_program_that_ignores_signals_is_killed(shell: Session) -> None:
    shell("kept=yes")
    told = shell("sh -c 'trap \"\" INT TERM HUP QUIT; while :; do sleep 60; done'", timeout_s=0.3)
    assert told.timed_out
    assert shell("echo $kept").output == "yes\n"


def a_loop_of_builtins_is_ended_and_the_shell_kept(shell: Session) -> None:
    shell("kept=yes")
    assert shell("while :; do :; done", timeout_s=0.3).timed_out
    assert shell("echo $kept").output == "yes\n"


def a_shell_that_ignores_signals_is_replaced_and_it_is_told(shell: Session) -> None:
    shell("export KEPT=yes; cd /tmp")
    with soon(GRACE_S):
        told = shell("trap '' INT TERM; while :; do :; done", timeout_s=0.3)
    assert told.timed_out
    assert told.notice
    assert shell("echo $KEPT; pwd").output == "yes\n/tmp\n"


def a_stopped_shell_goes_on_or_is_replaced_and_that_is_told(shell: Session) -> None:
    shell("kept=yes")
    with soon(GRACE_S):
        told = shell("kill -STOP $$", timeout_s=0.3)
    assert told.exit_code == 0 or told.timed_out
    assert shell("echo $kept").output == ("\n" if told.notice else "yes\n")


@needs("waits")
def a_waiting_program_is_ended_by_its_timeout_too(shell: Session) -> None:
    assert shell("cat").waiting_for_input
    told = shell.poll(timeout_s=0.05)
    assert told.timed_out or told.waiting_for_input
    if told.running:
        shell.type("C-c")


def a_timeout_may_be_given_to_a_later_poll(shell: Session) -> None:
    assert shell("sleep 60", idle_timeout_s=0.2).running
    told = shell.poll(timeout_s=0.3)
    assert (told.timed_out, told.running) == (True, False)


def limits_that_are_no_positive_numbers_are_refused(shell: Session) -> None:
    for value in (0, -1, float("inf"), float("nan"), -0.001):
        refuses(partial(shell, "touch /tmp/limited", timeout_s=value), UsageError, ValueError)
        refuses(partial(shell, "touch /tmp/limited", idle_timeout_s=value), UsageError, ValueError)
    assert shell("ls /tmp/limited").exit_code != 0


def a_huge_limit_is_a_limit(shell: Session) -> None:
    assert shell("echo a", timeout_s=1e9, idle_timeout_s=1e9).output == "a\n"


def an_interrupt_of_the_host_ends_the_command_and_is_raised(shell: Session) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # only there does Python raise KeyboardInterrupt
    shell("kept=yes")
    number = number_nobody_sleeps()
    timer = threading.Timer(0.4, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    refuses(lambda: shell(f"sleep {number}"), KeyboardInterrupt)
    timer.join()
    assert not is_running(shell.runtime, f"sleep {number}")
    assert shell("echo $kept").output == "yes\n"


# --- shells that end ---


def what_an_exit_trap_prints_is_shown_and_disturbs_no_other_command(shell: Session) -> None:
    told = shell("trap 'echo out; echo err >&2' EXIT; echo a; exit 3")
    assert (told.output, told.exit_code) == ("a\nout\nerr\n", 3)
    told = shell("trap 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo ready to exit' EXIT; exit 4")
    assert (told.output, told.exit_code) == ("ready to exit\n", 4)  # what computes is not lost
    shell("trap 'echo bye' EXIT")
    assert shell("sleep 60", idle_timeout_s=0.3).running
    assert shell.type("C-c").exit_code == 130
    for _ in range(2):
        told = shell("(exit 4)")
        assert (told.output, told.background_output, told.exit_code) == ("", "", 4)
    assert shell("printf b; exit").output == "bbye\n"


def a_shell_whose_own_descriptors_are_closed_is_restarted_before_the_limit(shell: Session) -> None:
    assert not shell("exec 11>&-", timeout_s=5).timed_out


def exit_tells_its_code_and_where_the_shell_was(shell: Session) -> None:
    for code in (0, 3, 126, 127, 130):
        told = shell(f"cd /tmp; exit {code}")
        assert (told.output, told.exit_code, told.cwd) == ("", code, "/tmp")
        assert told.notice
        assert shell("pwd").output == "/tmp\n"


def the_exported_environment_outlives_the_shell(shell: Session) -> None:
    shell("export KEPT='a  b\n\"c\" $d'")
    told = shell("kill -9 $$")
    assert told.exit_code == 137
    assert told.notice
    assert shell('printf %s "$KEPT"').output == 'a  b\n"c" $d'


def a_failing_command_under_set_e_ends_the_shell_and_it_is_told(shell: Session) -> None:
    told = shell("set -e; echo before; false; echo after")
    assert (told.output, told.exit_code) == ("before\n", 1)
    assert told.notice
    assert shell("false; echo on").output == "on\n"


def exec_replaces_the_shell_and_ends_with_the_program(shell: Session) -> None:
    told = shell("exec sh -c 'echo replaced; exit 4'")
    assert (told.output, told.exit_code) == ("replaced\n", 4)
    assert told.notice
    assert shell("exec true >/dev/null; echo x").exit_code in (0, None)


def a_program_in_the_shells_place_is_ended_by_the_timeout(shell: Session) -> None:
    assert shell("exec sleep 60", timeout_s=0.3).timed_out


def signals_to_the_shell_itself_are_survived(shell: Session) -> None:
    for name in ("HUP", "TERM", "INT", "QUIT", "PIPE", "ALRM", "SEGV"):
        told = shell(f"kill -{name} $$", timeout_s=3)
        assert not told.running, name
        assert shell("echo ok").output == "ok\n", name


def a_shell_killed_between_commands_is_replaced(shell: Session) -> None:
    pid = shell("export KEPT=yes; echo $$").output.strip()
    shell.runtime.run(["sh", "-c", f"kill -9 {pid}"])
    time.sleep(0.2)
    told = shell("echo $KEPT")
    assert told.output == "yes\n"
    assert told.notice


@needs("waits")
def a_shell_keeps_its_state_without_the_files_of_its_session(shell: Session) -> None:
    shell("kept=yes; f() { echo function; }")
    directory = shell.runtime.state_dir
    own = f"{directory}/{shell.name.replace('_', '')[:32]}-*"
    for files in (directory, own, f"{own}/*"):
        removed = shell(f"rm -rf {files} 2>/dev/null; export KEPT='{files}'; (exit 3)")
        assert (removed.exit_code, removed.notice) == (3, None), files
        assert shell("echo $kept; f").output == "yes\nfunction\n", files
        assert shell(f"rm -rf {files} 2>/dev/null; read line; echo got $line").waiting_for_input, files
        assert shell.type("it").output.endswith("got it\n"), files
        assert shell(f"rm -rf {files} 2>/dev/null; sleep 60", idle_timeout_s=0.2).running, files
        assert shell.type("C-c").exit_code == 130, files
    assert shell(f"ls -l {own}/env").output.startswith("-rw-------"), "what is exported is for nobody else"
    shell(f"rm -rf {own}; exit 4")
    assert shell('echo "$KEPT"').output == f"{files}\n"


@needs("isolated")
def killing_everything_is_survived(shell: Session) -> None:
    told = shell("export KEPT=yes; kill -9 -1")
    assert told.exit_code != 0
    assert told.notice
    assert shell.runtime.run(["echo", "on"]).stdout == b"on\n"


@needs("isolated")
def the_first_process_cannot_be_killed(shell: Session) -> None:
    shell("touch /tmp/first")
    shell("kill -9 1; kill -TERM 1; kill -INT 1")
    told = shell("rm /tmp/first")
    assert (told.exit_code, told.notice) == (0, None)


def a_lost_working_directory_is_replaced_and_it_is_told(shell: Session) -> None:
    shell("mkdir /tmp/lost-$$; cd /tmp/lost-$$; rmdir /tmp/lost-$$")
    told = shell("pwd")
    assert told.output == f"{shell.runtime.workdir}\n"
    assert told.notice


def a_killed_program_leaves_no_raw_terminal_and_no_job_number(shell: Session) -> None:
    number = number_nobody_sleeps()
    shell(f"sleep {number} &")
    shell("sh -c 'stty raw -echo; kill -9 $$'")
    assert " icanon" in shell("stty -a").output
    assert shell("kill %1; wait; echo gone").output.endswith("gone\n")
    assert not is_running(shell.runtime, f"sleep {number}")


def a_child_that_stops_itself_does_not_hang(shell: Session) -> None:
    told = shell("sh -c 'kill -STOP $$'")
    assert (told.running, told.exit_code) == (False, 147)
    shell("kill -9 %1; wait")


# --- background jobs ---


def a_background_job_does_not_block(shell: Session) -> None:
    with soon():
        assert shell("sleep 60 & echo hi").output == "hi\n"
    shell("kill %1")


def later_output_of_a_job_is_background_output(shell: Session) -> None:
    assert shell("(sleep 0.2; echo late) & echo now").output == "now\n"
    time.sleep(0.4)
    told = shell("echo next")
    assert (told.output, told.background_output) == ("next\n", "late\n")
    assert shell("echo again").background_output == ""


def later_output_of_a_job_can_be_polled(shell: Session) -> None:
    shell("(sleep 0.2; echo late) &")
    time.sleep(0.4)
    told = shell.poll()
    assert (told.output, told.background_output) == ("", "late\n")


def a_job_works_on_while_other_commands_run(shell: Session) -> None:
    shell("f=/tmp/job-$$; (for i in 1 2 3 4 5; do echo $i; sleep 0.05; done >$f) & echo started")
    for _ in range(5):
        assert shell("true").output == ""
    assert shell("wait; cat $f; rm $f").output.endswith("1\n2\n3\n4\n5\n")


def a_chatty_job_costs_later_commands_nothing(shell: Session) -> None:
    def fifty() -> float:
        began = time.monotonic()
        for _ in range(50):
            assert shell("true").exit_code == 0
        return time.monotonic() - began

    quiet = fifty()
    shell("(while :; do echo noise; sleep 0.05; done) & noisy=$!")
    assert fifty() < 20 * quiet + 1
    shell("kill $noisy; wait 2>/dev/null")
    time.sleep(0.1)


def a_hundred_commands_leave_threads_and_descriptors_as_they_were(shell: Session) -> None:
    shell("true")
    time.sleep(0.2)
    before = held_by_host()
    for _ in range(100):
        shell("true")
    after = held_by_host()
    assert after.threads < before.threads + PASSING
    assert after.descriptors < before.descriptors + PASSING


def a_command_with_crlf_line_ends_is_told_what_is_wrong(shell: Session) -> None:
    told = shell("for i in 1 2; do\r\necho $i\r\ndone")
    assert told.exit_code != 0
    assert "CRLF" in (told.notice or "")
