"""Reads and writes the person's settings file: one key is changed, everything else in it is kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import UsageError
from ohsandbox.paths import check_private, state_dir
from ohsandbox.private_files import read_regular, write_atomically
from ohsandbox.strict_json import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_FILE_BYTES = 1_000_000
"""The size limit of an MCP configuration, which the file may contain."""


def read_object(file: Path, *, required: bool = False) -> dict[str, Any]:
    """Return the JSON object that the file holds, unchecked; an empty one where it is missing and not required.

    Raises:
        UsageError: it is missing and required, cannot be read, is too long, or holds something else.
    """
    try:
        data = read_regular(file, limit_bytes=MAX_FILE_BYTES, follow=True)
    except FileNotFoundError:
        if required:
            raise UsageError(f"Settings file {str(file)!r} is not there. Make it, or leave --settings out.") from None
        return {}
    except OSError as error:
        raise UsageError(f"Settings file {str(file)!r} cannot be read: {error.strerror}. Fix or remove it.") from None
    return object_of(data, f"Settings file {str(file)!r}")


def object_of(data: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object in data; where is the beginning of an error's message.

    Raises:
        UsageError: it is none.
    """
    try:
        values = parse_json(data)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}. Fix or remove it.") from None
    if not isinstance(values, dict):
        problem = f"{where} holds a {type(values).__name__}, not a JSON object {{...}}."
        raise UsageError(f"{problem} Write one, or remove it.")
    return values


def write_object(file: Path, values: Mapping[str, Any]) -> None:
    """Replace the file, or the one a symlink points to, with mode 0600: a reader sees the old object or the new one.

    Raises:
        UsageError: it cannot be written, or other users may change it.
    """
    check_private(file)
    real = file.resolve()
    try:
        if real.parent == state_dir(create=True).resolve() or real.parent.is_dir():
            write_atomically(real, json.dumps(values, indent=2, ensure_ascii=False).encode() + b"\n")
            return
    except OSError as error:
        raise UsageError(
            f"Settings file {str(file)!r} cannot be written: {error.strerror}. Make it writable."
        ) from None
    raise UsageError(f"Directory {str(real.parent)!r} is not there. Make it, or name another settings file.")
