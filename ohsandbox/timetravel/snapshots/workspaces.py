"""`Workspaces`: the directories of this machine that a conversation works in, read and written as one tree."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.runtime.mount_text import moved_places
from ohsandbox.timetravel.snapshots.manifest import Manifest, scan_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.timetravel.snapshots.manifest import FileChange
    from ohsandbox.timetravel.snapshots.restore import UnappliedChange
    from ohsandbox.timetravel.snapshots.store import SnapshotStore

_EMPTY = Manifest(0, {}, {})


class Workspaces(NamedTuple):
    """Directories bound as workspaces. Paths of the tree are relative to the only one or begin with a name."""

    directories: dict[str, Path]
    """Directories by the first name of paths in the tree; a single one has the name ""."""
    places: Mapping[str, str] = MappingProxyType({})
    """Paths in the sandbox by the same names; empty for a single one."""

    def __str__(self) -> str:
        return ", ".join(map(str, self.directories.values()))

    @classmethod
    def bound(cls, places: Mapping[str, Path]) -> Workspaces | None:
        """Return the workspaces of directories, given by their paths in the sandbox; None if there are none."""
        if len(places) < 2:  # noqa: PLR2004 - one alone
            return cls({"": next(iter(places.values()))}) if places else None
        names = {mount_path: path.name for mount_path, path in moved_places([*places], Path("/")).items()}
        return cls(
            {names[mount_path]: path for mount_path, path in places.items()},
            {names[mount_path]: mount_path for mount_path in places},
        )

    @classmethod
    def recorded(cls, data: Mapping[str, Any] | None) -> Workspaces | None:
        """Return the workspaces in the result of `record`; None for None."""
        if not data:
            return None
        places = data.get("places") or {"": data["path"]}
        return cls.bound({str(mount_path): Path(path) for mount_path, path in places.items()})

    @property
    def first(self) -> Path:
        """The directory that was named first."""
        return next(iter(self.directories.values()))

    @property
    def only(self) -> Path | None:
        """The only directory; None if there are several."""
        return None if self.places else self.first

    def record(self) -> dict[str, Any]:
        """Return the data for an event: {path}, and with several workspaces {path, places}."""
        several = {self.places[name]: str(path) for name, path in self.directories.items() if self.places}
        return {"path": str(self.first)} | ({"places": several} if several else {})

    def for_runtime(self) -> Path | dict[str, Path]:
        """Return the argument for `Runtime.fork`: the directory, or several by their paths in the sandbox."""
        return {self.places[name]: path for name, path in self.directories.items()} if self.places else self.first

    def moved(self, directory: Path) -> Workspaces:
        """Return the same workspaces in another directory: it is the only one, or has a subdirectory for each."""
        return self._replace(directories={name: directory / name for name in self.directories})

    def in_sandbox(self, path: str) -> str:
        """Return a path of the tree as a path in the sandbox; with one workspace it stays relative."""
        name, _, subpath = path.partition("/")
        return f"{self.places[name]}/{subpath}" if name in self.places else path

    def scan(
        self, keeper: SnapshotStore, *, taken_ns: int = 0, before: Manifest | None = None, git: bool = True
    ) -> Manifest:
        """Scan each directory, each within the limits of one; see `manifest.scan_directory`.

        Raises:
            UsageError: a directory cannot be read, or is over a limit.
        """
        combined = Manifest(taken_ns, {}, {})
        for name, directory in self.directories.items():
            previous = _below(name, before or _EMPTY)
            manifest = scan_directory(directory, keeper, taken_ns=taken_ns, before=previous, git=git)
            combined.entries.update({_joined(name, path): entry for path, entry in manifest.entries.items()})
            combined.left_out.update({_joined(name, path): reason for path, reason in manifest.left_out.items()})
            combined = combined._replace(special=combined.special + manifest.special)
        return combined

    def write(self, changes: Sequence[FileChange], store: SnapshotStore, *, git: bool) -> list[UnappliedChange]:
        """Apply changes to paths of the tree; return those that failed. See `write_changes`.

        Raises:
            UsageError: a directory cannot be opened, or its path contains a symlink.
        """
        from ohsandbox.timetravel.snapshots.restore import write_changes  # noqa: PLC0415 - few conversations go back

        refused: list[UnappliedChange] = []
        for name, directory in self.directories.items():
            prefix = _joined(name, "")
            own_changes = [
                change._replace(path=change.path.removeprefix(prefix))
                for change in changes
                if change.path.startswith(prefix)
            ]
            failed = write_changes(directory, own_changes, store, git=git) if own_changes else []
            refused += [change._replace(path=_joined(name, change.path)) for change in failed]
        return refused


def _joined(name: str, path: str) -> str:
    return f"{name}/{path}" if name else path


def _below(name: str, tree: Manifest) -> Manifest:
    """Return the manifest of the entries below a name, by their paths there; without left-out paths."""
    if not name:
        return tree
    prefix = _joined(name, "")
    entries = {path.removeprefix(prefix): entry for path, entry in tree.entries.items() if path.startswith(prefix)}
    return tree._replace(entries=entries, left_out={})
