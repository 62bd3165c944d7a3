"""`execute`, called from outside: cancelled, heard, queued, and with an environment, directory and user each."""
# ruff: noqa: S101, D103, PLR2004, S108 - cases are tests: their names are sentences, their values literal

from __future__ import annotations

import asyncio
import shlex
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from ohsandbox.errors import UnknownUserError, UsageError, WorkdirError
from ohsandbox.runtime.aio import to_thread
from ohsandbox.secrets import Secrets
from ohsandbox.testing.conformance.case import already_set, is_running, needs, number_nobody_sleeps, refuses, set_after
from ohsandbox.testing.conformance.scratch import STUBBORN, soon

if TYPE_CHECKING:
    from ohsandbox.testing.conformance.case import Session

# --- execute, cancelled ---


def a_cancelled_command_is_gone_at_once_and_the_shell_is_kept(shell: Session) -> None:
    number = number_nobody_sleeps()
    shell("cd /tmp; KEPT=1")
    with soon():
        ended = shell(f"echo so far; sleep {number} & setsid sleep {number} & sleep {number}", cancel=set_after(0.3))
        assert (ended.cancelled, ended.timed_out, ended.running, ended.exit_code) == (True, False, False, None)
        assert ended.output == "so far\n"
        after = shell("echo $KEPT; pwd")
    assert (after.output, after.notice) == ("1\n/tmp\n", None)
    assert not is_running(shell.runtime, f"sleep {number}")


def a_cancelled_command_that_ignores_signals_is_gone_too(shell: Session) -> None:
    number = number_nobody_sleeps()
    shell("cd /tmp; export KEPT=1")
    with soon():
        ended = shell(f"sh -c {shlex.quote(STUBBORN.format(number))}", cancel=set_after(0.3))
        assert ended.cancelled
        assert shell("echo $KEPT; pwd").output == "1\n/tmp\n"
    assert not is_running(shell.runtime, f"sleep {number}")


def a_shell_that_ignores_signals_itself_is_replaced_when_cancelled(shell: Session) -> None:
    number = number_nobody_sleeps()
    shell("cd /tmp; export KEPT=1")
    ended = shell(STUBBORN.format(number), cancel=set_after(0.3))
    assert ended.cancelled
    assert ended.notice
    assert shell("echo $KEPT; pwd").output == "1\n/tmp\n"
    assert not is_running(shell.runtime, f"sleep {number}")


def a_program_that_waits_for_input_and_a_poll_are_cancelled(shell: Session) -> None:
    assert shell("sleep 60", yield_s=0.2).running
    assert shell.poll(cancel=set_after(0.2)).cancelled
    assert shell("sleep 60; read x", idle_timeout_s=0.2).running
    assert shell.type("y", cancel=set_after(0.2)).cancelled
    assert shell.poll().running is False


def a_command_cancelled_before_its_turn_never_runs(shell: Session) -> None:
    shell("true")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(shell, "sleep 4; echo first")
        time.sleep(0.3)
        told = shell("touch /tmp/never-in-turn", cancel=set_after(0.2))
        assert not first.done()
        assert (told.cancelled, told.running, told.exit_code) == (True, False, None)
        assert "nothing of it ran" in (told.notice or "")
        assert told.queued_s > 0.1
        assert first.result().output == "first\n"
    told = shell("touch /tmp/never-in-turn", cancel=already_set())
    assert (told.cancelled, told.queued_s) == (True, 0)
    assert shell("ls /tmp/never-in-turn").exit_code != 0


def asyncio_cancels_a_command(shell: Session) -> None:
    number = number_nobody_sleeps()
    shell("KEPT=1")

    async def use() -> None:
        execute = partial(shell.runtime.execute, session=shell.name)
        try:
            await asyncio.wait_for(to_thread(execute, f"sleep {number}"), 0.3)
        except TimeoutError:
            told = await to_thread(execute, "echo $KEPT")
            assert told.output == "1\n"
        else:
            raise AssertionError("not cancelled")

    asyncio.run(use())
    assert not is_running(shell.runtime, f"sleep {number}")


# --- execute, returned from and queued ---


def a_command_is_left_running_when_its_caller_yields(shell: Session) -> None:
    told = shell("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.2; done; (exit 7)", yield_s=0.7)
    assert (told.running, told.timed_out, told.exit_code) == (True, False, None)
    assert told.output.startswith("1\n2\n")
    rest = shell.poll()
    assert (rest.exit_code, rest.running) == (7, False)
    assert told.output + rest.output == "1\n2\n3\n4\n5\n6\n7\n8\n"


def a_command_that_ends_before_its_caller_yields_is_done(shell: Session) -> None:
    told = shell("echo done", yield_s=10)
    assert (told.output, told.exit_code, told.running) == ("done\n", 0, False)


def a_call_that_waited_says_so_and_its_time_begins_with_its_command(shell: Session) -> None:
    shell("true")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(shell, "sleep 1.6")
        time.sleep(0.2)
        told = shell("sleep 0.5; echo second", timeout_s=1.5)
        assert first.result().queued_s == 0
    assert (told.output, told.timed_out) == ("second\n", False)
    assert told.queued_s > 1
    assert "Waited" in (told.notice or "")
    assert shell("true").queued_s == 0


def a_caller_that_yields_while_it_queues_is_told_that_nothing_ran(shell: Session) -> None:
    shell("true")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(shell, "sleep 1.5")
        time.sleep(0.2)
        told = shell("touch /tmp/never-in-queue", yield_s=0.3)
        assert (told.running, told.exit_code) == (True, None)
        assert "Not run" in (told.notice or "")
        first.result()
    assert shell("ls /tmp/never-in-queue").exit_code != 0


def a_command_behind_one_that_was_left_running_is_refused_with_what_to_do(shell: Session) -> None:
    assert shell("sleep 60", yield_s=0.2).running
    with soon():
        told = shell("touch /tmp/never-behind", timeout_s=60)
    assert told.running
    for remedy in ("empty command", "is_input", "C-c", "another session"):
        assert remedy in (told.notice or "")
    assert shell.type("C-c").exit_code == 130
    assert shell("ls /tmp/never-behind").exit_code != 0


# --- execute, heard ---


def what_a_command_prints_is_heard_while_it_runs(shell: Session) -> None:
    heard: list[str] = []
    stop = threading.Event()

    def hear(text: str) -> None:
        heard.append(text)
        if "first" in text:
            stop.set()

    assert shell("echo first; sleep 60", on_output=hear, cancel=stop).cancelled
    assert "".join(heard).startswith("first\n")


def what_is_heard_of_a_command_is_its_output(shell: Session) -> None:
    for command in (
        "seq 20000",
        "printf 'no end'",
        "printf '\\033[1mbold\\033[0m\\n'",
        "printf 'caf\\303\\251\\r\\n'",
        ":",
    ):
        heard: list[str] = []
        told = shell(command, on_output=heard.append)
        assert "".join(heard) == told.output, command
    heard = []
    told = shell("for i in 1 2 3; do printf '%s0%%\\r' $i; sleep 0.2; done; echo done", on_output=heard.append)
    assert (told.output, "".join(heard)) == ("done\n", "10%\r20%\r30%\rdone\n")


def a_listener_that_comes_later_hears_what_nobody_was_given(shell: Session) -> None:
    first = shell("echo a; sleep 0.5; echo b; sleep 0.5; echo c; sleep 60", yield_s=0.25)
    time.sleep(0.6)
    heard: list[str] = []
    told = shell.poll(yield_s=1, on_output=heard.append)
    assert (first.output, told.output, "".join(heard)) == ("a\n", "b\nc\n", "b\nc\n")
    shell.type("C-c")


def a_command_waits_for_who_hears_it(shell: Session) -> None:
    first = threading.Event()
    gone: list[int | None] = []

    def hear(_text: str) -> None:
        if not first.is_set():
            first.set()
            time.sleep(1)
            gone.append(shell.runtime.run(["test", "-e", "/tmp/command-is-through"]).exit_code)

    script = "rm -f /tmp/command-is-through; head -c 30000000 /dev/zero | tr '\\0' x; : >/tmp/command-is-through"
    told = shell(script, on_output=hear)
    assert (gone, told.exit_code, told.output_bytes) == ([1], 0, 30_000_000)


def an_error_of_who_hears_a_command_ends_it_and_is_raised(shell: Session) -> None:
    number = number_nobody_sleeps()

    def fail(text: str) -> None:
        raise ZeroDivisionError(text)

    shell("KEPT=1")
    error = refuses(partial(shell, f"echo x; sleep {number}", on_output=fail), ZeroDivisionError)
    assert error.args == ("x\n",)
    assert not is_running(shell.runtime, f"sleep {number}")
    assert shell("echo $KEPT").output == "1\n"
    refuses(partial(shell, "echo y", on_output=fail), ZeroDivisionError)
    assert shell("echo $KEPT").output == "1\n"


def a_command_whose_listener_is_slow_is_still_ended_in_time(shell: Session) -> None:
    with soon():
        told = shell("yes", timeout_s=0.5, on_output=lambda _: time.sleep(0.1))
        assert told.timed_out
    assert told.notice is None


def a_listener_that_calls_its_own_session_is_refused_and_others_serve_it(shell: Session) -> None:
    refuses(partial(shell, "echo x", on_output=lambda _: shell("true")), UsageError, ValueError)
    served: list[int | None] = []
    told = shell("echo x", on_output=lambda _: served.append(shell.runtime.execute("true", session="other").exit_code))
    assert (told.output, served) == ("x\n", [0])
    shell.runtime.close_session("other")


def a_secret_is_masked_however_its_output_is_cut(shell: Session) -> None:
    runtime, before = shell.runtime, shell.runtime.secrets
    runtime.give_secrets(Secrets({"TOKEN": "hunter2-hunter2"}))
    try:
        heard: list[str] = []
        told = shell("printf 'a hunter2'; sleep 0.3; printf -- '-hunter2 z'; sleep 0.3; echo", on_output=heard.append)
        assert "".join(heard) == told.output == "a <secret:TOKEN> z\n"
        heard.clear()
        told = shell("printf 'a hunter2'; sleep 2; echo; exit 3", on_output=heard.append, yield_s=0.5)
        assert "hunter" not in "".join(heard) + told.output
        assert shell.poll(on_output=heard.append).exit_code == 3
        assert "".join(heard) == "a hunter2\n"
    finally:
        runtime.give_secrets(before)


# --- execute, with an environment, directory and user of this call ---


def environment_and_directory_of_one_call_end_with_it(shell: Session) -> None:
    shell("cd /; export A=old; f() { echo f $A; }")
    env = {"A": "1  '2'\n\"$x\"", "EMPTY": ""}
    told = shell('f; printf "%s|" "${EMPTY-unset}"; pwd; cd /etc; A=changed; B=1', env=env, workdir="/tmp")
    assert (told.output, told.cwd) == ("f 1 '2' \"$x\"\n|/tmp\n", "/")
    assert shell('f; echo "${EMPTY-unset}${B-unset}"; pwd').output == "f old\nunsetunset\n/\n"


@needs("waits")
def a_call_with_an_environment_ends_and_fails_as_any_other(shell: Session) -> None:
    env = {"A": "1"}
    assert shell("exit 3", env=env).exit_code == 3
    assert shell("echo a) ; (", env=env).exit_code != 0
    assert shell("cat <<'x'\n$A\nx\n# end", env=env).output == "$A\n"
    assert shell("head -n 1", env=env).waiting_for_input
    assert shell.type("y", timeout_s=10).output == "y\n"
    assert shell("sleep 60", env=env, timeout_s=0.3).timed_out
    assert shell("echo '" + "x" * 20_000 + "' | wc -c; echo $A", env=env).output.split() == ["20001", "1"]
    assert shell("echo ${A-unset}").output == "unset\n"


def a_directory_that_a_call_cannot_have_is_a_typed_error(shell: Session) -> None:
    refuses(partial(shell, "true", workdir="/no/such"), WorkdirError, FileNotFoundError)
    refuses(partial(shell, "true", workdir="/etc/passwd"), WorkdirError, NotADirectoryError)
    shell.runtime.run(["mkdir", "-p", "below"])
    assert shell("pwd", workdir="below").output == f"{shell.runtime.workdir}/below\n"


@needs("users")
def a_call_as_another_user_has_a_shell_of_its_own_that_stays(shell: Session) -> None:
    shell("A=mine")
    told = shell("id -u; cd /tmp; A=theirs", user=65534)
    assert (told.output, told.session) == ("65534\n", f"{shell.name}@65534")
    assert shell("pwd; echo $A", user=65534).output == "/tmp\ntheirs\n"
    assert shell('echo "$A"; pwd', user=65534, workdir="/", env={"A": "call"}).output == "call\n/\n"
    assert shell("echo $A").output == "mine\n"
    refuses(partial(shell, "true", user="no-such-user"), UnknownUserError, LookupError)
    assert f"{shell.name}@no-such-user" not in shell.runtime.list_sessions()
    shell.runtime.close_session(f"{shell.name}@65534")
