"""Programs that are talked to: reported as waiting, answered, interrupted, polled."""
# ruff: noqa: S101, D103 - cases are tests: their names are sentences, their values literal

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError
from ohsandbox.testing.conformance.case import is_running, needs, number_nobody_sleeps, refuses
from ohsandbox.testing.conformance.scratch import SOON_S, soon

if TYPE_CHECKING:
    from ohsandbox.testing.conformance.case import Session

INTERRUPTED = 130

# --- waiting for input ---


@needs("waits")
def a_program_that_reads_is_reported_as_waiting_within_a_second(shell: Session) -> None:
    with soon():
        told = shell("printf 'name? '; read x; echo \"[$x]\"")
    assert (told.output, told.running, told.waiting_for_input, told.exit_code) == ("name? ", True, True, None)
    answered = shell.type("a  b")
    assert (answered.output, answered.exit_code, answered.running) == ("[a  b]\n", 0, False)


@needs("waits")
def what_is_typed_is_not_output(shell: Session) -> None:
    assert shell("cat >/dev/null").waiting_for_input
    assert shell.type("secret").output == ""
    assert shell.type("C-d").output == ""


@needs("waits")
def cat_answers_each_line_and_ends_with_control_d(shell: Session) -> None:
    assert shell("cat").waiting_for_input
    told = shell.type("one")
    assert (told.output, told.waiting_for_input) == ("one\n", True)
    assert shell.type("two").output == "two\n"
    assert shell.type("C-d").exit_code == 0


@needs("waits")
def each_question_of_several_is_reported(shell: Session) -> None:
    shell('read a; read b; echo "$a+$b"')
    assert shell.type("1").waiting_for_input
    assert shell.type("2").output == "1+2\n"


@needs("waits")
def text_that_ends_in_a_newline_gets_no_second_one(shell: Session) -> None:
    shell('read a; read b; echo "$a+$b"')
    assert shell.type("1\n").waiting_for_input
    assert shell.type("2\n").output == "1+2\n"


@needs("waits")
def a_key_name_is_typed_as_the_key(shell: Session) -> None:
    shell('read x; echo "[$x]"')
    assert shell.type("ENTER").output == "[]\n"


@needs("waits")
def an_arrow_key_sends_its_escape_sequence(shell: Session) -> None:
    shell('read x; printf %s "$x" | od -An -tx1')
    shell.type("UP", idle_timeout_s=0.1)
    assert shell.type("ENTER").output.split() == ["1b", "5b", "41"]


@needs("bash", "waits")
def a_password_prompt_waits_and_shows_nothing(shell: Session) -> None:
    told = shell("read -r -s -p 'Password: ' p; echo; echo ${#p}")
    assert (told.output, told.waiting_for_input) == ("Password: ", True)
    assert shell.type("hunter2").output == "\n7\n"


@needs("waits")
def a_terminal_without_echo_or_lines_waits_too(shell: Session) -> None:
    told = shell("stty raw -echo; dd bs=1 count=1 2>/dev/null")
    assert told.waiting_for_input
    assert shell.type("q").output == "q"


@needs("waits")
def a_program_that_asks_the_terminal_device_waits(shell: Session) -> None:
    assert shell("sh -c 'read x </dev/tty; echo \"<$x>\"' </dev/null").waiting_for_input
    assert shell.type("yes").output == "<yes>\n"


@needs("python3", "waits")
def a_python_program_that_asks_waits(shell: Session) -> None:
    told = shell("python3 -c 'print(int(input(\"n? \")) * 2)'")
    assert (told.output, told.waiting_for_input) == ("n? ", True)
    assert shell.type("21").output == "42\n"


@needs("python3", "waits")
def a_python_prompt_is_driven_line_by_line(shell: Session) -> None:
    assert shell("python3 -q").waiting_for_input
    assert "2\n>>> " in shell.type("print(1 + 1)").output
    ended = shell.type("exit(3)")
    assert (ended.running, ended.exit_code) == (False, 3)


@needs("root", "users", "su", "getent", "waits")
def a_program_of_another_user_waits(shell: Session) -> None:
    assert shell("su nobody -s /bin/sh -c 'read x; echo \"<$x>\"'").waiting_for_input
    assert shell.type("yes").output == "<yes>\n"
    with soon(5):
        assert not shell("su nobody -s /bin/sh -c 'sleep 1'").waiting_for_input


@needs("less", "waits")
def a_pager_waits_and_is_left_with_q(shell: Session) -> None:
    told = shell("seq 1000 >/tmp/pages-$$; less /tmp/pages-$$; echo left; rm /tmp/pages-$$")
    assert told.waiting_for_input
    assert shell.type("q").output.endswith("left\n")


@needs("vi", "waits")
def an_editor_waits_and_can_be_left(shell: Session) -> None:
    assert shell("vi /tmp/edited-by-vi").waiting_for_input
    assert shell.type(":q!").exit_code == 0


@needs("ssh-keygen", "waits")
def ssh_keygen_asks(shell: Session) -> None:
    assert shell("ssh-keygen").waiting_for_input
    assert not shell.type("C-c").running


@needs("top")
def a_screen_program_returns_and_can_be_interrupted(shell: Session) -> None:
    assert shell("top", idle_timeout_s=0.5).running
    assert not shell.type("C-c").running


# --- not waiting ---


@needs("python3")
def a_program_that_another_one_answers_does_not_wait(shell: Session) -> None:
    told = shell("""python3 - <<'END'
import os, pty, time
child, terminal = pty.fork()
if child == 0:
    os.execlp("sh", "sh", "-c", "read x </dev/tty; echo got $x")
time.sleep(1.5)
os.write(terminal, b"yes\\n")
time.sleep(0.3)
print(os.read(terminal, 100))
END
""")
    assert (told.waiting_for_input, "got yes" in told.output) == (False, True)


@needs("python3")
def a_program_that_looks_at_its_input_now_and_then_does_not_wait(shell: Session) -> None:
    program = "import select, sys; [select.select([sys.stdin], [], [], 0.05) for _ in range(15)]; print('done')"
    told = shell(f'python3 -c "{program}"')
    assert (told.output, told.waiting_for_input) == ("done\n", False)


@needs("waits")
def a_limit_counts_anew_once_a_program_has_its_input(shell: Session) -> None:
    assert shell("read x; sleep 60", timeout_s=2).waiting_for_input
    with soon(10):
        assert shell.type("go", timeout_s=None).timed_out


def a_program_with_input_from_elsewhere_does_not_wait(shell: Session) -> None:
    assert shell("echo x | cat; cat </dev/null; echo done").output.endswith("done\n")


def a_silent_program_is_not_waiting_for_input(shell: Session) -> None:
    told = shell("sleep 1; echo done")
    assert (told.output, told.waiting_for_input) == ("done\n", False)


def a_program_that_waits_for_a_pipe_is_not_waiting_for_input(shell: Session) -> None:
    told = shell("mkfifo /tmp/fifo-$$; cat /tmp/fifo-$$; rm -f /tmp/fifo-$$", idle_timeout_s=0.7)
    assert (told.running, told.waiting_for_input) == (True, False)
    shell.type("C-c")
    shell("rm -f /tmp/fifo-$$")


def a_background_reader_neither_waits_nor_blocks(shell: Session) -> None:
    assert shell("cat & echo hi").output == "hi\n"
    assert shell("kill -9 %1; wait; echo gone").output.endswith("gone\n")


# --- keys ---


def control_c_ends_the_program_and_keeps_the_shell(shell: Session) -> None:
    shell("kept=yes; cd /tmp")
    assert shell("sleep 60", idle_timeout_s=0.2).running
    told = shell.type("C-c")
    assert (told.running, told.exit_code, told.notice) == (False, 130, None)
    assert shell("echo $kept; pwd").output == "yes\n/tmp\n"


def control_c_ends_loops_functions_and_pipes(shell: Session) -> None:
    shell("kept=yes")
    for command in (
        "while :; do sleep 0.1; done",
        "f() { sleep 60; }; f",
        "sleep 60 | cat",
        "while :; do :; done",
        "(sleep 60; echo after)",
    ):
        assert shell(command, idle_timeout_s=0.2).running, command
        told = shell.type("C-c")
        assert (told.running, told.exit_code) == (False, 130), command
        assert shell("echo $kept").output == "yes\n", command


@needs("waits")
def control_c_answers_a_question_too(shell: Session) -> None:
    assert shell("read x; echo unreached").waiting_for_input
    told = shell.type("C-c")
    assert (told.running, told.exit_code) == (False, 130)
    assert "unreached" not in told.output


def control_z_stops_the_program_as_a_job(shell: Session) -> None:
    shell("sleep 60", idle_timeout_s=0.2)
    told = shell.type("C-z")
    assert (told.running, told.exit_code) == (False, 148)
    assert shell("kill -9 %1; wait %1 2>/dev/null; echo gone").output.endswith("gone\n")


def control_backslash_quits(shell: Session) -> None:
    shell("ulimit -c 0; sleep 60", idle_timeout_s=0.2)
    told = shell.type("C-\\")
    assert (told.running, told.exit_code) == (False, 131)


def a_program_may_refuse_control_c(shell: Session) -> None:
    shell("sh -c 'trap \"echo no\" INT; n=0; while [ $n -lt 6 ]; do sleep 0.2; n=$((n+1)); done'", idle_timeout_s=0.2)
    told = shell.type("C-c")
    assert (told.output, told.exit_code) == ("no\n", 0)


def another_thread_interrupts_the_session(shell: Session) -> None:
    number = number_nobody_sleeps()

    def interrupt() -> None:
        while not is_running(shell.runtime, f"sleep {number}", within_s=0):
            time.sleep(0.05)
        shell.runtime.interrupt(shell.name)

    with ThreadPoolExecutor(1) as threads:
        interrupted = threads.submit(interrupt)
        told = shell(f"sleep {number}")
        interrupted.result()
    assert (told.running, told.exit_code) == (False, 130)


def interrupting_an_idle_session_does_nothing(shell: Session) -> None:
    shell("kept=yes")
    shell.runtime.interrupt(shell.name)
    shell.runtime.interrupt("no such session")
    assert shell("echo $kept").output == "yes\n"


# --- nothing runs, something runs ---


def typing_with_nothing_running_is_a_harmless_no_op(shell: Session) -> None:
    for text in ("y", "C-c", "C-d", ""):
        told = shell.type(text)
        assert (told.output, told.exit_code, told.running) == ("", None, False)
        assert told.notice
    assert shell("echo ok").output == "ok\n"


def polling_with_nothing_running_is_a_harmless_no_op(shell: Session) -> None:
    told = shell.poll()
    assert (told.output, told.exit_code, told.running) == ("", None, False)


def a_command_while_one_runs_is_refused_and_not_run(shell: Session) -> None:
    shell("rm -f /tmp/refused; sleep 60", idle_timeout_s=0.2)
    told = shell("touch /tmp/refused")
    assert (told.output, told.exit_code, told.running) == ("", None, True)
    assert told.notice
    shell.type("C-c")
    assert shell("ls /tmp/refused").exit_code != 0


# --- returning early ---


def silence_returns_what_came_and_leaves_the_program_running(shell: Session) -> None:
    told = shell("echo a; sleep 60", idle_timeout_s=0.3)
    assert (told.output, told.running, told.timed_out, told.exit_code) == ("a\n", True, False, None)
    again = shell.poll(idle_timeout_s=0.2)
    assert (again.output, again.running) == ("", True)
    shell.type("C-c")


def output_restarts_the_silence(shell: Session) -> None:
    told = shell("for i in 1 2 3 4; do echo $i; sleep 0.2; done", idle_timeout_s=0.6)
    assert (told.output, told.exit_code) == ("1\n2\n3\n4\n", 0)


def an_interrupt_between_two_commands_of_a_list_is_not_lost(shell: Session) -> None:
    for _ in range(20):
        assert shell("while sleep 0.01; do sleep 0.01; done", idle_timeout_s=0.2).running
        assert shell.type("C-c", timeout_s=30).exit_code == INTERRUPTED


@needs("waits")
def an_empty_answer_is_an_enter_only_for_a_question_that_was_seen(shell: Session) -> None:
    ask = "printf '[Y/n] '; read -r x; echo answered"
    assert shell(f"sleep 1; {ask}; {ask}", idle_timeout_s=0.3).running
    told = shell.type("")  # too early: this only waits
    assert (told.output, told.waiting_for_input) == ("[Y/n] ", True)
    told = shell.type("")
    assert (told.output, told.waiting_for_input) == ("answered\n[Y/n] ", True)
    assert shell.type("y").output == "answered\n"
    shell(f"sleep 0.7; {ask}", idle_timeout_s=0.2)
    time.sleep(1)
    told = shell.type("")  # it waits, but nobody has seen what for
    assert (told.output, told.waiting_for_input) == ("[Y/n] ", True)
    assert shell.type("").exit_code == 0


def where_nothing_runs_there_is_no_exit_code_to_be_unknown(shell: Session) -> None:
    for told in (shell.poll(), shell.type("y"), shell.type("")):
        assert (told.nothing_ran, told.exit_code) == (True, None)
        assert "unknown" not in str(told.to_llm_content)


def polling_gives_each_output_once(shell: Session) -> None:
    assert shell("echo a; sleep 0.7; echo b; exit_code() { return 5; }; exit_code", idle_timeout_s=0.3).output == "a\n"
    told = shell.poll()
    assert (told.output, told.exit_code, told.running) == ("b\n", 5, False)


def expect_returns_as_soon_as_the_output_matches(shell: Session) -> None:
    with soon():
        told = shell("echo starting; echo port 8080 ready; sleep 60", expect=r"port (\d+) ready")
    assert (told.running, told.output) == (True, "starting\nport 8080 ready\n")
    shell.poll(idle_timeout_s=0.2)
    shell.type("C-c")


def expect_that_never_matches_ends_with_the_command(shell: Session) -> None:
    assert shell("echo a", expect="b").exit_code == 0


def an_expectation_that_would_match_for_ever_is_given_up_and_told(shell: Session) -> None:
    with soon(2 * SOON_S):
        told = shell("head -c 60000 /dev/zero | tr '\\000' x; sleep 1; echo end", expect="(x+x+)+y")
    assert (told.exit_code, told.output[-4:]) == (0, "end\n")
    assert "expect=" in (told.notice or "")


@needs("python3")
def expect_drives_a_prompt_without_waiting(shell: Session) -> None:
    shell("python3 -q", expect=">>> $")
    with soon():
        for i in range(5):
            assert f"{i * 2}\n" in shell.type(f"print({i} * 2)", expect=r"\d\n>>> $").output
    shell.type("C-d")


def an_expectation_that_is_no_pattern_is_refused_and_nothing_runs(shell: Session) -> None:
    refuses(lambda: shell("touch /tmp/expected", expect="("), UsageError, ValueError)
    assert shell("ls /tmp/expected").exit_code != 0


@needs("waits")
def a_shell_that_exec_put_in_place_of_ours_is_told(shell: Session) -> None:
    told = shell("kept=yes; exec sh -c 'read x; echo $x'")
    assert (told.waiting_for_input, "in place of this session's shell" in (told.notice or "")) == (True, True)
    told = shell.type("typed")
    assert (told.output, told.running) == ("typed\n", False)
    assert shell('echo "<$kept>"').output == "<>\n"
