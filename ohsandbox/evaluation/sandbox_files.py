"""Files into and out of a trial's sandbox: small trees through the worker that is there, large ones as an archive."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import posixpath
import shutil
import stat
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.errors import SandboxFileError, ToolError, UsageError
from ohsandbox.runtime.files.transfer import TransferLimits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ohsandbox.evaluation.task import Files
    from ohsandbox.runtime import DirEntry, Runtime

MAX_SMALL_FILES = 32
MAX_SMALL_BYTES = 1024**2
"""A tree up to this size is sent file by file, each in 0.3 ms; the process that unpacks an archive costs 40 ms."""

FETCH_LIMITS = TransferLimits(total_bytes=200 * 1024**2, file_bytes=200 * 1024**2, leaves_out=True)
"""What a trial takes out of a sandbox at most at a time; what is over it is left out and told."""

_READABLE = """
for one; do
  chmod -R a+rX -- "$one" && for script in "$one"/*.sh; do [ ! -f "$script" ] || chmod a+rx -- "$script"; done
done
"""
"""As root: archives and checkouts lose modes, and who runs them may be any user."""


def put_for_all(runtime: Runtime, files: Sequence[Files]) -> None:
    """Copy files as root, so that every user can read them and run their scripts.

    Raises:
        SandboxFileError, SandboxUnavailable: as `put`.
    """
    for one in files:
        put(runtime, one, user="root")
    if directories := [one.target for one in files if one.source]:
        runtime.run(["/bin/sh", "-c", _READABLE, "sh", *directories], user="root", workdir="/")


def put(runtime: Runtime, files: Files, *, user: str | None) -> None:
    """Copy the files into their directory, which is made; they belong to user and keep their modes.

    Raises:
        SandboxFileError: the sandbox cannot store them, or this machine cannot read them.
        SandboxUnavailable: the sandbox went away.
        UsageError: the owner that the files name is no user of the sandbox.
    """
    if files.owner is not None:
        put(runtime, files.model_copy(update={"owner": None}), user="root")
        _give(runtime, files, files.owner)
        return
    for name, text in files.texts.items():
        mode = 0o755 if text.startswith("#!") else 0o644
        runtime.write_bytes(posixpath.join(files.target, name), text.encode(), mode=mode, user=user)
    if files.source is None:
        return
    if files.excluded:
        with tempfile.TemporaryDirectory() as place:
            here = Path(place, "files")
            shutil.copytree(files.source, here, symlinks=True, ignore=partial(_left_out, files))
            put(runtime, files.model_copy(update={"source": here, "excluded": (), "texts": {}}), user=user)
        return
    small = _small_tree(files.source)
    if small is None:
        runtime.upload(files.source, files.target, user=user)
        return
    for name, path, mode in small:
        runtime.write_bytes(posixpath.join(files.target, name), path.read_bytes(), mode=mode, user=user)


def _give(runtime: Runtime, files: Files, owner: str) -> None:
    """Make owner the owner of the texts and of all directories from the target to them."""
    target = posixpath.normpath(posixpath.join(runtime.workdir, files.target))
    paths = {target}
    for name in map(posixpath.normpath, files.texts):
        while name:
            paths.add(posixpath.join(target, name))
            name = posixpath.dirname(name)  # noqa: PLW2901 - up to the target
    given = runtime.run(["chown", "-h", owner, "--", *sorted(paths - {"/"})], user="root", workdir="/")
    if given.exit_code != 0:
        said = given.stderr.decode(errors="replace").strip()[-300:]
        raise UsageError(f"The files at {target} cannot be given to {owner!r}: {said}")


def _left_out(files: Files, place: str, names: list[str]) -> set[str]:
    below = Path(place).relative_to(files.source or place)
    return {name for name in names if (below / name).as_posix() in files.excluded}


def _small_tree(root: Path) -> list[tuple[str, Path, int]] | None:
    """The regular files of a small tree; None where it is large, or holds anything else."""
    found, total = list[tuple[str, Path, int]](), 0
    for path in _walk(root):
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            if not any(path.iterdir()):
                return None  # an empty directory has to arrive, too
            continue
        total += status.st_size
        if not stat.S_ISREG(status.st_mode) or len(found) == MAX_SMALL_FILES or total > MAX_SMALL_BYTES:
            return None
        found.append((path.relative_to(root).as_posix(), path, stat.S_IMODE(status.st_mode) & 0o777))
    return found


def _walk(root: Path) -> Iterator[Path]:
    for directory, below, names in os.walk(root):
        for name in (*below, *names):
            yield Path(directory, name)


def _is_small(entry: DirEntry) -> bool:
    """A regular file, whose name is one on this machine too: names come from a shell that an agent may have changed."""
    name = entry.name
    is_plain = name.isprintable() and "/" not in name and name not in {"", ".", ".."}
    return entry.kind == "file" and is_plain and entry.size_bytes <= MAX_SMALL_BYTES


def fetch(runtime: Runtime, source: str, target: Path, *, exclude: Sequence[str] = ()) -> list[str]:
    """Copy a file or directory of the sandbox to target, as root reads it; what was left out, with the reasons.

    What does not exist is not copied and not told; nor is what matches a pattern of exclude by its name or by its path
    below source.
    """
    left_out = _fetch(runtime, source, target)
    for path in sorted(target.rglob("*"), reverse=True) if exclude else ():
        names = (path.name, path.relative_to(target).as_posix())
        if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in exclude):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    return left_out


def _fetch(runtime: Runtime, source: str, target: Path) -> list[str]:
    with contextlib.suppress(OSError):  # a file that goes or grows meanwhile: the archive says what was left out
        entries = runtime.list_dir(source, user="root")
        if not entries:
            return []
        if len(entries) <= MAX_SMALL_FILES and all(_is_small(one) for one in entries):
            target.mkdir(parents=True, exist_ok=True)
            for entry in entries:
                (target / entry.name).write_bytes(
                    runtime.read_bytes(posixpath.join(source, entry.name), user="root", limit_bytes=MAX_SMALL_BYTES)
                )
            return []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        left_out = runtime.download(source, target, user="root", limits=FETCH_LIMITS)
        return [f"{one.path}: {one.reason}" for one in left_out]
    except FileNotFoundError:
        return []
    except (SandboxFileError, ToolError) as error:
        return [f"{source}: {error}"]
