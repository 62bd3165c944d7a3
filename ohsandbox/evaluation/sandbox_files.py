"""Copies files into and out of a trial's sandbox: small trees through the running worker, large ones as an archive."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import posixpath
import shlex
import shutil
import stat
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import SandboxFileError, ToolError, UsageError
from ohsandbox.private_files import read_regular
from ohsandbox.runtime.files.transfer import TransferLimits
from ohsandbox.runtime.files.unpack import BLOCK_BYTES
from ohsandbox.text import quoted_brackets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ohsandbox.evaluation.task import Files
    from ohsandbox.runtime import DirEntry, Runtime

_MAX_SMALL_FILES = 32
_MAX_SMALL_BYTES = 1024**2
"""Size up to which a tree is sent file by file, each in 0.3 ms; the process that unpacks an archive costs 40 ms."""
MAX_TEXT_BYTES, MAX_TEXTS_BYTES = 64 * 1024, 256 * 1024
"""Largest text, and size of all texts of a tree, for which the tree goes as the arguments of one shell, whose `printf`
writes it. The arguments of a process may be 128 KiB each and 2 MiB together."""

FETCH_LIMITS = TransferLimits(total_bytes=200 * 1024**2, file_bytes=200 * 1024**2, leaves_out=True)
"""Limits of one copy out of a sandbox; anything over them is left out and reported."""

MAX_ENTRIES, MAX_DEPTH = 64, 16
"""For a directory over the limits: how many of its entries are fetched one by one, and how deep; 40 ms each."""

_READABLE = """
for one; do
  chmod -R a+rX -- "$one" && for script in "$one"/*.sh; do [ ! -f "$script" ] || chmod a+rx -- "$script"; done
done
"""
"""Makes files readable for every user, as root: archives and checkouts lose modes, and any user may run them."""


def end_of_output(printed: bytes, limit_chars: int = 300) -> str:
    """Return the end of a command's output, for a message."""
    return printed.decode(errors="replace").strip()[-limit_chars:]


class _SmallFile(NamedTuple):
    name: str
    """The path relative to its tree."""
    data: bytes
    mode: int

    def for_all(self) -> _SmallFile:
        """The file with the mode that `_READABLE` gives."""
        is_script = self.name.endswith(".sh") and "/" not in self.name
        return self._replace(mode=self.mode | 0o444 | (0o111 if self.mode & 0o111 or is_script else 0))


def put_for_all(runtime: Runtime, files: Sequence[Files]) -> None:
    """Copy files as root, so that every user can read them and run their scripts.

    Raises:
        SandboxFileError, SandboxUnavailable: as `put`.
    """
    for entry in files:
        if _put_texts(runtime, entry, user="root", for_all=True):
            continue
        put(runtime, entry, user="root")
        if entry.source is not None:
            target = _place(runtime, entry)
            runtime.run(["/bin/sh", "-c", _READABLE, "sh", target], user="root", workdir="/")


def _put_texts(runtime: Runtime, files: Files, *, user: str | None, for_all: bool = False) -> bool:
    """Write a small tree of texts with one shell, where possible: three processes instead of four for each file."""
    small = _small_files(files)
    if small is None or sum(len(file.data) for file in small) > MAX_TEXTS_BYTES:
        return False
    if any(b"\0" in file.data or len(file.data) > MAX_TEXT_BYTES for file in small):
        return False
    try:
        texts = [file.data.decode() for file in small]
    except UnicodeDecodeError:
        return False
    if not small:
        return files.source is None
    target = _place(runtime, files)
    if for_all and files.source is not None:
        small = [file.for_all() for file in small]
    script = _script_of(target, small, is_readable=for_all and files.source is not None)
    return runtime.run(["/bin/sh", "-c", script, "sh", *texts], user=user, workdir="/").exit_code == 0


def _script_of(target: str, small: Sequence[_SmallFile], *, is_readable: bool) -> str:
    """Return a POSIX shell script that writes its arguments to the files, with their modes, replacing existing ones."""
    paths = [posixpath.join(target, file.name) for file in small]
    directories = shlex.join(sorted({target, *map(posixpath.dirname, paths)}))
    lines = ["umask 022", f"[ ! -d {shlex.quote(target)} ] || was=1", f"mkdir -p -- {directories} || exit"]
    for number, path in enumerate(map(shlex.quote, paths), 1):
        lines.append(f"[ ! -e {path} ] && [ ! -h {path} ] || rm -f -- {path} || exit")
        lines.append(f'printf %s "${{{number}}}" >{path} || exit')
    for mode in sorted({file.mode for file in small} - {0o644}):
        of_mode = shlex.join(path for path, file in zip(paths, small, strict=True) if file.mode == mode)
        lines.append(f"chmod {mode:o} -- {of_mode} || exit")
    if is_readable:
        lines.append(f'[ -z "$was" ] || {{ set -- {shlex.quote(target)}; {_READABLE.strip()}; }}')
    return "\n".join(lines)


def _place(runtime: Runtime, files: Files) -> str:
    return posixpath.normpath(posixpath.join(runtime.workdir, files.target))


def put(runtime: Runtime, files: Files, *, user: str | None) -> None:
    """Copy the files into their directory, which is made; they belong to user and keep their modes.

    Raises:
        SandboxFileError: the sandbox cannot store them, or this machine cannot read them.
        SandboxUnavailable: the sandbox went away.
        UsageError: the owner that the files name is not a user of the sandbox.
    """
    if files.owner is not None:
        put(runtime, files.model_copy(update={"owner": None}), user="root")
        _give(runtime, files, files.owner)
        return
    if _put_texts(runtime, files, user=user):
        return
    for name, text in files.texts.items():
        mode = 0o755 if text.startswith("#!") else 0o644
        runtime.write_bytes(posixpath.join(files.target, name), text.encode(), mode=mode, user=user)
    if files.source is None:
        return
    if files.excluded:
        with tempfile.TemporaryDirectory() as temporary:
            staging = Path(temporary, "files")
            shutil.copytree(files.source, staging, symlinks=True, ignore=partial(_left_out, files))
            put(runtime, files.model_copy(update={"source": staging, "excluded": (), "texts": {}}), user=user)
        return
    if (small := _small_tree(files.source)) is None:
        runtime.upload(files.source, files.target, user=user)
        return
    for name, data, mode in small:
        runtime.write_bytes(posixpath.join(files.target, name), data, mode=mode, user=user)


def _give(runtime: Runtime, files: Files, owner: str) -> None:
    """Make owner the owner of the texts and of all directories between the target and them."""
    target = _place(runtime, files)
    paths = {target}
    for name in map(posixpath.normpath, files.texts):
        while name:
            paths.add(posixpath.join(target, name))
            name = posixpath.dirname(name)  # noqa: PLW2901 - up to the target
    result = runtime.run(["chown", "-h", owner, "--", *sorted(paths - {"/"})], user="root", workdir="/")
    if result.exit_code != 0:
        output = end_of_output(result.stderr)
        raise UsageError(f"The files at {target} cannot be given to {owner!r}: {output}. Name a user of the image.")


def _left_out(files: Files, directory: str, names: list[str]) -> set[str]:
    relative = Path(directory).relative_to(files.source or directory)
    return {name for name in names if (relative / name).as_posix() in files.excluded}


def _small_files(files: Files) -> list[_SmallFile] | None:
    """The texts and a small tree as a list; None where there is more."""
    modes = {True: 0o755, False: 0o644}
    texts = [_SmallFile(name, text.encode(), modes[text.startswith("#!")]) for name, text in files.texts.items()]
    if files.source is None:
        return texts if len(texts) <= _MAX_SMALL_FILES else None
    tree = None if files.excluded else _small_tree(files.source)
    return None if tree is None else texts + tree


def _small_tree(root: Path) -> list[_SmallFile] | None:
    """The regular files of a small tree; None where it is large, or holds anything else."""
    root = root.resolve()  # a task's directory may be a link
    found_files, total = list[tuple[str, Path, int]](), 0
    for path in _walk(root):
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            if not any(path.iterdir()):
                return None  # an empty directory has to arrive, too
            continue
        total += status.st_size
        if not stat.S_ISREG(status.st_mode) or len(found_files) == _MAX_SMALL_FILES or total > _MAX_SMALL_BYTES:
            return None
        found_files.append((path.relative_to(root).as_posix(), path, stat.S_IMODE(status.st_mode) & 0o777))
    return [_SmallFile(name, read_regular(path, inside=root), mode) for name, path, mode in found_files]


def _walk(root: Path) -> Iterator[Path]:
    for directory, subdirectories, names in os.walk(root):
        for name in (*subdirectories, *names):
            yield Path(directory, name)


def _is_small(entry: DirEntry) -> bool:
    """Whether it is a regular file with a valid name here: names come from a shell that an agent may have changed."""
    return entry.kind == "file" and _is_plain(entry.name) and entry.size_bytes <= _MAX_SMALL_BYTES


def _is_plain(name: str) -> bool:
    return name.isprintable() and "/" not in name and name not in {"", ".", ".."}


def copy_from_sandbox(runtime: Runtime, source: str, target: Path, *, exclude: Sequence[str] = ()) -> list[str]:
    """Copy a file or directory of the sandbox to target, as root; return what was left out, with the reasons.

    What does not exist is not copied and not told; nor is what matches a pattern of exclude by its name or by its path
    below source.
    """
    left_out = _fetch(runtime, source, target, _FetchBudget(FETCH_LIMITS))
    patterns = [quoted_brackets(pattern) for pattern in exclude]
    for path in sorted(target.rglob("*"), reverse=True) if exclude else ():
        names = (path.name, path.relative_to(target).as_posix())
        if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    return left_out


class _FetchBudget:
    """How much more may be fetched in further steps: members and bytes made here, and time."""

    def __init__(self, limits: TransferLimits) -> None:
        self._whole = self._left = limits
        self._until = time.monotonic() + limits.timeout_s

    @property
    def limits(self) -> TransferLimits:
        """The limits of the next step."""
        return self._left._replace(file_bytes=self._left.total_bytes, timeout_s=self._until - time.monotonic())

    def refusal(self) -> str | None:
        """Return why nothing more may be fetched; None as long as something may."""
        limits, whole = self.limits, self._whole
        if limits.members > 0 and limits.total_bytes > 0 and limits.timeout_s > 0:
            return None
        return (
            f"one copy is limited to {whole.members} files and directories, {whole.total_bytes} bytes "
            f"and {whole.timeout_s:g} s"
        )

    def spend(self, size: int) -> None:
        """Subtract one file or directory of that size, which takes at least a block."""
        left = self._left
        size = max(BLOCK_BYTES, size)
        self._left = left._replace(members=left.members - 1, total_bytes=left.total_bytes - size)


def _fetch(runtime: Runtime, source: str, target: Path, budget: _FetchBudget) -> list[str]:
    if (refusal := budget.refusal()) is not None:
        return [f"{source}: {refusal}"]
    budget.spend(0)
    with contextlib.suppress(OSError):  # a file that goes or grows meanwhile: the archive says what was left out
        if _fetch_small(runtime, source, target, budget):
            return []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        left_out = runtime.download(source, target, user="root", limits=budget.limits)
    except FileNotFoundError:
        return []
    except SandboxFileError as error:
        return [f"{source}: {error}"]
    except ToolError as error:
        return _fetch_entries(runtime, source, target, budget, error)
    for path in (target, *target.rglob("*")):
        budget.spend(path.lstat().st_blocks * 512)
    return [f"{entry.path}: {entry.reason}" for entry in left_out]


def _fetch_small(runtime: Runtime, source: str, target: Path, budget: _FetchBudget) -> bool:
    """Fetch a directory of a few small files one by one; return whether it is such a directory, or empty."""
    entries = runtime.list_dir(source, user="root")
    if len(entries) > min(_MAX_SMALL_FILES, budget.limits.members) or not all(_is_small(entry) for entry in entries):
        return False
    if entries:
        target.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        limit_bytes = max(0, min(_MAX_SMALL_BYTES, budget.limits.total_bytes))
        data = runtime.read_bytes(posixpath.join(source, entry.name), user="root", limit_bytes=limit_bytes)
        budget.spend(len(data))
        (target / entry.name).write_bytes(data)
    return True


def _fetch_entries(runtime: Runtime, source: str, target: Path, budget: _FetchBudget, refusal: ToolError) -> list[str]:
    """Fetch the entries of a directory that is too large, as far as the budget allows, the smallest first."""
    try:
        entries = sorted(
            runtime.list_dir(source, user="root"), key=lambda entry: (entry.kind == "directory", entry.size_bytes)
        )
    except OSError:
        return [f"{source}: {refusal}"]
    refusals = list[str]()
    for number, entry in enumerate(entries):
        local_path, remote_path = target / entry.name, posixpath.join(source, entry.name)
        if number >= MAX_ENTRIES or remote_path.count("/") > MAX_DEPTH:
            return [*refusals, f"{source}: {len(entries) - number} entries more: {refusal}"]
        if not _is_plain(entry.name) or (entry.kind == "file" and entry.size_bytes > budget.limits.file_bytes):
            refusals.append(f"{remote_path}: {refusal}")
            continue
        refusals += _fetch(runtime, remote_path, local_path, budget)
    return refusals
