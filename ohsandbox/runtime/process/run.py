"""One call of `Runtime.run`: checks its options, builds the shell line that runs the process, and makes its result."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from ohsandbox.arguments import expect
from ohsandbox.runtime.channel import FIRST_SIGNAL_CODE, KILLED
from ohsandbox.runtime.process.invocation import (
    check_argv,
    check_buffer,
    check_bytes_limit,
    check_call,
    check_entered,
    check_env_names,
    check_seconds,
    exit_code,
    limit_mark,
    quote,
    quote_all,
)
from ohsandbox.runtime.process.worker import DEFAULT_LIMIT_BYTES, CallCancelled, CallTimedOut, WorkerCall
from ohsandbox.runtime.results import ExecResult

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.process.worker import CallResult, OnBytes

_LAST_SIGNAL_CODE = 192
"""Linux has 64 signals."""

AT_ONCE_OPTIONS = frozenset({"env", "workdir", "user", "timeout_s", "limit_bytes", "merge_streams", "cancel"})
"""Options of a process that an event loop can begin; with stdin it might block, and `on_output` needs a thread."""

_WORDING = re.compile(r"^(?:line )?\d*:? *(?:exec: )?(?:line \d+: )?")
"""The prefix that dash, bash and ash put before the program's name: '1: exec: ', 'line 1: exec: ', 'exec: line 0: '."""


class Process:
    """A process to run, as a call of a worker."""

    def __init__(
        self,
        argv: Sequence[str],
        absolute: Callable[[str], str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | int | None = None,
        timeout_s: float | None = None,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        merge_streams: bool = False,
        on_output: OnBytes | None = None,
        cancel: threading.Event | None = None,
    ) -> None:
        """Check the options, those of `Runtime.run`. absolute(path) resolves the working directory.

        Raises:
            UsageError: argv is empty, or one string, or an option is invalid.
        """
        check_seconds(timeout_s=timeout_s)
        check_call(env=env, user=user, workdir=workdir, on_output=on_output, cancel=cancel)
        check_buffer("stdin", stdin)
        check_bytes_limit(limit_bytes)
        check_argv(argv)
        expect("merge_streams", merge_streams, bool, optional=False)
        env = env or {}
        check_env_names(env)
        mark, limit_kib = f"OHSANDBOX_CALL={secrets.token_hex(8)}", limit_mark()
        exports = b"".join(b" %s=%s" % (name.encode(), quote(value)) for name, value in env.items())
        self._merges = merge_streams
        merged = b"exec 2>&1;" if merge_streams else b""  # dash 0.5.12 drops it after a `(...)` that ends in exec
        begin = b"ulimit -S -m %d 2>/dev/null;%s" % (limit_kib, merged)
        body = b"(%sexport %s%s;exec %s)" % (begin, mark.encode(), exports, quote_all(argv))
        self.call = WorkerCall(
            body, absolute(workdir or "."), stdin, user=user, timeout_s=timeout_s, limit_bytes=limit_bytes,
            mark=mark, limit_kib=limit_kib, on_output=on_output, cancel=cancel, is_program=True,
        )  # fmt: skip

    def run(self, call: Callable[[WorkerCall], CallResult], ran_out_of_memory: Callable[[], str]) -> ExecResult:
        """Run the process with call(); if it was killed, call ran_out_of_memory().

        Raises:
            WorkdirError: the working directory cannot be entered.
            Exception: an error that call() or `on_output` raised.
        """
        try:
            outcome = call(self.call)
        except (CallTimedOut, CallCancelled) as ended:
            return _killed_result(ended.outcome, cancelled=isinstance(ended, CallCancelled))
        check_entered(outcome.status, self.call.workdir)
        result = self._result(outcome)
        if self.call.on_output is not None and result.not_started:
            self.call.on_output("stdout" if self._merges else "stderr", result.stdout or result.stderr)
        if result.exit_code == KILLED and ran_out_of_memory():
            return result._replace(cause="out of memory")
        return result

    def _result(self, outcome: CallResult) -> ExecResult:
        """Convert the worker's outcome to an `ExecResult`."""
        code = exit_code(outcome.status)
        if outcome.complaint:
            complaint = _WORDING.sub("", outcome.complaint).encode() + b"\n"
            out, err = (complaint, b"") if self._merges else (outcome.stdout, complaint)
            return ExecResult(code, out, err, not_started=True, cause="not started")
        cause = f"signal {code - 128}" if FIRST_SIGNAL_CODE <= code <= _LAST_SIGNAL_CODE else None
        return ExecResult(code, outcome.stdout, outcome.stderr, truncated=outcome.truncated, cause=cause)


def _killed_result(so_far: CallResult, *, cancelled: bool) -> ExecResult:
    """Return the `ExecResult` of a process that was killed because its time ran out or, if cancelled, by its caller."""
    return ExecResult(
        None, so_far.stdout, so_far.stderr, timed_out=not cancelled, truncated=so_far.truncated,
        cause="cancelled" if cancelled else "timeout", cancelled=cancelled,
    )  # fmt: skip
