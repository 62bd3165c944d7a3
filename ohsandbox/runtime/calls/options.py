"""What a caller may say of a call: one clear line for what cannot be meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError
from ohsandbox.runtime.calls.quoting import check_env_names, quote

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping


def check_seconds(**values: float | None) -> None:
    """Refuse limits that are no positive numbers.

    Raises:
        UsageError: naming the first one.
    """
    for name, value in values.items():
        if value is not None and not (_is_number(value) and 0 < value < float("inf")):
            raise UsageError(f"{name} is {value!r}; give a positive number of seconds")


def check_call(
    *,
    env: Mapping[str, str] | None = None,
    user: str | int | None = None,
    workdir: str | None = None,
    on_output: Callable[..., object] | None = None,
    cancel: threading.Event | None = None,
) -> None:
    """Refuse options that no call can have.

    Raises:
        UsageError: naming the first one; a value of env is not shown, for it may be a secret.
    """
    check_env_names(env or {})
    for name, value in (env or {}).items():
        if not isinstance(value, str):
            raise UsageError(f"Environment value of {name!r} is of type {type(value).__name__}; give a string")
        quote(value)
    if isinstance(user, bool) or not (user is None or (isinstance(user, int) and user >= 0) or _is_word(user)):
        raise UsageError(f"user is {user!r}; give a user's name or number, or leave it out")
    if workdir is not None and not _is_word(workdir):
        raise UsageError(f"workdir is {workdir!r}; give a directory of the sandbox, or leave it out")
    if on_output is not None and not callable(on_output):
        raise UsageError(f"on_output is of type {type(on_output).__name__}; give a function")
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise UsageError(f"cancel is of type {type(cancel).__name__}; give a threading.Event")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value
