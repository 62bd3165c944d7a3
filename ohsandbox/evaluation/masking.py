"""Masks secrets in the results: files from a sandbox are masked in place, byte for byte, and so are their names."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ohsandbox.secrets.masker import placeholder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.secrets import Masker

_CHUNK_BYTES = 4 * 1024**2
_SUFFIX = ".masked"


def mask_tree(root: Path, masker: Masker) -> None:
    """Replace every value in the files, names and links below root; files without one are not touched.

    Raises:
        OSError: a file cannot be read or replaced.
    """
    if not masker:
        return
    for directory, subdirectories, names in os.walk(root, topdown=False):
        for name in (*names, *subdirectories):
            path = Path(directory, name)
            if path.is_symlink():
                if _masked(os.fsencode(path.readlink()), masker) is not None:
                    path.unlink()
                    continue
            elif path.is_file():
                _mask_file(path, masker)
            if (new_name := _masked(os.fsencode(name), masker)) is not None:
                _rename(path, os.fsdecode(new_name))


def _rename(path: Path, name: str) -> None:
    """Rename the file, or remove it where the name is too long or taken."""
    try:
        path.rename(path.with_name(name))
    except OSError:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _mask_file(path: Path, masker: Masker) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & stat.S_IRUSR:  # it came out of a sandbox so
        path.chmod(mode := mode | stat.S_IRUSR)
    with path.open("rb") as source:
        if not any(is_mask for _, is_mask in _pieces(source, masker)):
            return
        source.seek(0)
        target = path.with_name(f"{secrets.token_hex(8)}{_SUFFIX}")  # its own name may be as long as one can be
        with target.open("wb") as output:
            for piece, _ in _pieces(source, masker):
                output.write(piece)
    target.chmod(mode)
    target.replace(path)


def _pieces(source: BinaryIO, masker: Masker) -> Iterator[tuple[bytes, bool]]:
    """Yield the file's masked content piece by piece, with whether a piece is a mask."""
    buffer, is_over = b"", False
    while not is_over:
        data = source.read(_CHUNK_BYTES)
        buffer, is_over = buffer + data, not data
        spans = masker.spans(buffer)
        upto = len(buffer) if is_over else masker.whole_prefix(buffer)  # what follows may be the beginning of a value
        upto = min([upto, *(span.start for span in spans if span.start < upto < span.end)])
        position = 0
        for span in spans:
            if span.end <= upto:
                yield buffer[position : span.start], False
                yield placeholder(span.name).encode(), True
                position = span.end
        yield buffer[position:upto], False
        buffer = buffer[upto:]


def _masked(data: bytes, masker: Masker) -> bytes | None:
    """Return the data with every value replaced; None where it has none."""
    parts, position = list[bytes](), 0
    for span in masker.spans(data):
        parts += [data[position : span.start], placeholder(span.name).encode()]
        position = span.end
    return b"".join([*parts, data[position:]]) if parts else None
