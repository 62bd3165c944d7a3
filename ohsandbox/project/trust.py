"""Which directories' project files the user trusts: by real path and by the hash of the trusted content.

The record is one file of the state directory, which no sandbox can reach. A directory that was moved, or whose file has
changed, is not trusted.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.paths import state_dir
from ohsandbox.private_files import locked, read_regular, write_atomically
from ohsandbox.strict_json import parse_json

_FILE_NAME = "trusted.json"
_LOCK_NAME = "trusted.lock"


class _TrustedDirectory(NamedTuple):
    """A directory that the user has trusted."""

    directory: Path
    digest: str
    """Hash of the project's file and of what it names, at that time."""
    at: str
    """Time in ISO 8601 with its zone."""


def trusted() -> list[_TrustedDirectory]:
    """Return all trusted directories, by path.

    Raises:
        UsageError: the record cannot be read.
    """
    return [_TrustedDirectory(Path(path), one["digest"], one["at"]) for path, one in sorted(_read().items())]


def trust_of(directory: Path, digest: str) -> Literal["trusted", "changed", "unknown"]:
    """Whether this content of the directory's project file is trusted, or was trusted with other content.

    Raises:
        UsageError: the record cannot be read.
    """
    found = _read().get(str(directory.resolve()))
    if found is None:
        return "unknown"
    return "trusted" if found["digest"] == digest else "changed"


def trust(directory: Path, digest: str) -> None:
    """Trust this content of the directory, and no other, from now on.

    Raises:
        UsageError: the record cannot be read or written.
    """
    _change(str(directory.resolve()), {"digest": digest, "at": datetime.now(UTC).isoformat(timespec="seconds")})


def revoke(directory: Path) -> bool:
    """Revoke the trust in a directory, which may be gone, for any content; return whether it was trusted.

    Raises:
        UsageError: the record cannot be read or written.
    """
    return _change(str(directory.resolve()), None)


def _change(directory: str, entry: dict[str, str] | None) -> bool:
    """Set a directory's entry, or remove it if None; return whether there was one."""
    place = state_dir(create=True)
    try:
        with locked(place / _LOCK_NAME):
            entries = _read()
            had = entries.pop(directory, None) is not None
            if entry is not None:
                entries[directory] = entry
            write_atomically(place / _FILE_NAME, json.dumps(entries, indent=2).encode() + b"\n")
    except OSError as error:
        raise UsageError(
            f"{str(place / _FILE_NAME)!r} cannot be written: {error.strerror}. Make it writable."
        ) from None
    return had


def _read() -> dict[str, Any]:
    file = state_dir() / _FILE_NAME
    try:
        entries = parse_json(read_regular(file))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error}. Fix it, or remove it to trust nothing.") from None
    if not isinstance(entries, dict) or not all(
        isinstance(one, dict) and isinstance(one.get("digest"), str) and isinstance(one.get("at"), str)
        for one in entries.values()
    ):
        raise UsageError(f"{str(file)!r} is not a record of trust. Remove it to trust nothing.")
    return entries
