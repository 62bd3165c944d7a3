"""Changes in a workspace on this machine that programs of the machine may execute or obey without being asked.

`scan_tree` reads the whole tree by git's rules and follows no link; `compare_scans` lists the differences, worst first.
`ChangeTracker` stores the first scan in a file until a report, so that a killed session's changes are reported too.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import os
import secrets
import stat
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from ohsandbox.errors import UsageError
from ohsandbox.private_files import MAX_CONTENT_BYTES, open_locked, read_regular, write_atomically
from ohsandbox.runtime.workspace import git_layout
from ohsandbox.runtime.workspace.sensitive_paths import is_obeyed, may_matter, runs_when_opened
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_HELD = 50_000
"""Changes stored by name per kind, 10 MB; further ones are only counted. One kind cannot displace another."""


class ChangeKind(enum.IntEnum):
    """The reason why a path is reported; the worst has the lowest number."""

    words: str
    """The reason in words for a person."""

    def __new__(cls, rank: int, words: str = "") -> Self:  # noqa: D102 - the members say it
        kind = int.__new__(cls, rank)
        kind._value_, kind.words = rank, words
        return kind

    RUNS_BY_GIT = 1, "git runs what it names as soon as you use git, or your prompt or editor does"
    WRITES_BY_GIT = 2, "git writes through this link: your next commit overwrites what it leads to"
    REPOSITORY = 3, "git takes it for a repository"
    UNSEEN = 4, "could not be looked into"
    OPENED = 5, "an editor, an agent or a shell runs it when the directory is opened"
    LINK_OUT = 6, "a link that leads out of the directory"
    GIT_STATE = 7, "git goes on with it, or obeys it"
    SPECIAL = 8, "a socket, FIFO or device"
    OBEYED = 9, "test runners, package managers, CI or agents obey it"
    EXECUTABLE = 10, "executable"


class WorkspaceChange(NamedTuple):
    """A path that is new or changed."""

    kind: ChangeKind
    path: str
    """Path below the directory; may hold any character except NUL, and surrogates for bytes that are not UTF-8."""
    is_new: bool
    detail: str = ""
    """The setting and its value, or the link's target. May hold the same characters as path."""


class WorkspaceReport(NamedTuple):
    """The changes since a point in time, worst first."""

    since: float
    """Seconds since the epoch."""
    changes: tuple[WorkspaceChange, ...] = ()
    not_held: tuple[tuple[ChangeKind, int], ...] = ()
    """For each kind with over MAX_HELD changes, the number not listed."""


class WorkspaceScan(NamedTuple):
    """The contents of a directory at one moment."""

    at: float
    """Seconds since the epoch."""
    marked: dict[str, tuple[ChangeKind, str]]
    """Names that matter by themselves: the kind, and a stamp that changes with the file."""
    repositories: dict[str, dict[str, str]]
    """Per repository or `.git` file, a stamp of each part that git obeys."""
    named: dict[str, str]
    """Paths of marked that git reads or runs, with the setting or the hook that names them."""
    beside: tuple[str, ...] = ()
    """Other directories of the same sandbox, whose repositories' settings and hooks counted."""


_PARTS = (
    "config", "config.worktree", "commondir", "gitdir", "info/attributes", "info/grafts", "objects/info/alternates",
    "rebase-merge/git-rebase-todo", "rebase-apply", "sequencer/todo",
)  # fmt: skip
"""gitrepository-layout(5): files that redirect git, name programs, or hold commands of an interrupted rebase."""
_LAYOUT = {name.lower(): name for name in git_layout.LAYOUT}
"""On macOS and Windows the name `head` finds `HEAD`."""
_STATE = frozenset(_PARTS[4:])
_LISTS = ("hooks", "remotes", "branches")
"""Directories in which git obeys every file; `git init` creates them empty, or with samples that it ignores."""


def scan_named(root: Path, *, beside: Sequence[Path] = ()) -> WorkspaceScan:
    """Look only at what git reads or runs in root by the settings and hooks at the top of it and of beside."""
    found = WorkspaceScan(time.time(), {}, {}, {}, tuple(map(str, beside)))
    _mark_named(str(root.absolute()), found, [root, *beside])
    return found


def scan_tree(root: Path, *, beside: Sequence[Path] = ()) -> WorkspaceScan:
    """Scan everything below root: 200,000 names take about a second on a local disk.

    beside: other directories of the same sandbox, whose repositories may name files in this one.
    """
    top = str(root.absolute())
    found = WorkspaceScan(time.time(), {}, {}, {}, tuple(map(str, beside)))
    layouts: dict[str, set[str]] = {}
    pointers: list[str] = []
    links: list[str] = []
    for path, entry, reason in git_layout.walk(top):
        if entry is None:
            found.marked[path or "."] = (ChangeKind.UNSEEN, reason)
            continue
        if (name := _LAYOUT.get(entry.name.lower())) is not None:
            layouts.setdefault(path.rpartition("/")[0], set()).add(name)
        elif entry.name == ".git":
            pointers.append(path)
        if entry.is_symlink():
            links.append(path)
        try:
            kind, stamp = _judge(top, path, entry)
        except OSError:
            continue  # removed meanwhile
        if kind is not None:
            found.marked[path] = (kind, stamp)
    for path in {*pointers, *(path for path, names in layouts.items() if git_layout.is_repository(names))}:
        found.repositories[path] = _parts(top, path)
    # git creates no link in a repository, and follows them: `git commit` truncates COMMIT_EDITMSG
    for path in (path for path in links if not found.repositories.keys().isdisjoint(git_layout.parents_of(path))):
        with contextlib.suppress(OSError):
            found.marked[path] = (ChangeKind.WRITES_BY_GIT, _stamp(os.lstat(f"{top}/{path}")))
    _mark_named(top, found, beside)
    return found


def _mark_named(top: str, found: WorkspaceScan, beside: Sequence[Path]) -> None:
    """Mark the paths that git reads or runs by its settings and hooks, wherever they are."""
    from ohsandbox.runtime.workspace import git_programs  # noqa: PLC0415 - only a bound directory is scanned
    from ohsandbox.runtime.workspace.git_settings import Names  # noqa: PLC0415 - only a bound directory is scanned

    pointers = {path: git_layout.pointed(top, path) for path, parts in found.repositories.items() if "" in parts}
    directories = [path for path in found.repositories if path not in pointers and (not path or _is_dotgit(path))]
    own = git_programs.repositories(top, directories, pointers)
    others = git_programs.repositories_beside(str(directory.absolute()) for directory in beside)
    for named in git_programs.named_paths(top, [*own, *others]):
        place = git_programs.package_directory(named.path) or named.path
        paths = [place]
        if place == named.path and named.names is Names.DIRECTORY:
            with contextlib.suppress(OSError):
                paths = [f"{place}/{name}".lstrip("/") for name in os.listdir(f"{top}/{place}")]  # noqa: PTH208 - texts
        for path in paths:
            with contextlib.suppress(OSError):
                stamp = _tree_stamp(top, path) if place != named.path else _stamp(os.lstat(f"{top}/{path}"))
                if not git_programs.is_held(top, path):
                    found.marked[path] = (ChangeKind.RUNS_BY_GIT, stamp)
                    found.named[path] = named.reason


def _is_dotgit(path: str) -> bool:
    return ".git" in path.split("/")


def _tree_stamp(top: str, path: str) -> str:
    """Return a stamp that changes with any file below a directory of packages: 20,000 files take 0.1 s."""
    digest = hashlib.sha256()
    for name, entry, reason in git_layout.walk(f"{top}/{path}"):
        with contextlib.suppress(OSError):  # ignored: it was removed meanwhile
            stamp = reason if entry is None else _stamp(entry.stat(follow_symlinks=False))
            digest.update(f"{name}\0{stamp}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def compare_scans(root: Path, before: WorkspaceScan, after: WorkspaceScan) -> WorkspaceReport:
    """Return what is new or different in after. Removed paths are not reported: nothing runs them."""
    held: list[WorkspaceChange] = []
    counts: Counter[ChangeKind] = Counter()
    for change in _changes(str(root.absolute()), before, after):
        counts[change.kind] += 1
        if counts[change.kind] <= MAX_HELD:
            held.append(change)
    more = tuple((kind, count - MAX_HELD) for kind, count in sorted(counts.items()) if count > MAX_HELD)
    return WorkspaceReport(before.at, tuple(sorted(held)), more)


def merged_reports(reports: Sequence[WorkspaceReport], roots: Sequence[Path]) -> WorkspaceReport:
    """Return one report of several directories; the paths of all but the first are prefixed with their root.

    Without reports, the result is empty.
    """
    if not reports:
        return WorkspaceReport(0.0)
    changes = [*reports[0].changes]
    for report, root in zip(reports[1:], roots[1:], strict=True):
        changes += [change._replace(path=f"{root}/{change.path}") for change in report.changes]
    counts = Counter[ChangeKind]()
    for report in reports:
        counts.update(dict(report.not_held))
    since = min(report.since for report in reports)
    return WorkspaceReport(since, tuple(sorted(changes)), tuple(sorted(counts.items())))


def _changes(top: str, before: WorkspaceScan, after: WorkspaceScan) -> Iterator[WorkspaceChange]:
    for path, parts in after.repositories.items():
        if before.repositories.get(path) != parts:
            yield from _repository_changes(top, path, before.repositories.get(path), parts)
    for path, (kind, stamp) in after.marked.items():
        old = before.marked.get(path)
        if old != (kind, stamp):
            detail = stamp if kind is ChangeKind.UNSEEN else ""
            if kind is ChangeKind.REPOSITORY:
                detail = "macOS and Windows take it for .git"
            elif kind is ChangeKind.RUNS_BY_GIT:
                detail = after.named.get(path, "")
            elif kind in {ChangeKind.LINK_OUT, ChangeKind.WRITES_BY_GIT}:
                detail = f"-> {_target(top, path)}"
            yield WorkspaceChange(kind, path, old is None, detail)


def _judge(top: str, path: str, entry: os.DirEntry[str]) -> tuple[ChangeKind | None, str]:
    """Return why the name matters by itself, if it does, and its stamp."""
    if entry.is_symlink():
        kind = ChangeKind.LINK_OUT if _leads_out(top, path) else _by_name(path, entry.name)
    elif entry.is_dir(follow_symlinks=False):
        kind = ChangeKind.REPOSITORY if git_layout.looks_like_dotgit(entry.name) else None
    elif entry.is_file(follow_symlinks=False):
        kind = _by_name(path, entry.name)
        if kind is None:
            in_git = path.startswith(".git/") or "/.git/" in path or path.endswith(".sample")
            if in_git or not entry.stat(follow_symlinks=False).st_mode & 0o111:
                return None, ""
            kind = ChangeKind.EXECUTABLE
    else:
        kind = ChangeKind.SPECIAL
    return kind, "" if kind is None else _stamp(entry.stat(follow_symlinks=False))


def _by_name(path: str, name: str) -> ChangeKind | None:
    matters = may_matter(path)
    if matters and runs_when_opened(path):
        return ChangeKind.OPENED
    if git_layout.looks_like_dotgit(name):
        return ChangeKind.REPOSITORY
    return ChangeKind.OBEYED if matters and is_obeyed(path) else None


def _leads_out(top: str, path: str) -> bool:
    """Whether a link's target is outside top. Without `..` it is inside, or behind another link, which is reported."""
    target = _target(top, path)
    if not target.startswith("/") and ".." not in target.split("/"):
        return False
    return not Path(os.path.realpath(f"{top}/{path}")).is_relative_to(os.path.realpath(top))


def _target(top: str, path: str) -> str:
    """Return a link's target as stored; empty if it is no longer a link."""
    try:
        return str(Path(top, path).readlink())
    except OSError:
        return ""


def _stamp(status: os.stat_result) -> str:
    """Return a directory's inode; for others inode, size, mode and change time, which only the clock can set back.

    A directory's change time is left out, since each new name in it changes it.
    """
    if stat.S_ISDIR(status.st_mode):
        return f"{status.st_ino:x}"
    return f"{status.st_ino:x}.{status.st_size:x}.{status.st_mode:x}.{status.st_ctime_ns:x}"


def _parts(top: str, path: str) -> dict[str, str]:
    """Return stamps of the parts that git obeys in a repository; for a `.git` file or link, its own."""
    whole = f"{top}/{path}" if path else top
    try:
        status = os.lstat(whole)
        if not stat.S_ISDIR(status.st_mode):
            return {"": _stamp(status)}
    except OSError:
        return {}
    found = {}
    for part in _PARTS:
        with contextlib.suppress(OSError):
            found[part] = _stamp(os.lstat(f"{whole}/{part}"))
    for part in _LISTS:
        with contextlib.suppress(OSError), os.scandir(f"{whole}/{part}") as entries:
            for entry in entries:
                if not entry.name.endswith(".sample"):
                    found[f"{part}/{entry.name}"] = _stamp(entry.stat(follow_symlinks=False))
    return found


def _repository_changes(
    top: str, path: str, old: dict[str, str] | None, new: dict[str, str]
) -> Iterator[WorkspaceChange]:
    """Yield at least one change for a new repository; for a known one, each part that differs."""
    prefix = f"{path}/" if path else ""
    is_told = False
    for part, stamp in new.items():
        place = prefix + part if part else path
        if (old or {}).get(part) == stamp:
            continue
        kind, detail = _judge_part(top, place, part)
        if kind is not None:
            is_told = True
            yield WorkspaceChange(kind, place, old is None or part not in old, detail)
    if old is None and not is_told:
        yield WorkspaceChange(ChangeKind.REPOSITORY, path or ".", is_new=True)


def _judge_part(top: str, path: str, part: str) -> tuple[ChangeKind | None, str]:
    """Return why a part that differs matters; None if it does not."""
    if not part:
        kind = ChangeKind.RUNS_BY_GIT if Path(top, path).is_symlink() else ChangeKind.REPOSITORY
        return kind, f"it names {git_layout.pointed(top, path) or '?'}"
    if part.startswith("hooks/"):
        return ChangeKind.RUNS_BY_GIT, "a hook"
    if part == "objects/info/alternates" and git_layout.read_small(top, path) == "":
        return None, ""  # created by the guard
    if part in _STATE or part.startswith(_LISTS):
        return ChangeKind.GIT_STATE, "an interrupted rebase runs what stands in it" if "todo" in part else ""
    return (None, "") if part == "gitdir" else _judge_config(part, git_layout.read_small(top, path))


def _judge_config(part: str, text: str | None) -> tuple[ChangeKind | None, str]:
    """Judge a configuration by its first setting that is not known to be harmless."""
    if text is None:
        return ChangeKind.RUNS_BY_GIT, "it is not a regular file"
    if not text or (part == "commondir" and text == ".\n"):  # created by the guard (docker/mounts/guard.py)
        return None, ""
    if part == "commondir":
        return ChangeKind.REPOSITORY, f"it names {text.strip()}"
    if len(text) >= git_layout.MAX_SMALL_FILE:
        return ChangeKind.RUNS_BY_GIT, "it is too long to judge"
    from ohsandbox.runtime.workspace.git_settings import may_name_program, read_settings  # noqa: PLC0415 - few scans meet a configuration

    for setting in read_settings(text):
        if may_name_program(setting):
            return ChangeKind.RUNS_BY_GIT, f"{setting.key} = {setting.value}"
    return ChangeKind.REPOSITORY, ""


class ChangeTracker:
    """The unreported changes of one session in a directory.

    The baseline is in a file below state (mode 0600, directory 0700) until `end`. The baseline of a killed process is
    taken over, so that the first report includes the changes of its session.
    """

    def __init__(self, root: Path, state: Path, *, beside: Sequence[Path] = (), only_named: bool = False) -> None:
        """Scan now, or take over the baseline of an earlier session that was killed.

        With only_named it scans by `scan_named`.

        Raises:
            UsageError: state cannot be written.
        """
        self.root, scan = root, scan_named if only_named else scan_tree
        self._scan = partial(scan, root, beside=beside)
        digest = hashlib.sha256(os.fsencode(root.resolve()) + b"\0named" * only_named).hexdigest()[:32]
        self._directory = state / digest
        self._lock: int | None = None
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._file, self._before = self._adopt_baseline() or self._begin()
            # what only repositories of the earlier session's directories name could have changed unseen
            self._scan = partial(scan, root, beside=sorted({*beside, *map(Path, self._before.beside)}))
        except OSError as error:
            raise UsageError(
                f"The state of workspace {str(root)!r} cannot be kept: {error}. Set OHSANDBOX_HOME to a "
                "writable directory."
            ) from error

    previous_was_killed: bool = False
    """Whether the baseline is from an earlier session that was killed."""

    def report(self) -> WorkspaceReport:
        """Return the unreported changes; from now on they count as reported."""
        after = self._scan()
        found = compare_scans(self.root, self._before, after)
        self._before, self.previous_was_killed = after, False
        if self._lock is not None:
            with contextlib.suppress(OSError):  # a full disk: reported again after a kill
                self._write(self._file, after)
        return found

    def end(self) -> None:
        """Remove the baseline. Calling it twice is fine; `report` still works."""
        lock, self._lock = self._lock, None
        if lock is not None:
            _forget(self._file, lock)
            with contextlib.suppress(OSError):
                self._directory.rmdir()  # not empty with another session's baseline

    def leave(self) -> None:
        """Undo the constructor: the baseline of a killed session stays for the next one."""
        if self.previous_was_killed and self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self.end()

    def _begin(self) -> tuple[Path, WorkspaceScan]:
        file = self._directory / f"{secrets.token_hex(8)}.json"
        self._lock = open_locked(file.with_suffix(".lock"), create=True)
        before = self._scan()
        self._write(file, before)
        return file, before

    def _adopt_baseline(self) -> tuple[Path, WorkspaceScan] | None:
        """Take over the oldest baseline whose owner is gone; newer ones add nothing."""
        found: list[tuple[WorkspaceScan, Path, int]] = []
        for file in self._directory.glob("*.json"):
            lock = open_locked(file.with_suffix(".lock"), create=False)
            if lock is None:
                continue
            if (before := _read(file)) is None:
                _forget(file, lock)
            else:
                found.append((before, file, lock))
        if not found:
            return None
        found.sort(key=lambda one: one[0].at)
        for _, file, lock in found[1:]:
            _forget(file, lock)
        before, file, self._lock = found[0]
        self.previous_was_killed = True
        return file, before

    def _write(self, file: Path, seen: WorkspaceScan) -> None:
        data = json.dumps({"root": str(self.root), **seen._asdict()}).encode()
        write_atomically(file, data, durable=False)


def _read(file: Path) -> WorkspaceScan | None:
    try:
        held = load_json(read_regular(file, limit_bytes=MAX_CONTENT_BYTES))
        marked = {str(path): (ChangeKind(kind), str(stamp)) for path, (kind, stamp) in held["marked"].items()}
        beside = tuple(map(str, held.get("beside", ())))
        return WorkspaceScan(float(held["at"]), marked, dict(held["repositories"]), dict(held["named"]), beside)
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None


def _forget(file: Path, lock: int) -> None:
    file.unlink(missing_ok=True)
    file.with_suffix(".lock").unlink(missing_ok=True)
    os.close(lock)
