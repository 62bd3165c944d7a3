"""`run`: one process, streams apart, whatever is put in and comes out."""
# ruff: noqa: S101, D103, PLR2004, S108 - cases are tests: their names are sentences, their values literal

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import UnknownUserError, UsageError, WorkdirError
from ohsandbox.testing.conformance.case import PASSING, held_by_host, is_running, needs, number_nobody_sleeps, refuses
from ohsandbox.testing.conformance.scratch import SOON_S, soon

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.results import ExecResult

SIZES = (1, 4095, 65536, 65537, 200_000)
"""Around the sizes of a pipe, and of what goes inline."""


def _sh(runtime: Runtime, script: str, *arguments: str, **options: Any) -> ExecResult:
    return runtime.run(["/bin/sh", "-c", script, "sh", *arguments], **options)


# --- streams ---


def run_keeps_the_streams_apart(runtime: Runtime) -> None:
    result = _sh(runtime, "echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert (result.timed_out, result.truncated, result.not_started) == (False, False, False)
    assert result.cause is None


def run_is_binary_safe_both_ways(runtime: Runtime) -> None:
    data = bytes(range(256)) * 5 + b"\r\n\n\0"
    for stdin in (data, b"\n", b"\0", b"no newline"):
        assert runtime.run(["cat"], stdin=stdin).stdout == stdin
    assert _sh(runtime, "cat >&2", stdin=data).stderr == data


def run_passes_stdin_of_any_size_exactly(runtime: Runtime) -> None:
    for size in SIZES:
        data = os.urandom(size)
        assert runtime.run(["cat"], stdin=data).stdout == data, size
        assert runtime.run(["true"]).stdout == b""


def run_passes_50_mib_of_stdin(runtime: Runtime) -> None:
    result = runtime.run(["wc", "-c"], stdin=bytes(50 * 1024 * 1024))
    assert result.stdout.strip() == b"52428800"


def run_without_stdin_reads_end_of_file(runtime: Runtime) -> None:
    assert runtime.run(["cat"], timeout_s=5).stdout == b""
    assert _sh(runtime, 'read x; echo "[$x]"', timeout_s=5).stdout == b"[]\n"


def run_survives_stdin_that_nobody_reads(runtime: Runtime) -> None:
    for size in SIZES:
        assert runtime.run(["true"], stdin=b"x" * size).exit_code == 0
        assert runtime.run(["head", "-c", "1"], stdin=b"x" * size).stdout == b"x"
        assert runtime.run(["no-such-program"], stdin=b"x" * size).exit_code == 127
        assert runtime.run(["echo", "ok"]).stdout == b"ok\n"


def run_returns_20_mb_whole(runtime: Runtime) -> None:
    result = _sh(runtime, "head -c 20000000 /dev/zero | tr '\\0' x")
    assert len(result.stdout) == 20_000_000
    assert result.stdout.strip(b"x") == b""


def run_cuts_each_stream_at_its_limit_and_says_so(runtime: Runtime) -> None:
    result = _sh(runtime, "seq 1000; seq 5 >&2", limit_bytes=100)
    assert result.stdout == b"".join(b"%d\n" % i for i in range(1, 1001))[:100]
    assert (result.stderr, result.truncated, result.exit_code) == (b"1\n2\n3\n4\n5\n", True, 0)
    assert not _sh(runtime, "printf 1234567890", limit_bytes=10).truncated
    assert _sh(runtime, "printf 12345678901 >&2", limit_bytes=10)[2:5] == (b"1234567890", False, True)


def run_survives_a_program_that_closes_its_streams(runtime: Runtime) -> None:
    assert _sh(runtime, "exec >&- 2>&- <&-; exit 4").exit_code == 4


def run_gives_no_descriptor_of_ours(runtime: Runtime) -> None:
    assert runtime.run(["ls", "-x", "/proc/self/fd"]).stdout.split() == [b"0", b"1", b"2", b"3"]


def run_lets_a_broken_pipe_end_the_writer_silently(runtime: Runtime) -> None:
    result = _sh(runtime, "yes | head -n 1")
    assert (result.stdout, result.stderr) == (b"y\n", b"")


# --- words and environment ---


def run_passes_every_argument_as_it_is(runtime: Runtime) -> None:
    words = ["", " a  b ", "'", '"', "$HOME", "`x`", "a\nb\n", "-n", "\\", "*", "é✓", "\udcff", "\t", "!", "~", "\r"]
    result = _sh(runtime, 'for a; do printf "%s\\0" "$a"; done', *words)
    assert result.stdout == b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)


def run_passes_sixteen_arguments_of_64_kib(runtime: Runtime) -> None:
    result = _sh(runtime, 'for a; do echo "${#a}"; done', *["x" * 65536] * 16)
    assert result.stdout == b"65536\n" * 16


def run_refuses_what_no_process_can_be_given(runtime: Runtime) -> None:
    refuses(lambda: runtime.run([]), UsageError, ValueError)
    refuses(lambda: runtime.run("true"), UsageError, ValueError)
    refuses(lambda: runtime.run(["echo", "a\0b"]), UsageError, ValueError)
    refuses(lambda: runtime.run(["true"], env={"A": "\0"}), UsageError, ValueError)
    refuses(lambda: runtime.run(["true"], env={"A B": "1"}), UsageError, ValueError)


def run_sets_the_environment_of_that_process_only(runtime: Runtime) -> None:
    env = {"A": "1  2\n'3'", "EMPTY": ""}
    assert _sh(runtime, 'printf "%s|%s" "$A" "${EMPTY-unset}"', env=env).stdout == b"1  2\n'3'|"
    assert _sh(runtime, 'printf %s "${A-unset}"').stdout == b"unset"


def run_takes_a_path_of_the_callers(runtime: Runtime) -> None:
    result = runtime.run(["/bin/sh", "-c", "echo $PATH"], env={"PATH": "/nowhere"})
    assert result.stdout == b"/nowhere\n"


# --- where and who ---


def run_starts_in_the_workdir_and_not_in_a_shells(runtime: Runtime) -> None:
    runtime.execute("cd /", session="run elsewhere")
    runtime.close_session("run elsewhere")
    assert runtime.run(["pwd"]).stdout.decode() == f"{runtime.workdir}\n"


def run_takes_workdirs_relative_to_the_runtimes(runtime: Runtime) -> None:
    runtime.run(["mkdir", "-p", "below it/-x"])
    assert runtime.run(["pwd"], workdir="below it/-x").stdout.decode() == f"{runtime.workdir}/below it/-x\n"
    assert runtime.run(["pwd"], workdir="/tmp").stdout == b"/tmp\n"
    runtime.run(["rm", "-r", "below it"])


def run_in_a_missing_directory_is_a_typed_error(runtime: Runtime) -> None:
    error = refuses(lambda: runtime.run(["true"], workdir="/no/such"), WorkdirError, FileNotFoundError)
    assert "/no/such" in str(error)
    refuses(lambda: runtime.run(["cat"], workdir="/no/such", stdin=b"x" * 100_000), WorkdirError)


def run_in_a_file_is_a_typed_error(runtime: Runtime) -> None:
    refuses(lambda: runtime.run(["true"], workdir="/etc/passwd"), WorkdirError, NotADirectoryError)


def run_as_an_unknown_user_is_a_typed_error(runtime: Runtime) -> None:
    error = refuses(lambda: runtime.run(["true"], user="no-such-user"), UnknownUserError, LookupError)
    assert "no-such-user" in str(error)


@needs("users")
def run_takes_a_user_by_name_or_number(runtime: Runtime) -> None:
    assert runtime.run(["id", "-u"], user="root").stdout == b"0\n"
    assert runtime.run(["id", "-u"], user=65534, workdir="/").stdout == b"65534\n"
    assert runtime.run(["id", "-u"], user="65534", workdir="/").stdout == b"65534\n"


@needs("users")
def root_can_do_what_installing_takes(runtime: Runtime) -> None:
    script = "cd /tmp && touch owned && chown 1234 owned && stat -c %u owned && rm owned"
    assert _sh(runtime, script, user="root").stdout == b"1234\n"


# --- how it ends ---


def run_tells_exit_codes_as_they_are(runtime: Runtime) -> None:
    for code in (0, 1, 2, 124, 126, 127, 130, 137, 143, 255):
        result = _sh(runtime, f"exit {code}")
        assert (result.exit_code, result.timed_out, result.not_started) == (code, False, False)


def run_tells_the_signal_that_ended_it(runtime: Runtime) -> None:
    for name, code in (("KILL", 137), ("TERM", 143), ("SEGV", 139)):
        result = _sh(runtime, f"kill -{name} $$")
        assert (result.exit_code, result.timed_out) == (code, False)
        assert result.cause == f"signal {code - 128}"


def a_missing_program_is_127_and_not_started(runtime: Runtime) -> None:
    for name in ("no-such-program", "/no/such", "./no-such"):
        result = runtime.run([name, "x"])
        assert (result.exit_code, result.not_started, result.stdout) == (127, True, b"")
        assert name.removeprefix(".").encode() in result.stderr  # bash makes a path of it
        for wording in (b"exec", b"line ", b"ohs", b"sh:", b"OCI", b"docker"):
            assert wording not in result.stderr


def a_file_that_is_no_program_is_126_and_not_started(runtime: Runtime) -> None:
    for path in ("/etc/passwd", "/tmp"):
        result = runtime.run([path])
        assert (result.exit_code, result.not_started) == (126, True), path


def a_run_that_times_out_keeps_its_partial_output(runtime: Runtime) -> None:
    with soon():
        result = _sh(runtime, "echo out; echo err >&2; sleep 60", timeout_s=0.4)
    assert result[:4] == (None, b"out\n", b"err\n", True)
    assert result.cause == "timeout"


def a_run_that_times_out_leaves_nothing(runtime: Runtime) -> None:
    number = number_nobody_sleeps()
    script = f"trap '' TERM; sleep {number} & setsid sleep {number} & nohup sleep {number} & wait"
    assert _sh(runtime, script, timeout_s=0.4).timed_out
    assert not is_running(runtime, f"sleep {number}")


@needs("isolated")
def a_run_that_times_out_leaves_nothing_that_hides(runtime: Runtime) -> None:
    number = number_nobody_sleeps()
    assert _sh(runtime, f"env -i setsid sh -c 'sleep {number} & sleep {number}' & sleep 60", timeout_s=0.4).timed_out
    assert not is_running(runtime, f"sleep {number}")


def run_refuses_limits_that_are_no_positive_numbers(runtime: Runtime) -> None:
    for value in (0, -1, float("inf"), float("nan")):
        refuses(partial(runtime.run, ["true"], timeout_s=value), UsageError, ValueError)


@needs("isolated")
def a_run_that_kills_everything_is_a_result(runtime: Runtime) -> None:
    assert _sh(runtime, "kill -9 -1; exit 3").exit_code != 0
    assert runtime.run(["echo", "ok"]).stdout == b"ok\n"


# --- background and concurrency ---


def a_background_child_costs_nothing(runtime: Runtime) -> None:
    with soon():
        result = _sh(runtime, "sleep 60 & echo $!")
    assert _sh(runtime, f"kill {int(result.stdout)}").exit_code == 0


def late_output_of_a_background_child_reaches_no_other_run(runtime: Runtime) -> None:
    for _ in range(4):
        _sh(runtime, "(sleep 0.1; echo late; echo late >&2) & echo now")
    for _ in range(10):
        assert _sh(runtime, "sleep 0.03; echo ok")[:3] == (0, b"ok\n", b"")


def runs_of_many_threads_never_mix(runtime: Runtime) -> None:
    def ten(thread: int) -> list[bytes]:
        return [_sh(runtime, f"echo {thread} {i}; cat", stdin=b"in").stdout for i in range(10)]

    with ThreadPoolExecutor(8) as threads:
        for thread, outputs in enumerate(threads.map(ten, range(8))):
            assert outputs == [b"%d %d\nin" % (thread, i) for i in range(10)]


def run_does_not_wait_for_a_busy_shell(runtime: Runtime) -> None:
    runtime.execute("sleep 60", idle_timeout_s=0.1, session="busy meanwhile")
    with soon():
        assert runtime.run(["true"]).exit_code == 0
        runtime.close_session("busy meanwhile")


def a_hundred_runs_leave_threads_and_descriptors_as_they_were(runtime: Runtime) -> None:
    for _ in range(3):
        runtime.run(["true"])
    time.sleep(0.2)
    before = held_by_host()
    for _ in range(100):
        runtime.run(["true"])
    after = held_by_host()
    assert after.threads < before.threads + PASSING
    assert after.descriptors < before.descriptors + PASSING


# --- a terminal of a channel's own ---


@needs("stty")
def a_terminal_is_resized_and_its_program_is_told(runtime: Runtime) -> None:
    script = "trap 'stty size; exit 7' WINCH; echo ready; while :; do sleep 0.1; done"
    with runtime.open_channel(["/bin/sh", "-c", script], tty=True) as channel:
        said = b""
        while b"ready" not in said:
            said += b"".join(chunk.data for chunk in channel.read(SOON_S) or ())
        assert channel.resize(101, 37), "backend without Channel.resize"
        while chunks := channel.read(SOON_S):
            said += b"".join(chunk.data for chunk in chunks)
        assert b"37 101" in said
        assert channel.wait(SOON_S) == 7
        assert not channel.resize(80, 24), "it has ended"


def a_process_without_a_terminal_is_not_resized(runtime: Runtime) -> None:
    with runtime.open_channel(["cat"]) as channel:
        assert not channel.resize(101, 37)
        channel.close_stdin()
        assert channel.wait(SOON_S) == 0
