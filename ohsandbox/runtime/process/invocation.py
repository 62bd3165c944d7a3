"""Quotes shell words, checks options of calls, and writes the shell text that executes a process."""

from __future__ import annotations

import errno
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ohsandbox.arguments import expect, is_number, wrong
from ohsandbox.errors import UsageError, WorkdirMissingError, WorkdirNotADirectoryError
from ohsandbox.text import VARIABLE_NAME

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

NEWLINE = "ohs_nl='\n'"
"""Shell line that must run once before a shell reads words of `quote`."""

"""A name that POSIX lets a shell export (XBD 3.230)."""

_RESERVED_ENV = re.compile(r"(?i:ohs_|ohsandbox_).*|UID|EUID|PPID|BASHOPTS|SHELLOPTS")
"""Our names, and those that bash has made read-only: an open shell cannot export them."""


def quote(text: str | bytes, *, newline: bytes = b"ohs_nl") -> bytes:
    """Quote text as one shell word without a newline, for a shell that has run NEWLINE or has a newline in `newline`.

    Raises:
        UsageError: text contains a NUL, which no argument or command can contain.
    """
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    if b"\0" in raw:
        raise UsageError("A command, argument or path contains a NUL byte. Pass such data on stdin or in a file.")
    return b"'" + raw.replace(b"'", b"'\\''").replace(b"\n", b"'\"$%s\"'" % newline) + b"'"


def quote_all(words: Iterable[str]) -> bytes:
    """Quote each word; join them with blanks."""
    return b" ".join(quote(word) for word in words)


_SCRIPT_LOST = 97
"""Exit code of a shell from `script_on_stdin` that could not read its script; none of our scripts uses it."""
_END = "#ohs-end"
_READER = (
    ": a helper of ohsandbox;ohs_x=$(dd bs=SIZE count=1 iflag=fullblock 2>/dev/null);"
    'case $ohs_x in "")ohs_no_dd=yes;ohs_nl=$(printf "\\n.");ohs_nl=${ohs_nl%.};while IFS= read -r ohs_l;'
    'do ohs_x=$ohs_x$ohs_l$ohs_nl;[ "$ohs_l" != "END" ]||break;done;esac;'
    'case $ohs_x in *"END"*)eval "$ohs_x";;*)exit LOST;esac'
)
"""dd reads exactly the script, in 1 ms. Without dd, `read` reads it byte by byte, 0.1 s for 15 KB."""


def script_on_stdin(script: str, *arguments: str) -> tuple[list[str], bytes]:
    """Return the argv of a shell that reads its script from stdin, and the script; `ps` inside shows one short line.

    The script may read the rest of stdin. The shell exits with _SCRIPT_LOST if the script does not arrive.
    """
    raw = f"{script}\n{_END}\n".encode("utf-8", "surrogateescape")
    reader = _READER.replace("SIZE", str(len(raw))).replace("END", _END).replace("LOST", str(_SCRIPT_LOST))
    return ["/bin/sh", "-c", reader, *arguments], raw


Buffer = bytes | bytearray | memoryview
"""The types that are accepted as bytes."""


def check_seconds(**values: float | None) -> None:
    """Raise UsageError for the first value that is not a positive number."""
    for name, value in values.items():
        if value is not None and not (is_number(value) and 0 < value < float("inf")):
            raise wrong(name, value, "Give a positive number of seconds.")


def check_bytes_limit(limit_bytes: object) -> None:
    """Raise UsageError for a limit that is not a number of bytes."""
    if not isinstance(limit_bytes, int) or isinstance(limit_bytes, bool) or limit_bytes < 0:
        raise wrong("limit_bytes", limit_bytes, "Give a number of bytes, 0 or more.")


def check_buffer(name: str, value: object) -> None:
    """Raise UsageError for data that are not bytes; the message does not quote them, since they may be secret."""
    if not isinstance(value, Buffer):
        remedy = f"Encode the text: {name}=text.encode()." if isinstance(value, str) else "Give bytes."
        raise UsageError(f"{name} is of type {type(value).__name__}; expected are bytes.", remedy=remedy)


_MAX_MODE = 0o7777
READABLE = 0o400
"""Least permission bits of a mode that is considered intended: its owner can read."""


def check_mode(mode: object) -> None:
    """Raise UsageError for a file mode that is neither None nor permission bits."""
    is_number = isinstance(mode, int) and not isinstance(mode, bool)
    if mode is not None and not (is_number and 0 <= mode <= _MAX_MODE):  # type: ignore[operator]
        raise wrong("mode", mode, "Give permission bits as a number, such as 0o644.")
    if mode is not None and _reads_as_octal(mode):  # type: ignore[arg-type] # it is a number
        raise wrong("mode", mode, f"Write 0o{mode} for the usual permission bits: in octal, this is {mode:#o}.")


def _reads_as_octal(mode: int) -> bool:
    """Whether the mode's decimal digits are usual permission bits and its value is not, as for 644, which is 0o1204."""
    if _grants_less_to_others(mode):
        return False
    digits = str(mode)
    if len(digits) != len("644") or set(digits) & set("89"):
        return False
    return int(digits, 8) >= READABLE and _grants_less_to_others(int(digits, 8))


def _grants_less_to_others(mode: int) -> bool:
    """Whether these are permission bits alone that grant a group no more than its owner, and others no more than it."""
    owner, group, others = mode >> 6, mode >> 3 & 7, mode & 7
    return owner <= 7 and not group & ~owner and not others & ~group  # noqa: PLR2004 - three bits


def check_command(command: object, session: object, pattern: object, is_input: object) -> None:
    """Check the arguments of `Runtime.execute`.

    Raises:
        UsageError: one is not text, the command contains a NUL, or is_input is not a bool.
    """
    if not isinstance(command, str):
        remedy = ", or pass the list to run()" if isinstance(command, list | tuple) else ": the text of a shell command"
        raise wrong("command", command, f"Give a string{remedy}.")
    if "\0" in command:
        raise UsageError("The command contains a NUL byte, which no command can. Write such data to a file first.")
    check_session(session)
    if pattern is not None and not isinstance(pattern, str):
        raise wrong("expect", pattern, "Give a regular expression as a string.")
    expect("is_input", is_input, bool, optional=False)


def check_session(name: object) -> None:
    """Raise UsageError for a session's name that is not text."""
    if not isinstance(name, str):
        raise wrong("session", name, "Give a session's name as a string.")


def check_env_names(names: Iterable[str]) -> None:
    """Raise UsageError for the first name that a shell cannot export."""
    for name in names:
        if not isinstance(name, str) or not VARIABLE_NAME.fullmatch(name):
            raise UsageError(f"Environment name {name!r} is invalid. Use letters, digits and underscores.")


def check_env(env: Mapping[str, str] | None) -> None:
    """Raise UsageError unless env maps valid names to strings; a value, perhaps a secret, is not shown."""
    if env is not None and not isinstance(env, Mapping):
        raise UsageError(f"env is of type {type(env).__name__}. Give a dict of names and values, such as {{'A': '1'}}.")
    check_env_names(env or {})
    for name, value in (env or {}).items():
        if not isinstance(value, str):
            raise UsageError(f"Environment value of {name!r} is of type {type(value).__name__}. Give a string.")
        quote(value)


def check_settable(env: Mapping[str, str], secret_names: Iterable[str]) -> None:
    """Check variables that open shells are to export.

    Raises:
        UsageError: `check_env` refuses them, or a name is reserved, or is a secret's.
    """
    if env is None:
        raise wrong("env", env, "Give a dict of names and values, such as {'A': '1'}.")
    check_env(env)
    for name in env:
        if _RESERVED_ENV.fullmatch(name):
            raise UsageError(f"Environment name {name!r} is reserved: shells or ohsandbox set it. Choose another name.")
        if name in secret_names:
            raise UsageError(f"{name!r} is a secret of this runtime, and keeps its value. Choose another name.")


def exports(env: Mapping[str, str], *, newline: bytes = b"ohs_nl") -> bytes:
    """Return one line of shell, for a shell as in `quote`, that exports each variable silently; empty for no variables.

    A variable that the shell has made read-only keeps its value, and the others are still exported.
    """
    quoted = {name: quote(value, newline=newline) for name, value in env.items()}
    return b"".join(b"{ command export %s=%s; } 2>/dev/null;" % (name.encode(), quoted[name]) for name in quoted)


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
    check_env(env)
    if isinstance(user, bool) or not (user is None or (isinstance(user, int) and user >= 0) or _is_word(user)):
        raise wrong("user", user, "Give a user's name or number, or leave it out.")
    if workdir is not None and not _is_word(workdir):
        raise wrong("workdir", workdir, "Give a directory of the sandbox as a string, or leave it out.")
    if on_output is not None and not callable(on_output):
        raise UsageError(f"on_output is of type {type(on_output).__name__}. Give a function.")
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise UsageError(f"cancel is of type {type(cancel).__name__}. Give a threading.Event.")


def check_argv(argv: object) -> None:
    """Raise UsageError unless argv, an argument of `Runtime.run`, is a sequence of strings with at least one."""
    if isinstance(argv, str):
        remedy = "Give a list of words, such as ['ls', '-l'], or call execute() for a shell command."
        raise wrong("argv", argv, remedy)
    if not isinstance(argv, Sequence) or isinstance(argv, Buffer):
        raise wrong("argv", argv, "Give a list of words, such as ['ls', '-l'].")
    if not argv or not argv[0]:
        raise UsageError("argv is empty. Give a list of words, the first of which is the program to run.")
    for number, word in enumerate(argv):
        if not isinstance(word, str):
            raise wrong(f"argv[{number}]", word, "Give a string.")


def _is_word(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def check_entered(status: str, path: str) -> None:
    """Raise the WorkdirError for a shell's status 'missing', 'file' or 'denied' of a working directory."""
    if status == "missing":
        raise WorkdirMissingError(
            errno.ENOENT, "The working directory does not exist in the sandbox", path, remedy="Make it first."
        )
    if status in ("file", "denied"):
        reason = "The working directory is a file" if status == "file" else "The working directory may not be entered"
        raise WorkdirNotADirectoryError(errno.ENOTDIR, reason, path, remedy="Name a directory that can be entered.")


def start_script(argv: Sequence[str], env: Mapping[str, str], workdir: str) -> str:
    """Return POSIX shell text that enters workdir, prints the status for `check_entered` and a NUL, and execs argv.

    A relative workdir is resolved against the directory in which the shell was started.

    Raises:
        UsageError: argv or env cannot be passed to a process.
    """
    if isinstance(argv, str) or not argv or not argv[0] or argv[0].startswith("-"):
        raise UsageError(f"Invalid argv {argv!r}. Give a list of words, the first of which names a program.")
    check_env_names(env)
    if any("\0" in text for text in (*argv, *env.values(), workdir)):
        raise UsageError("An argument, variable or directory contains a NUL byte. Send such data over stdin.")
    directory = shlex.quote(workdir if workdir.startswith("/") else f"./{workdir}")
    lines = [
        f"if cd -- {directory} 2>/dev/null; then ohs_w=entered",
        f"elif [ -d {directory} ]; then ohs_w=denied; elif [ -e {directory} ]; then ohs_w=file; else ohs_w=missing; fi",
        'printf \'%s\\000\' "$ohs_w"; [ "$ohs_w" = entered ] || exit 1',
        *(f"export {name}={shlex.quote(value)}" for name, value in env.items()),
        f"exec {shlex.join(argv)}",
    ]
    return "\n".join(lines)


def in_subshell(command: str, env: Mapping[str, str], workdir: str | None) -> str:
    """Return shell text that runs command in a subshell of the session with more environment, in another directory."""
    exports = "".join(f"command export {name}={shlex.quote(value)};" for name, value in env.items())
    enter = f"command cd -- {shlex.quote(workdir)}&&" if workdir else ""
    return f"({exports}{enter}command eval {shlex.quote(command)})"


_MAX_CODE = 255
_KILLED_BY = 128
_LEAST_LIMIT_KIB = 2**40


def exit_code(status: str) -> int:
    """Return the exit code that a shell reports, with a signal's number as 128 + N, as most shells tell it.

    ksh93 adds 256 to it, and yash 384.
    """
    code = int(status)
    return code if code <= _MAX_CODE else _KILLED_BY + code % _KILLED_BY


def limit_mark() -> int:
    """Return a random soft limit on the resident set in KiB, at least a petabyte, that marks the processes of one call.

    Linux has ignored this limit since 2.4.30. Children inherit it even with an empty environment (`env -i`), as another
    user (`su -`), in another session and after their parents' end; /proc/PID/limits shows it to every user.
    """
    return _LEAST_LIMIT_KIB + secrets.randbelow(_LEAST_LIMIT_KIB)
