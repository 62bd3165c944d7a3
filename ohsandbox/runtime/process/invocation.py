"""One process: validation of its options, the shell text that executes it, and its result."""

from __future__ import annotations

import errno
import re
import secrets
import shlex
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError, WorkdirMissingError, WorkdirNotADirectoryError
from ohsandbox.runtime.process.quoting import check_env_names, quote, quote_all
from ohsandbox.runtime.results import ExecResult

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.process.worker import CallResult


def check_seconds(**values: float | None) -> None:
    """Check that limits are positive numbers.

    Raises:
        UsageError: one is not; the message names the first.
    """
    for name, value in values.items():
        if value is not None and not (_is_number(value) and 0 < value < float("inf")):
            raise UsageError(f"Invalid {name} {value!r}: give a positive number of seconds")


def check_call(
    *,
    env: Mapping[str, str] | None = None,
    user: str | int | None = None,
    workdir: str | None = None,
    on_output: Callable[..., object] | None = None,
    cancel: threading.Event | None = None,
) -> None:
    """Check the options that all calls share.

    Raises:
        UsageError: one is invalid; the message names the first. A value of env, perhaps a secret, is not shown.
    """
    check_env_names(env or {})
    for name, value in (env or {}).items():
        if not isinstance(value, str):
            raise UsageError(f"Environment value of {name!r} is of type {type(value).__name__}; give a string")
        quote(value)
    if isinstance(user, bool) or not (user is None or (isinstance(user, int) and user >= 0) or _is_word(user)):
        raise UsageError(f"Invalid user {user!r}: give a user's name or number, or leave it out")
    if workdir is not None and not _is_word(workdir):
        raise UsageError(f"Invalid workdir {workdir!r}: give a directory of the sandbox, or leave it out")
    if on_output is not None and not callable(on_output):
        raise UsageError(f"on_output is of type {type(on_output).__name__}; give a function")
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise UsageError(f"cancel is of type {type(cancel).__name__}; give a threading.Event")


def check_entered(status: str, path: str) -> None:
    """Check the status that a shell reported for a working directory: 'missing', 'file' and 'denied' are errors.

    Raises:
        WorkdirMissingError, WorkdirNotADirectoryError: with path.
    """
    if status == "missing":
        raise WorkdirMissingError(
            errno.ENOENT, "The working directory does not exist in the sandbox; make it first", path
        )
    if status in ("file", "denied"):
        reason = "The working directory is a file" if status == "file" else "The working directory may not be entered"
        raise WorkdirNotADirectoryError(errno.ENOTDIR, reason, path)


def start_script(argv: Sequence[str], env: Mapping[str, str], workdir: str) -> str:
    """POSIX shell text that enters workdir, prints the status for `check_entered` and a NUL, and execs the process.

    A relative workdir is resolved against the directory in which the shell was started.

    Raises:
        UsageError: argv or env cannot be passed to a process.
    """
    if isinstance(argv, str) or not argv or not argv[0] or argv[0].startswith("-"):
        raise UsageError(f"Invalid argv {argv!r}: expected a list of words, the first of which names a program")
    check_env_names(env)
    if any("\0" in text for text in (*argv, *env.values(), workdir)):
        raise UsageError("A NUL byte cannot stand in an argument, a variable or a directory. Send it over stdin.")
    where = shlex.quote(workdir if workdir.startswith("/") else f"./{workdir}")
    lines = [
        f"if cd -- {where} 2>/dev/null; then ohs_w=entered",
        f"elif [ -d {where} ]; then ohs_w=denied; elif [ -e {where} ]; then ohs_w=file; else ohs_w=missing; fi",
        'printf \'%s\\000\' "$ohs_w"; [ "$ohs_w" = entered ] || exit 1',
        *(f"export {name}={shlex.quote(value)}" for name, value in env.items()),
        f"exec {shlex.join(argv)}",
    ]
    return "\n".join(lines)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


FIRST_SIGNAL_CODE = 129
LAST_SIGNAL_CODE = 192
"""A shell reports death by signal N as 128 + N; Linux has 64 signals."""

_LEAST_LIMIT_KIB = 2**40


def limit_mark() -> int:
    """A random soft limit on the resident set in KiB, at least a petabyte, that marks the processes of one call.

    Linux has ignored this limit since 2.4.30. Children inherit it with an empty environment (`env -i`), as another
    user (`su -`), in a session of their own and when their parents are gone; /proc/PID/limits shows it to every user.
    """
    return _LEAST_LIMIT_KIB + secrets.randbelow(_LEAST_LIMIT_KIB)


_WORDING = re.compile(r"^(?:line )?\d*:? *(?:exec: )?(?:line \d+: )?")
"""The prefix that dash, bash and ash put before the program's name: '1: exec: ', 'line 1: exec: ', 'exec: line 0: '."""


class Process:
    """A program with its arguments and environment."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], *, merge_streams: bool = False) -> None:
        """Check the arguments. merge_streams redirects standard error to standard output.

        Raises:
            UsageError: argv is empty, or one string, or something in it or in env cannot be passed to a process.
        """
        if not argv or not argv[0]:
            raise UsageError("argv is empty; its first word is the program to run")
        if isinstance(argv, str):
            raise UsageError(f"argv is the string {argv[:50]!r}; give a list of words, or ['sh', '-c', ...]")
        check_env_names(env)
        self.mark = f"OHSANDBOX_CALL={secrets.token_hex(8)}"
        self.limit_kib = limit_mark()
        exports = b"".join(b" %s=%s" % (name.encode(), quote(value)) for name, value in env.items())
        self._merged = merge_streams
        merged = b"exec 2>&1;" if merge_streams else b""  # dash 0.5.12 drops it after a `(...)` that ends in exec
        begin = b"ulimit -S -m %d 2>/dev/null;%s" % (self.limit_kib, merged)
        self.body = b"(%sexport %s%s;exec %s)" % (begin, self.mark.encode(), exports, quote_all(argv))

    def result(self, outcome: CallResult) -> ExecResult:
        """Convert the worker's outcome to an `ExecResult`."""
        code = int(outcome.status)
        if outcome.complaint:
            said = _WORDING.sub("", outcome.complaint).encode() + b"\n"
            out, err = (said, b"") if self._merged else (outcome.stdout, said)
            return ExecResult(code, out, err, not_started=True, cause="not started")
        return ExecResult(code, outcome.stdout, outcome.stderr, truncated=outcome.truncated, cause=_cause(code))


def _cause(code: int) -> str | None:
    return f"signal {code - 128}" if FIRST_SIGNAL_CODE <= code <= LAST_SIGNAL_CODE else None
