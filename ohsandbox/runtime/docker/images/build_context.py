"""The files from which an image is built: their hash, and the archive that is sent to the builder.

A process that can write to the directory, such as a sandbox, may change it during the build. Therefore files are opened
relative to directory descriptors without following symlinks, opening a FIFO does not block, and no more bytes are read
than a file had when it was opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tarfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ohsandbox.errors import UsageError
from ohsandbox.paths import DIRECTORY
from ohsandbox.runtime.docker.images.build_ignore import kept_paths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.build_options import Build

MAX_IGNORE_BYTES = 1 << 16
"""Maximum size of a `.dockerignore`, since each of its patterns is tried on each path."""
MAX_CONTEXT_BYTES = 16 << 30
"""Twice the size of the largest agent images; a data set left in the directory by mistake is reported before it is
copied twice."""
DIGEST_CHARS = 32
_READ_BYTES = 1 << 20
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class BuildContext:
    """The files of a build whose context is an absolute path without symlinks.

    Raises:
        OSError: the directory cannot be read.
        UsageError: its `.dockerignore` cannot be read, is not a regular file, or is larger than MAX_IGNORE_BYTES.
    """

    def __init__(self, build: Build) -> None:
        self._build, self._root = build, Path(build.context)
        needed = f"!{build.dockerfile}", "!.dockerignore"
        self._paths = sorted(kept_paths(self._root, [*self._ignored(), *needed]))

    def digest(self) -> str:
        """Return a hash of the Dockerfile's name, the arguments, the target, and the files' names, modes and contents.

        The files' times and owners are left out.

        Raises:
            OSError: a file cannot be read, or changed its type or became shorter while it was read.
            UsageError: the files together are larger than MAX_CONTEXT_BYTES.
        """
        return self._read(None)

    def archive(self, target: IO[bytes]) -> str:
        """Write the files to target as a tar archive; return the hash of what was written. Raises as `digest`."""
        with tarfile.open(fileobj=target, mode="w") as archive:
            root = tarfile.TarInfo("./")  # docker's client recognizes an archive by its first block
            root.type, root.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(root)
            return self._read(archive)

    def _ignored(self) -> list[str]:
        """Return the patterns of the Dockerfile's own `.dockerignore`, or else of the directory's."""
        for path in (f"{self._build.dockerfile}.dockerignore", ".dockerignore"):
            with (
                _read_errors(self._root / path),
                contextlib.suppress(FileNotFoundError),
                _parent(self._root, path) as (parent, name),
            ):
                with _opened(name, parent) as (opened, stats):
                    if stats.st_size > MAX_IGNORE_BYTES:
                        raise UsageError(
                            f"{str(self._root / path)!r} has {stats.st_size} bytes, more than {MAX_IGNORE_BYTES}. "
                            "Shorten it."
                        )
                    text = opened.read(MAX_IGNORE_BYTES).decode("utf-8-sig", "surrogateescape")
                return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        return []

    def _read(self, archive: tarfile.TarFile | None) -> str:
        build, total = self._build, 0
        digest = hashlib.sha256(repr((build.dockerfile, sorted(build.args.items()), build.target)).encode())
        for path in self._paths:
            with _parent(self._root, path) as (parent, name):
                stats, content = os.stat(name, dir_fd=parent, follow_symlinks=False), b""
                entry = tarfile.TarInfo(path)
                entry.mode, entry.mtime = stat.S_IMODE(stats.st_mode), int(stats.st_mtime)
                if stat.S_ISLNK(stats.st_mode):
                    entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=parent)
                    content = os.fsencode(entry.linkname)
                elif stat.S_ISDIR(stats.st_mode):
                    entry.type = tarfile.DIRTYPE
                elif stat.S_ISREG(stats.st_mode):
                    with _opened(name, parent) as (opened, stats):
                        entry.size = stats.st_size
                        total += stats.st_size
                        self._check_total(total, path)
                        content = _copy(opened, entry, archive)
                else:  # no image needs a socket, a FIFO or a device of this machine
                    continue
            if archive is not None and not entry.isreg():
                archive.addfile(entry)
            digest.update(repr((path, stats.st_mode, content)).encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:DIGEST_CHARS]

    def _check_total(self, total: int, path: str) -> None:
        if total > MAX_CONTEXT_BYTES:
            raise UsageError(
                f"The build's directory {str(self._root)!r} has over {MAX_CONTEXT_BYTES >> 30} GiB (at {path!r}). "
                "List what the image does not need in .dockerignore."
            )


@contextlib.contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{str(path)!r} cannot be read: {error.strerror or error}. Make it a regular file, and no link."
        ) from error


class _Hashed:
    """A file from which at most `left` bytes are read; it hashes them."""

    def __init__(self, opened: IO[bytes], left: int) -> None:
        self._opened, self._left = opened, left
        self.digest = hashlib.sha256()

    def read(self, count: int) -> bytes:
        data = self._opened.read(min(count, self._left))
        self._left -= len(data)
        self.digest.update(data)
        return data


def _copy(opened: IO[bytes], entry: tarfile.TarInfo, archive: tarfile.TarFile | None) -> bytes:
    """Read the file, adding it to archive unless that is None; return the hash of its content."""
    source = _Hashed(opened, entry.size)
    if archive is not None:
        archive.addfile(entry, source)  # type: ignore[arg-type]  # it only reads
        return source.digest.digest()
    left_bytes = entry.size
    while left_bytes and (data := source.read(_READ_BYTES)):
        left_bytes -= len(data)
    if left_bytes:
        raise OSError(f"{entry.name!r} became shorter while it was read")
    return source.digest.digest()


@contextlib.contextmanager
def _parent(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the directory that contains path, opened without following symlinks, and the last name."""
    *above, name = path.split("/")
    here = os.open(root, DIRECTORY)
    try:
        for part in above:
            below = os.open(part, DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        yield here, name
    finally:
        os.close(here)


@contextlib.contextmanager
def _opened(name: str, parent: int) -> Iterator[tuple[IO[bytes], os.stat_result]]:
    """Open a regular file and yield it with its stat result; raise OSError for other types, without blocking."""
    with os.fdopen(os.open(name, _FILE, dir_fd=parent), "rb") as opened:
        stats = os.fstat(opened.fileno())
        if not stat.S_ISREG(stats.st_mode):
            raise OSError(f"{name!r} is not a regular file")
        yield opened, stats
