"""Named sessions: made, listed, closed; apart from each other; threads that share one queue."""
# ruff: noqa: S101, D103, PLR2004, S108 - cases are tests: their names are sentences, their values literal

from __future__ import annotations

import contextlib
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import UnknownSessionError, UnknownUserError, UsageError, WorkdirError
from ohsandbox.testing.conformance.case import Session, is_running, needs, number_nobody_sleeps, refuses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.base import Runtime


def a_session_is_made_by_its_first_use(shell: Session) -> None:
    assert shell.name not in shell.runtime.list_sessions()
    shell("true")
    assert shell.name in shell.runtime.list_sessions()


def a_session_begins_with_its_options(runtime: Runtime) -> None:
    with _opened(runtime, "options", env={"GREETING": "a  b\n'c'"}, workdir="/tmp") as shell:
        assert shell('echo "$GREETING"; pwd').output == "a  b\n'c'\n/tmp\n"


@needs("users", "waits")
def a_session_runs_as_its_user(runtime: Runtime) -> None:
    with _opened(runtime, "nobody", user=65534, workdir="/tmp") as shell:
        assert shell("id -u").output == "65534\n"
        assert shell("sleep 60", timeout_s=0.3).timed_out
        assert shell("read x").waiting_for_input
        assert shell.type("y").exit_code == 0
        assert shell("exit 3").exit_code == 3
        assert shell("id -u").output == "65534\n"


def a_session_keeps_its_options_when_its_shell_is_replaced(runtime: Runtime) -> None:
    with _opened(runtime, "kept", env={"A": "1"}, workdir="/tmp") as shell:
        assert shell("A=2; kill -9 $$").notice
        assert shell("pwd; echo $A").output == "/tmp\n1\n"


@needs("waits")
def a_variable_set_later_reaches_every_shell_and_process_from_then_on(shell: Session) -> None:
    runtime, name, value = shell.runtime, _new_name(), 'it\'s "a"\n $b `c` \\'
    shell("false")
    running = shell(f"read x; echo ${{{name}-none}}", yield_s=0.3)
    runtime.set_env({name: value, f"{name}_2": ""})
    shown = f'printf "%s|" "${name}" "${{{name}_2-none}}"'
    assert runtime.run(["sh", "-c", shown]).stdout.decode() == f"{value}||"
    if running.running:
        assert shell.type("").output.endswith("none\n")
    told = shell(f"{shown}; sh -c '{shown}'")
    assert (told.output, told.exit_code, told.notice, told.background_output) == (f"{value}||" * 2, 0, None, "")
    with _opened(runtime, "later") as later:
        assert later(shown).output == f"{value}||"


def a_variable_set_again_has_the_newer_value_and_the_shell_may_have_its_own(shell: Session) -> None:
    name = _new_name()
    shell("false")
    shell.runtime.set_env({name: "old"})
    shell.runtime.set_env({name: "new"})
    told = shell(f"echo $? ${name}")
    assert told.output == "1 new\n"
    shell(f"export {name}=own")
    assert shell(f"echo ${name}").output == "own\n"
    assert shell.runtime.run(["sh", "-c", f"echo ${name}"]).stdout == b"new\n"


def a_variable_set_later_outlasts_its_shell(shell: Session) -> None:
    name = _new_name()
    shell("kill -9 $$")
    shell.runtime.set_env({name: "kept"})
    assert shell(f"echo ${name}; kill -9 $$").output == "kept\n"
    assert shell(f"echo ${name}").output == "kept\n"


def a_variable_that_no_shell_can_export_is_refused_and_sets_nothing(runtime: Runtime) -> None:
    name = _new_name()
    for wrong in ({"1A": "x"}, {"A B": "x"}, {"OHSANDBOX_SESSION": "x"}, {"PPID": "1"}, {"A": "\0"}):
        refuses(lambda: runtime.set_env({name: "x", **wrong}), UsageError, ValueError)  # noqa: B023 - called at once
    assert runtime.run(["sh", "-c", f"echo ${{{name}-none}}"]).stdout == b"none\n"


def a_session_that_is_open_cannot_be_opened(runtime: Runtime) -> None:
    with _opened(runtime, "twice"):
        refuses(lambda: runtime.open_session("twice"), UsageError, ValueError)


def a_session_in_no_directory_or_for_no_user_is_refused_and_not_listed(runtime: Runtime) -> None:
    refuses(lambda: runtime.open_session("bad", workdir="/no/such"), WorkdirError, FileNotFoundError)
    refuses(lambda: runtime.open_session("bad", workdir="/etc/passwd"), WorkdirError, NotADirectoryError)
    refuses(lambda: runtime.open_session("bad", user="no-such-user"), UnknownUserError, LookupError)
    assert "bad" not in runtime.list_sessions()


def sessions_are_listed_in_the_order_of_their_making(runtime: Runtime) -> None:
    with _opened(runtime, "z"), _opened(runtime, "a"):
        assert [name for name in runtime.list_sessions() if name in "za"] == ["z", "a"]


def closing_a_session_that_is_unknown_is_an_error(runtime: Runtime) -> None:
    refuses(lambda: runtime.close_session("no such"), UnknownSessionError, LookupError)


def closing_a_session_ends_what_it_runs(runtime: Runtime) -> None:
    number = number_nobody_sleeps()
    with _opened(runtime, "ends") as shell:
        assert shell(f"sleep {number}", idle_timeout_s=0.2).running
    assert not is_running(runtime, f"sleep {number}")


def a_closed_name_can_be_used_again_and_remembers_nothing(runtime: Runtime) -> None:
    with _opened(runtime, "again") as shell:
        shell("export A=1; cd /tmp")
    with _opened(runtime, "again") as shell:
        assert shell('echo "<$A>"; pwd').output == f"<>\n{runtime.workdir}\n"


def a_session_may_have_any_name(runtime: Runtime) -> None:
    for name in ("", "a b/../c", "ü\n", "x" * 300, "$(id)", "-rf"):
        with _opened(runtime, name) as shell:
            assert shell("echo ok").output == "ok\n"


def sessions_share_no_state(runtime: Runtime) -> None:
    with _opened(runtime, "left") as left, _opened(runtime, "right") as right:
        left("export A=1; cd /tmp; f() { echo f; }")
        assert right('echo "<$A>"; pwd').output == f"<>\n{runtime.workdir}\n"
        assert right("f").exit_code == 127


def sessions_run_side_by_side(runtime: Runtime) -> None:
    """Each waits until all four have begun, which one after the other they never would."""
    meet = "mkdir -p /tmp/side-by-side; : >/tmp/side-by-side/$$; set -- /tmp/side-by-side/*"
    wait = "while [ $# -lt 4 ]; do sleep 0.05; set -- /tmp/side-by-side/*; done; echo $$"
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(4) as threads:
        shells = [stack.enter_context(_opened(runtime, f"side {i}")) for i in range(4)]
        told = list(threads.map(lambda shell: shell(f"{meet}; {wait}"), shells))
    runtime.run(["rm", "-rf", "/tmp/side-by-side"])
    assert len({one.output for one in told}) == 4


def threads_of_one_session_queue_and_no_output_is_mixed(shell: Session) -> None:
    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(lambda i: shell(f"echo a{i}; sleep 0.02; echo b{i}").output, range(16)))
    assert told == [f"a{i}\nb{i}\n" for i in range(16)]


def the_limit_counts_from_the_start_of_the_command_not_of_the_queue(shell: Session) -> None:
    shell("true")
    with ThreadPoolExecutor(3) as threads:
        told = list(threads.map(lambda _: shell("sleep 0.5", timeout_s=0.9), range(3)))
    assert [(one.timed_out, one.exit_code) for one in told] == [(False, 0)] * 3


def a_session_that_is_busy_can_be_closed_from_another_thread(shell: Session) -> None:
    with ThreadPoolExecutor(1) as threads:
        shell("true")
        running = threads.submit(shell, "sleep 60")
        time.sleep(0.3)
        shell.runtime.close_session(shell.name)
        with contextlib.suppress(Exception):  # a result that says so, or an error: but soon
            running.result(5)
        assert running.done()


@contextlib.contextmanager
def _opened(runtime: Runtime, name: str, **options: Any) -> Iterator[Session]:
    runtime.open_session(name, **options)
    try:
        yield Session(runtime, name)
    finally:
        runtime.close_session(name)


def _new_name() -> str:
    """Of a variable that no other case has."""
    return f"SET_{secrets.token_hex(4)}"
