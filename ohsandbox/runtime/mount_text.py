"""Directories and mounts as on the command line: `DIR[:ro]` and `SRC:DST[:ro]`. Paths are not looked up."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, Self

from ohsandbox.arguments import ConfigModel
from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

WORKSPACE = "/workspace"
MORE_WORKSPACES = "/workspaces"
"""Directory in which each workspace after the first is mounted, by its name."""
_MODES = {"ro": True, "rw": False}


class _NamedPath(NamedTuple):
    """A directory, as a person wrote it."""

    path: str
    read_only: bool


class Mount(ConfigModel):
    """A file or directory of this machine in a sandbox.

    source is a path of this machine: a directory, or (read-only) a file. target is an absolute path in the sandbox.
    `Mount.parse("SOURCE:TARGET[:ro]")` reads the form of the command line.
    """

    by_position = ("source", "target")

    source: str
    target: str
    read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the mount in a text.

        Raises:
            UsageError: it does not have two paths, or the target is not absolute.
        """
        path, read_only = parse_path(text)
        source, colon, target = path.partition(":")
        if not (colon and source and target.startswith("/")) or ":" in target:
            raise UsageError(
                f"Mount {text!r} is not SOURCE:TARGET, SOURCE:TARGET:ro or :rw. Name a path of this machine "
                "and an absolute one of the sandbox; a colon in a name is possible in Python only "
                "(Mount(source=..., target=...))."
            )
        return cls(source=source, target=target, read_only=read_only)

    def __str__(self) -> str:
        return f"{self.source}:{self.target}" + (":ro" if self.read_only else "")

    @property
    def name(self) -> str:
        """The last part of source."""
        return PurePosixPath(self.source).name


def parse_path(text: str) -> _NamedPath:
    """Return directory and mode of `DIR[:ro]`; a directory whose own name ends in `:ro` needs a slash at its end."""
    head, colon, mode = text.rpartition(":")
    return _NamedPath(head, _MODES[mode]) if colon and head and mode in _MODES else _NamedPath(text, read_only=False)


def place_of_workspace(directory: str, *, is_first: bool, same_path: bool) -> str:
    """Return the path in the sandbox of a workspace, given its real path on this machine."""
    if same_path:
        return directory
    return WORKSPACE if is_first else f"{MORE_WORKSPACES}/{PurePosixPath(directory).name}"


def moved_places(places: Sequence[str], directory: Path) -> dict[str, Path]:
    """Return where in a directory the files of workspaces go, by their paths in the sandbox; a single one fills it.

    With several, each gets a directory by the last part of its path, with a number if that is taken.
    """
    if len(places) == 1:
        return {places[0]: directory}
    directories: dict[str, Path] = {}
    for place in places:
        name = PurePosixPath(place).name
        tried = (name, *(f"{name}-{number}" for number in range(2, len(places) + 2)))
        directories[place] = directory / next(
            candidate for candidate in tried if directory / candidate not in directories.values()
        )
    return directories
