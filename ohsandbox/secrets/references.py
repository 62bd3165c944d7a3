"""Where a secret's value is: `env:NAME` or `file:PATH`. Settings and command lines hold that, never a value."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_VALUE_BYTES = 64 * 1024
"""Half of what Linux lets one variable hold (MAX_ARG_STRLEN, 128 KiB); keys and kubeconfigs are far smaller."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = re.compile(
    r"PATH|HOME|PWD|OLDPWD|SHELL|USER|LOGNAME|IFS|ENV|BASH.*|PS\d|PROMPT_COMMAND|SHELLOPTS|UID|EUID|PPID|TERM|TMOUT"
    r"|LD_.*|OHSANDBOX.*|ohs_.*|OHS_.*"
)
"""Variables that shells, the loader or we ourselves give a meaning; a value of a user's in them breaks commands."""


class Found(NamedTuple):
    """A value, and what a person should be told about where it was."""

    value: str
    warnings: tuple[str, ...] = ()


def check_name(name: str) -> str:
    """The name, which becomes a variable.

    Raises:
        UsageError: it cannot be one, or has a meaning already. A long or odd name is not quoted: it may be a value.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            "A secret's name is not letters, digits and underscores, the first no digit. "
            "Write NAME, NAME=env:OTHER or NAME=file:PATH, and never the value itself."
        )
    if _OURS.fullmatch(name):
        raise UsageError(f"A secret cannot be named {name!r}: commands need that variable. Choose another name.")
    return name


def check_reference(name: str, reference: str) -> str:
    """The reference.

    Raises:
        UsageError: it is none. What was written is not quoted: it may be the value.
    """
    kind, _, rest = reference.partition(":")
    if kind not in {"env", "file"} or not rest:
        raise UsageError(
            f"Secret {name!r} does not say where its value is. Write env:VARIABLE or file:PATH, never the value: "
            "settings and command lines are read by others."
        )
    if kind == "env" and not _NAME.fullmatch(rest):
        raise UsageError(f"Secret {name!r} is to come from a variable whose name is no variable's. Write env:VARIABLE.")
    return reference


def parse_flags(flags: Iterable[str]) -> dict[str, str]:
    """References by name, of `NAME`, `NAME=env:OTHER` and `NAME=file:PATH`.

    Raises:
        UsageError: one is none of these, or a name is given twice.
    """
    references: dict[str, str] = {}
    for flag in flags:
        name, equals, reference = flag.partition("=")
        check_name(name)
        if name in references:
            raise UsageError(f"Secret {name!r} is given twice. Leave one out.")
        references[name] = check_reference(name, reference) if equals else f"env:{name}"
    return references


def look_up(name: str, reference: str, environ: Mapping[str, str]) -> Found:
    """The value that a checked reference names. One newline at a file's end is not part of it.

    Raises:
        UsageError: there is none, or it cannot be a variable's value. Never quotes a value.
    """
    kind, _, rest = reference.partition(":")
    found = _from_file(name, rest) if kind == "file" else Found(environ.get(rest, ""))
    if not found.value and kind == "env":
        raise UsageError(f"Secret {name!r} is to come from the variable {rest!r}, which is not set. Set it.")
    if not found.value:
        raise UsageError(f"Secret {name!r} is to come from file {rest!r}, which is empty. Put the value into it.")
    if len(found.value.encode("utf-8", "surrogateescape")) > MAX_VALUE_BYTES:
        raise UsageError(
            f"Secret {name!r} is over {MAX_VALUE_BYTES} bytes. Bring such a file into the sandbox instead."
        )
    return found


def _from_file(name: str, path: str) -> Found:
    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            mode = stat.S_IMODE(file.stat().st_mode)
            data = opened.read(MAX_VALUE_BYTES + 2)
    except OSError as error:
        raise UsageError(f"Secret {name!r}: file {path!r} cannot be read: {error.strerror}. Mend it.") from None
    if b"\0" in data:
        raise UsageError(f"Secret {name!r}: file {path!r} holds a NUL byte, which no variable can. Use another file.")
    try:
        value = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"Secret {name!r}: file {path!r} is not UTF-8 text. Use another file.") from None
    warnings: tuple[str, ...] = ()
    if mode & 0o077:
        warnings = (f"Other users may read {path!r} of secret {name} (mode {mode:04o}). Run `chmod 600 {path}`.",)
    return Found(value.removesuffix("\n").removesuffix("\r"), warnings)
