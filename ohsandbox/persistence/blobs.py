"""`Blobs`: the long texts of a log, each in a file of its own named by its SHA-256."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from ohsandbox.private_files import (
    MAX_CONTENT_BYTES,
    PRIVATE_DIR_MODE,
    SHA256_NAME,
    opened_dir,
    read_regular,
    write_atomically,
)

if TYPE_CHECKING:
    from pathlib import Path

_BLOBS_NAME = "blobs"

MIN_BLOB_CHARS = 256 * 1024
"""Minimum size of a text with its own file: the log stays quick to scan, and a screenshot sent twice is stored once."""


class Blobs:
    """The directory `blobs` beside a log."""

    def __init__(self, directory: Path) -> None:
        """Use the conversation's directory; nothing is created before the first long text."""
        self.directory = directory / _BLOBS_NAME

    def store(self, data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return a copy of data with each long text emptied, and where they are stored: JSON pointer -> SHA-256.

        Raises:
            OSError: a file could not be written.
        """
        places: dict[str, str] = {}
        return self._store(data, "", places), places

    def restore(self, data: dict[str, Any], places: dict[str, str]) -> None:
        """Put the texts back into data. A missing or damaged one is replaced by a text that says so.

        Raises:
            ValueError: places and data do not fit.
        """
        for pointer, digest in places.items():
            *parents, last = [_unescape(part) for part in pointer.split("/")[1:]]
            holder: Any = data
            for key in parents:
                holder = holder[int(key) if isinstance(holder, list) else key]
            holder[int(last) if isinstance(holder, list) else last] = self._read(digest)

    def _store(self, value: Any, pointer: str, places: dict[str, str]) -> Any:
        if isinstance(value, dict):
            return {key: self._store(item, f"{pointer}/{_escape(key)}", places) for key, item in value.items()}
        if isinstance(value, list):
            return [self._store(item, f"{pointer}/{number}", places) for number, item in enumerate(value)]
        if not isinstance(value, str) or len(value) <= MIN_BLOB_CHARS:
            return value
        places[pointer] = self._write(value.encode())
        return ""

    def _write(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if self._bytes_of(digest) != data:  # missing, or damaged since
            self._make_directory()
            write_atomically(self.directory / digest, data, inside=self.directory.parent)
        return digest

    def _make_directory(self) -> None:
        with opened_dir(self.directory.parent) as parent:
            if not self.directory.is_dir():
                os.mkdir(_BLOBS_NAME, PRIVATE_DIR_MODE, dir_fd=parent)
                os.fsync(parent)

    def _read(self, digest: str) -> str:
        if not SHA256_NAME.fullmatch(digest):  # a foreign log must not name other files
            raise ValueError(f"{digest[:100]!r} names no long text")
        path = self.directory / digest
        data = self._bytes_of(digest)
        if data is None:
            return f"[This long text is lost: {path} cannot be read]"
        if hashlib.sha256(data).hexdigest() != digest:
            return f"[This long text is lost: {path} was changed after it was written]"
        return data.decode()

    def _bytes_of(self, digest: str) -> bytes | None:
        try:
            path, anchor = self.directory / digest, self.directory.parent
            return read_regular(path, limit_bytes=MAX_CONTENT_BYTES, inside=anchor)
        except OSError:
            return None


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescape(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~")
