"""How a person names directories and mounts: `DIR[:ro]` and `SRC:DST[:ro]`. Nothing is looked up here."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

WORKSPACE = "/workspace"
MORE_WORKSPACES = "/workspaces"
"""Each workspace after the first is mounted below it, by its name."""
_MODES = {"ro": True, "rw": False}


class NamedPath(NamedTuple):
    """A directory as it was named."""

    path: str
    read_only: bool


class NamedMount(NamedTuple):
    """A mount as it was named."""

    source: str
    target: str
    read_only: bool

    def __str__(self) -> str:
        return f"{self.source}:{self.target}" + (":ro" if self.read_only else "")


def parse_path(text: str) -> NamedPath:
    """The parts of `DIR[:ro]`; a directory whose own name ends so is written with a slash behind it."""
    head, colon, mode = text.rpartition(":")
    return NamedPath(head, _MODES[mode]) if colon and head and mode in _MODES else NamedPath(text, read_only=False)


def parse_mount(text: str) -> NamedMount:
    """The parts of `SRC:DST[:ro]`.

    Raises:
        UsageError: it has no two paths, or more than two.
    """
    path, read_only = parse_path(text)
    source, colon, target = path.partition(":")
    if not (colon and source and target.startswith("/")) or ":" in target:
        raise UsageError(
            f"Mount {text!r} is not SOURCE:TARGET, SOURCE:TARGET:ro or :rw. Remedy: name a path of this machine and an "
            "absolute one of the sandbox; a colon in a name is possible in Python only (Mount(source=..., target=...))."
        )
    return NamedMount(source, target, read_only)


def place_of_workspace(directory: str, *, is_first: bool, same_path: bool) -> str:
    """Where a workspace lies in the sandbox, of its real path here."""
    if same_path:
        return directory
    return WORKSPACE if is_first else f"{MORE_WORKSPACES}/{PurePosixPath(directory).name}"


def moved_places(places: Sequence[str], directory: Path) -> dict[str, Path]:
    """Where in a directory the files of workspaces are put, by their places in the sandbox: one alone fills it.

    Of several each has the last name of its place, those after the first with that name a number as well.
    """
    if len(places) == 1:
        return {places[0]: directory}
    found: dict[str, Path] = {}
    for place in places:
        name = PurePosixPath(place).name
        tried = (name, *(f"{name}-{number}" for number in range(2, len(places) + 2)))
        found[place] = directory / next(one for one in tried if directory / one not in found.values())
    return found
