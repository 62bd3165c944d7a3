"""The programs of this machine: where each is looked for, and the only way in which we start one.

A clone may contain `bin/git`, and a person's PATH an entry such as `./bin` or `./node_modules/.bin`. So a program's
name stands for a file in an absolute directory of PATH outside of every workspace, and what we start looks in the same
directories for its own helpers.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import ProgramNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_workspaces: set[str] = set()
_path_of_person: str | None = None
"""PATH before `clean_own_path`."""


def exclude_workspace(directory: str | os.PathLike[str]) -> None:
    """Never again take a program from a directory that a sandbox gets or was made from, nor from its repository."""
    if (root := _workspace_of(os.fspath(directory))) is not None:
        _workspaces.add(root)
        if _path_of_person is not None:
            clean_own_path()


def clean_own_path() -> None:
    """Remove the entries of this process's own PATH that do not count, for libraries that start programs."""
    global _path_of_person  # noqa: PLW0603 - PATH is the process's
    _path_of_person = person_path()
    os.environ["PATH"] = trusted_path()


def person_path() -> str:
    """Return PATH as the person has it: for commands that run in the workspace by design."""
    return os.environ.get("PATH", os.defpath) if _path_of_person is None else _path_of_person


def trusted_path(path: str | None = None) -> str:
    """Return the absolute directories of path (default: PATH) that are in no workspace and no project's environment.

    A virtual environment or `node_modules` may be that of another workspace. Without any directory left it is that of
    the system, for an empty PATH means the present directory.
    """
    return os.pathsep.join(_directories(path)) or os.defpath


def find_program(name: str, *, path: str | None = None) -> str | None:
    """Return the absolute path of a program in the directories of path that count, or None; an absolute one is kept."""
    if "/" in name:
        return name if name.startswith("/") else None
    roots = _roots()
    for directory in _directories(path, roots):
        program = shutil.which(name, path=directory)
        if program and not _is_below(os.path.realpath(program), roots):  # a link into one is passed over
            return program
    return None


def program(name: str, *, remedy: str = "") -> str:
    """Return the absolute path of a program.

    Raises:
        ProgramNotFoundError: it is in no directory of `trusted_path`, or its name is a relative path.
    """
    if found := find_program(name):
        return found
    if "/" in name:
        raise ProgramNotFoundError(
            f"Program {name!r} is named by a relative path, which the present directory decides.",
            remedy="Name it by an absolute path.",
        )
    directories = _directories(None)
    ignored = [entry for entry in person_path().split(os.pathsep) if entry not in directories]
    reason = f"; {', '.join(map(repr, ignored))} of PATH is relative or a project's, and not used" if ignored else ""
    raise ProgramNotFoundError(
        f"Program {name!r} was not found in {os.pathsep.join(directories) or 'PATH'}{reason}.",
        remedy=remedy or "Install it, or add its absolute directory to PATH.",
    )


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables (default: ours) of a program to start: PATH, if it is among them, is `trusted_path`."""
    copied = dict(os.environ if variables is None else variables)
    return copied | {"PATH": trusted_path(copied["PATH"])} if "PATH" in copied else copied


def run(
    words: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a program as `subprocess.run` does, found by `program` and with the variables of `environment`.

    Raises:
        ProgramNotFoundError: see `program`.
        OSError, subprocess.SubprocessError: as `subprocess.run`.
    """
    return subprocess.run([program(words[0]), *words[1:]], env=environment(env), **options)  # noqa: PLW1510 - a caller's


def start(words: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[Any]:
    """Start a program as `subprocess.Popen` does; otherwise as `run`."""
    return subprocess.Popen([program(words[0]), *words[1:]], env=environment(env), **options)


def _workspace_of(directory: str) -> str | None:
    """Return the outermost repository around a directory, or itself; None where it holds a home or the system.

    A home may be a repository (of dotfiles), whose `bin` is the person's.
    """
    around = _outside_of_homes(directory)
    return _repository(around) or next(iter(around), None)


def _enclosing_repository() -> str | None:
    """Return the outermost repository around the present directory; None without one, or if the directory is gone."""
    with contextlib.suppress(OSError):
        return _repository(_outside_of_homes(os.getcwd()))  # noqa: PTH109 - a text, as PATH's entries are
    return None


def _repository(directories: Sequence[str]) -> str | None:
    return next((directory for directory in reversed(directories) if os.path.lexists(f"{directory}/.git")), None)


def _outside_of_homes(directory: str) -> list[str]:
    """Return the directory and those around it that hold neither a home nor programs of the system."""
    directories, kept, place = [], [*_kept_directories()], os.path.realpath(directory)
    while not any(_contains(place, directory) for directory in kept):
        directories.append(place)
        place = os.path.dirname(place)  # noqa: PTH120 - a text, as PATH's entries are
    return directories


def _kept_directories() -> Iterator[str]:
    yield "/"
    yield from map(os.path.realpath, [os.path.expanduser("~"), *os.defpath.split(os.pathsep)])  # noqa: PTH111 - as above
    with contextlib.suppress(KeyError):
        yield os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir)


def _contains(directory: str, place: str) -> bool:
    return place == directory or place.startswith(f"{directory.rstrip('/')}/")


def _roots() -> set[str]:
    """Return the workspaces, and the repository around the present directory."""
    here = _enclosing_repository()
    return _workspaces if here is None else {*_workspaces, here}


def _directories(path: str | None, roots: set[str] | None = None) -> list[str]:
    """Return the entries of path (default: PATH) that count."""
    roots = _roots() if roots is None else roots
    return [
        entry
        for entry in (person_path() if path is None else path).split(os.pathsep)
        if entry.startswith("/") and not _is_of_a_project(os.path.realpath(entry), roots)
    ]


def _is_of_a_project(real: str, roots: set[str]) -> bool:
    is_environment = os.path.exists(f"{real}/../pyvenv.cfg") or "node_modules" in real.split("/")  # noqa: PTH110 - as above
    return is_environment or _is_below(real, roots)


def is_in_workspace(real: str) -> bool:
    """Return whether a path without links is in a workspace, which a sandbox may write."""
    return _is_below(real, _roots())


def _is_below(real: str, roots: set[str]) -> bool:
    while real not in roots and real != "/":
        real = os.path.dirname(real)  # noqa: PTH120 - as above
    return real in roots
