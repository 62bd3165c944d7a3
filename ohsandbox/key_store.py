"""Storage of model keys: in the system's keyring, or in a private file; settings hold only a reference to the key.

A reference is `env:NAME`, `keyring:NAME` or `file:PATH`. A keyring that does not answer (no desktop, a locked one
that nobody unlocks) costs at most KEYRING_TIMEOUT_S and a message.
"""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.paths import state_dir, subdirectory
from ohsandbox.private_files import write_atomically
from ohsandbox.secrets.vault import look_up

if TYPE_CHECKING:
    from collections.abc import Callable

SERVICE = "ohsandbox"
"""The service name under which a keyring keeps our keys; each key has its provider's name."""
KEYRING_TIMEOUT_S = 30.0
"""Time for a person to unlock a keyring by a password; without a desktop the question for it would wait for ever."""
_DIRECTORY = "keys"
_MIN_PRIORITY = 1
"""The least priority that the library `keyring` recommends; lower ones always fail or store plain text."""
_KINDS = ("env:", "file:", "keyring:")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class _StoredKey(NamedTuple):
    """A stored key's location."""

    reference: str
    """The location for the settings: `keyring:NAME` or `file:PATH`."""
    place: str
    """The location in words, for a person."""


def is_reference(value: str) -> bool:
    """Whether the text refers to a key's location and is not itself a key."""
    return value.startswith(_KINDS)


def look_up_key(reference: str) -> str:
    """Look up the key that a reference names.

    Raises:
        UsageError: it is not there, or its keyring or file cannot be read. The key is never quoted.
    """
    kind, _, argument = reference.partition(":")
    if kind == "env":
        if not os.environ.get(argument):
            raise UsageError(
                f"The setting api_key names the environment variable {argument!r}, which is not set. Set it."
            )
        return os.environ[argument]
    if kind == "keyring":
        return _of_keyring(argument)
    try:
        return look_up("api_key", reference, os.environ).value
    except UsageError as error:
        message = str(error).replace("Secret 'api_key': file", "The setting api_key: file", 1)
        raise UsageError(message.replace("of secret 'api_key'", "of the setting api_key", 1)) from None


def store_key(name: str, key: str) -> _StoredKey:
    """Store the key under a provider's name: in the keyring where a real one answers, else in a file of mode 0600.

    Raises:
        UsageError: the name or the key cannot be kept, or the file cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"Invalid name of a key {name[:64]!r}: expected letters, digits, '_', '.' and '-'.")
    if not key.strip() or "\0" in key or "\n" in key:
        raise UsageError("The key is empty, or holds a newline or a NUL byte. Give the key alone.")
    if (backend := _keyring()) is not None:
        try:
            _bounded(lambda: backend.set_password(SERVICE, name, key))
            if _bounded(lambda: backend.get_password(SERVICE, name)) == key:
                return _StoredKey(f"keyring:{name}", f"keyring ({backend.name})")
        except (OSError, TimeoutError, UsageError):  # locked, or nobody answers: the file then
            pass
    file = subdirectory(_DIRECTORY) / name
    try:
        write_atomically(file, key.encode() + b"\n")
    except OSError as error:
        raise UsageError(f"Key file {str(file)!r} cannot be written: {error.strerror}. Make it writable.") from None
    return _StoredKey(f"file:{file}", f"{file} (mode 0600; no keyring of this system answers)")


def stored_reference(name: str) -> str | None:
    """Return the reference of a key that `store_key` has stored under the name; None where there is none."""
    if not _NAME.fullmatch(name):
        return None
    if (state_dir() / _DIRECTORY / name).is_file():
        return f"file:{state_dir() / _DIRECTORY / name}"
    try:
        return f"keyring:{name}" if _keyring() is not None and _of_keyring(name) else None
    except UsageError:
        return None


def planned_reference(name: str) -> str:
    """Return the reference that `store_key` would give, unless the keyring refuses."""
    return f"keyring:{name}" if _keyring() is not None else f"file:{state_dir() / _DIRECTORY / name}"


def keyring_name() -> str | None:
    """Return the name of the keyring that `store_key` would use; None where there is none."""
    backend = _keyring()
    return None if backend is None else str(backend.name)


def _of_keyring(name: str) -> str:
    backend = _keyring()
    remedy = "Run `ohsandbox init` to give the key again, or name another place in the setting api_key."
    if backend is None:
        raise UsageError(f"The setting api_key names {name!r} in the keyring, and no keyring answers here. {remedy}")
    try:
        key = _bounded(lambda: backend.get_password(SERVICE, name))
    except (OSError, TimeoutError, UsageError) as error:
        raise UsageError(f"The keyring did not give the key {name!r}: {error}. {remedy}") from None
    if not key:
        raise UsageError(f"The setting api_key names {name!r} in the keyring, which has no such key. {remedy}")
    return str(key)


def _keyring() -> Any:
    """Return the keyring that the library recommends here; None without one, or if it stores plain text."""
    import keyring  # noqa: PLC0415 - 0.2 s and D-Bus, for those who use it

    try:
        backend, priority = _bounded(lambda: (backend := keyring.get_keyring(), backend.priority))
    except (OSError, TimeoutError, UsageError):
        return None
    return backend if priority >= _MIN_PRIORITY else None


def _bounded(call: Callable[[], Any]) -> Any:
    """Return what call returns, waiting at most KEYRING_TIMEOUT_S.

    Raises:
        TimeoutError: it did not return in KEYRING_TIMEOUT_S.
        UsageError: it raised; a keyring's library is the desktop's, and raises what it likes.
    """
    results: list[Any] = []
    faults: list[str] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 - as above
            faults.append(f"{type(error).__name__}: {error}"[:200])

    thread = threading.Thread(target=run, daemon=True, name="keyring")
    thread.start()
    thread.join(KEYRING_TIMEOUT_S)
    if faults:
        raise UsageError(faults[0])
    if not results:
        raise TimeoutError(f"no answer in {KEYRING_TIMEOUT_S:g} s")
    return results[0]
