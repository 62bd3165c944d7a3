"""`Secrets`: the values that one conversation may use, where they come from, and values that are only masked."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from ohsandbox.errors import UsageError
from ohsandbox.secrets.encodings import MIN_SECRET_BYTES
from ohsandbox.secrets.masker import Masker
from ohsandbox.text import VARIABLE_NAME

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


MIN_HOST_KEY_BYTES = 16
"""Minimum length of a key: real keys are longer; `OPENAI_API_KEY=not-needed` is a placeholder whose words may occur in
any text."""

_HOST_KEY = re.compile(r".*_API_KEY|AWS_SECRET_ACCESS_KEY|AWS_SESSION_TOKEN|AWS_BEARER_TOKEN_BEDROCK|HF_TOKEN")
"""Variables in which clients of model providers look for their keys (litellm 1.106)."""


class HiddenValues(dict[str, str]):
    """Values by name; its `repr` shows names."""

    def __repr__(self) -> str:
        return f"HiddenValues({', '.join(self)})"


class Secrets:
    """Values by name. Given values become variables of the sandbox's commands; hidden ones never enter it.

    Both are masked wherever they appear. Immutable; its `repr` shows names.
    """

    def __init__(self, given: Mapping[str, str] | None = None, *, hidden: Mapping[str, str] | None = None) -> None:
        """Store the values.

        Raises:
            UsageError: a name cannot be a variable's, or a value holds a NUL.
        """
        for name, value in (given or {}).items():
            check_name(name)
            if not value or "\0" in value:
                raise UsageError(f"Secret {name!r} is empty or holds a NUL byte, which no variable can. Correct it.")
        self._given = dict(given or {})
        self._hidden = dict(hidden or {})
        self._warnings: tuple[str, ...] = ()
        self.masker = Masker(self._given, hidden=self._hidden)

    @classmethod
    def load(cls, references: Mapping[str, str], *, environ: Mapping[str, str] | None = None) -> Self:
        """Look up the values that references name: `env:NAME` or `file:PATH`. environ None is this process's.

        Raises:
            UsageError: a name or a reference is invalid, or the value is missing. Never quotes a value.
        """
        environ = os.environ if environ is None else environ
        found = {check_name(name): look_up(name, reference, environ) for name, reference in references.items()}
        secrets = cls({name: one.value for name, one in found.items()})
        secrets._warnings = tuple(one.warning for one in found.values() if one.warning)
        return secrets

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the values that commands get."""
        return tuple(self._given)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the user, one line each."""
        short = [name for name, value in self._given.items() if len(value.encode()) < MIN_SECRET_BYTES]
        told = f"is under {MIN_SECRET_BYTES} bytes, so it cannot be masked: what prints it shows it."
        return (*self._warnings, *(f"Secret {name} {told}" for name in short))

    def environment(self) -> dict[str, str]:
        """The variables for commands in the sandbox."""
        return dict(self._given)

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the values for a configuration's `${...}`: environ, and `secret:NAME` for each given value."""
        return {**environ, **{f"secret:{name}": value for name, value in self._given.items()}}

    def hiding(self, values: Mapping[str, str], *, never: Collection[str] = ()) -> Secrets:
        """Return a copy with additional hidden values.

        Raises:
            UsageError: a given value is one of `never`, the keys that pay for the model.
        """
        if paid_with := [name for name, value in self._given.items() if value in never]:
            raise UsageError(
                f"Secret {paid_with[0]!r} is the key that the model is paid with, which never enters a sandbox. "
                "Make another key for the agent, or leave the secret out."
            )
        if all(self._hidden.get(name) == value for name, value in values.items()):
            return self
        secrets = Secrets(self._given, hidden={**self._hidden, **values})
        secrets._warnings = self._warnings
        return secrets

    def __bool__(self) -> bool:
        return bool(self._given or self._hidden)

    def __repr__(self) -> str:
        return f"Secrets(given={sorted(self._given)}, hidden={sorted(self._hidden)})"


def host_keys(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the keys of model providers in the environment, by variable; None means this process's environment."""
    environ = os.environ if environ is None else environ
    return {
        name: value
        for name, value in environ.items()
        if _HOST_KEY.fullmatch(name) and len(value.encode("utf-8", "surrogateescape")) >= MIN_HOST_KEY_BYTES
    }


_MAX_VALUE_BYTES = 64 * 1024
"""Maximum size of a value: half of what Linux allows for one variable (MAX_ARG_STRLEN, 128 KiB); keys and kubeconfigs
are far smaller."""

_OURS = re.compile(
    r"PATH|HOME|PWD|OLDPWD|SHELL|USER|LOGNAME|IFS|ENV|BASH.*|PS\d|PROMPT_COMMAND|SHELLOPTS|UID|EUID|PPID|TERM|TMOUT"
    r"|LD_.*|OHSANDBOX.*|ohs_.*|OHS_.*"
)
"""Variables with a meaning for shells, the loader or ohsandbox itself; a user's value in them would break commands."""


class Found(NamedTuple):
    """A value, and a warning for the user about its source, or ""."""

    value: str
    warning: str = ""


def check_name(name: str) -> str:
    """Return a valid name for a variable.

    Raises:
        UsageError: name is not a variable name, or is reserved. An invalid name is not quoted, since it may be a value.
    """
    if not VARIABLE_NAME.fullmatch(name):
        raise UsageError(
            "Invalid name of a secret: expected letters, digits and underscores, not beginning with a digit. "
            "Write NAME, NAME=env:OTHER or NAME=file:PATH, and never the value itself."
        )
    if _OURS.fullmatch(name):
        raise UsageError(f"A secret cannot be named {name!r}: commands need that variable. Choose another name.")
    return name


def check_reference(name: str, reference: str) -> str:
    """Return a valid reference.

    Raises:
        UsageError: reference is invalid. It is not quoted, since it may be the value.
    """
    kind, _, rest = reference.partition(":")
    if kind not in {"env", "file"} or not rest:
        raise UsageError(
            f"Secret {name!r} does not say where its value is. Write env:VARIABLE or file:PATH, never the value: "
            "settings and command lines are read by others."
        )
    if kind == "env" and not VARIABLE_NAME.fullmatch(rest):
        raise UsageError(f"Invalid variable name in the reference of secret {name!r}. Write env:VARIABLE.")
    return reference


def parse_flags(flags: Iterable[str]) -> dict[str, str]:
    """Return references by name, from flags `NAME`, `NAME=env:OTHER` and `NAME=file:PATH`.

    Raises:
        UsageError: a flag has another form, or a name is given twice.
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
    """Return the value that a reference names. One newline at a file's end is not part of it.

    Raises:
        UsageError: the reference is invalid, or the value is missing or cannot be a variable's value. Never quotes a
            value.
    """
    kind, _, rest = check_reference(name, reference).partition(":")
    found = _from_file(name, rest) if kind == "file" else Found(environ.get(rest, ""))
    if not found.value and kind == "env":
        raise UsageError(f"Variable {rest!r} of secret {name!r} is not set. Set it.")
    if not found.value:
        raise UsageError(f"File {rest!r} of secret {name!r} is empty. Put the value into it.")
    if len(found.value.encode("utf-8", "surrogateescape")) > _MAX_VALUE_BYTES:
        raise UsageError(
            f"Secret {name!r} is over {_MAX_VALUE_BYTES} bytes. Bring such a file into the sandbox instead."
        )
    return found


def _from_file(name: str, path: str) -> Found:
    try:
        with Path(path).expanduser().open("rb") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            value = opened.read(_MAX_VALUE_BYTES + 2).decode()
    except OSError as error:
        raise UsageError(
            f"Secret {name!r}: file {path!r} cannot be read: {error.strerror}. Make it readable, or name another file."
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"Secret {name!r}: file {path!r} is not UTF-8 text. Use another file.") from None
    if "\0" in value:
        raise UsageError(f"Secret {name!r}: file {path!r} holds a NUL byte, which no variable can. Use another file.")
    others = f"Other users may read {path!r} of secret {name} (mode {mode:04o}). Run `chmod 600 {path}`."
    return Found(value.removesuffix("\n").removesuffix("\r"), others if mode & 0o077 else "")
