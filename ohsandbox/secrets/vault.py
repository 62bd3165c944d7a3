"""`Secrets`: the values that one conversation may use, and those that it must only hide."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Self

from ohsandbox.errors import UsageError
from ohsandbox.secrets.forms import MIN_SECRET_BYTES
from ohsandbox.secrets.masker import Masker
from ohsandbox.secrets.references import check_name, check_reference, look_up

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

MIN_HOST_KEY_BYTES = 16
"""A real key is longer; `OPENAI_API_KEY=not-needed` is no secret, and its words may stand in any text."""

_HOST_KEY = re.compile(r".*_API_KEY|AWS_SECRET_ACCESS_KEY|AWS_SESSION_TOKEN|AWS_BEARER_TOKEN_BEDROCK|HF_TOKEN")
"""Where the clients of model providers look for their keys (litellm 1.106)."""

_REFERENCE = "secret:"


class Secrets:
    """Values by name. Those given are variables of the sandbox's commands; the hidden ones never enter it.

    Both are masked wherever they turn up. Immutable; its `repr` shows names.
    """

    def __init__(self, given: Mapping[str, str] | None = None, *, hidden: Mapping[str, str] | None = None) -> None:
        """Take the values themselves.

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
        self.masker = Masker({**self._hidden, **self._given})

    @classmethod
    def load(cls, references: Mapping[str, str], *, environ: Mapping[str, str] | None = None) -> Self:
        """Look up the values that references name: `env:NAME` or `file:PATH`. environ None is this process's.

        Raises:
            UsageError: a name or a reference is wrong, or there is no value. Never quotes a value.
        """
        environ = os.environ if environ is None else environ
        found = {
            check_name(name): look_up(name, check_reference(name, reference), environ)
            for name, reference in references.items()
        }
        secrets = cls({name: one.value for name, one in found.items()})
        secrets._warnings = tuple(line for one in found.values() for line in one.warnings)
        return secrets

    @property
    def names(self) -> tuple[str, ...]:
        """Of the values that commands get."""
        return tuple(self._given)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should be told, one line each."""
        short = [name for name, value in self._given.items() if len(value.encode()) < MIN_SECRET_BYTES]
        lines = [
            f"Secret {name} is under {MIN_SECRET_BYTES} bytes, so it cannot be masked: what prints it shows it."
            for name in short
        ]
        return (*self._warnings, *lines)

    def environment(self) -> dict[str, str]:
        """The variables for commands in the sandbox."""
        return dict(self._given)

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What a configuration's `${...}` stands for: environ, and `secret:NAME` for each value given."""
        return {**environ, **{f"{_REFERENCE}{name}": value for name, value in self._given.items()}}

    def hiding(self, values: Mapping[str, str], *, never: Collection[str] = ()) -> Secrets:
        """The same, with more values that are only hidden.

        Raises:
            UsageError: a value given is one of `never`: the keys that the model is paid with.
        """
        for name, value in self._given.items():
            if value in never:
                raise UsageError(
                    f"Secret {name!r} is the key that the model is paid with, which never enters a sandbox. "
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
    """The keys of model providers in the environment, by variable; None is this process's."""
    environ = os.environ if environ is None else environ
    return {
        name: value
        for name, value in environ.items()
        if _HOST_KEY.fullmatch(name) and len(value.encode("utf-8", "surrogateescape")) >= MIN_HOST_KEY_BYTES
    }
