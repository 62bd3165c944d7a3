"""Opens the files of a task for the format readers: bounded and strict, and only files inside the task's own tree."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pathspec import GitIgnoreSpec

from ohsandbox import strict_json, strict_yaml
from ohsandbox.errors import UsageError
from ohsandbox.evaluation import images
from ohsandbox.evaluation.formats.problems import InvalidTask, Problem, unusable_texts
from ohsandbox.network.policy import parse_rule
from ohsandbox.private_files import read_regular
from ohsandbox.strict_yaml import InvalidYaml, YamlFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ohsandbox.evaluation.task import TaskEnvironment

MAX_TEXT_BYTES = 4 * 1024**2
"""Largest file written by a person: instructions and scripts of public tasks have at most 200 KB."""
_MAX_TREE_FILES = 100_000
MAX_LINE_BYTES = 64 * 1024**2
"""Largest line of a task; the largest instance of SWE-bench's datasets has 3 MB, mostly a patch of the tests."""
IGNORE_NAME = ".harborignore"


def read_text(path: Path, root: Path, *, missing: str, limit_bytes: int = MAX_TEXT_BYTES) -> str:
    """Read a file of the task in root as UTF-8.

    Raises:
        InvalidTask: it is missing (the text says what it is for), no regular file, too large, no UTF-8, not readable,
            or a link that leads out of the task.
    """
    try:
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise InvalidTask([Problem(path, None, f"leads out of the task, to {path.readlink()}: put the file here")])
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InvalidTask([Problem(path, None, "is not a regular file")])
        if status.st_size > limit_bytes:
            message = f"has {status.st_size:,} bytes: expected at most {limit_bytes:,}"
            raise InvalidTask([Problem(path, None, message)])
        text = read_regular(path, limit_bytes=limit_bytes, follow=True).decode()
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidTask([Problem(path, None, f"missing: {missing}")]) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InvalidTask([Problem(path, line, "is not UTF-8: save it as UTF-8")]) from None
    except OSError as error:
        raise InvalidTask([Problem(path, None, f"cannot be read: {error.strerror}")]) from None
    if "\0" in text:
        raise InvalidTask([Problem(path, text[: text.index("\0")].count("\n") + 1, "holds a NUL character: remove it")])
    return text


def parse_task_yaml(text: str, file: Path) -> YamlFile:
    """Parse a file's text.

    Raises:
        InvalidTask: it is not one YAML document, or a hostile one.
    """
    try:
        return strict_yaml.parse_yaml(text)
    except InvalidYaml as error:
        raise InvalidTask([Problem(file, line, message) for line, message in error.faults]) from None


class JsonLine(NamedTuple):
    """A line that is not blank."""

    number: int
    """The line's number, from 1."""
    offset: int
    """The offset of its first byte in the file."""
    value: dict[str, Any]
    problem: Problem | None = None
    """Why the line is not an object; value is empty then."""

    def line_of(self, _: object) -> int:
        """Return the line of any key: always this one line."""
        return self.number


def read_lines(path: Path, *, limit_bytes: int = MAX_LINE_BYTES) -> Iterator[JsonLine]:
    """Read a file line by line.

    Raises:
        InvalidTask: it cannot be read, or a line is longer than limit_bytes, after which nothing is read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidTask([Problem(path, None, "is not a regular file")])
        with path.open("rb") as opened:
            number = offset = 0
            while data := opened.readline(limit_bytes + 1):
                number, begin, offset = number + 1, offset, offset + len(data)
                if len(data) > limit_bytes:
                    raise InvalidTask([Problem(path, number, f"is a line of more than {limit_bytes:,} bytes")])
                if data.strip():
                    yield _parsed(data, path, number, begin)
    except OSError as error:
        raise InvalidTask([Problem(path, None, f"cannot be read: {error.strerror}")]) from None


def _parsed(data: bytes, path: Path, number: int, offset: int) -> JsonLine:
    try:
        value = strict_json.parse_json(data)
    except ValueError as error:
        return JsonLine(number, offset, {}, Problem(path, number, f"not JSON: {error}"))
    if not isinstance(value, dict):
        return JsonLine(number, offset, {}, Problem(path, number, 'expected an object, as in {"id": ...}'))
    if places := unusable_texts(value):
        message = f"{'.'.join(places[0])}: holds a NUL character or half of a surrogate pair: remove it"
        return JsonLine(number, offset, {}, Problem(path, number, message))
    return JsonLine(number, offset, value)


class _Tree(NamedTuple):
    """A directory whose files are copied into a sandbox."""

    problems: list[Problem]
    excluded: tuple[str, ...]
    """Relative paths that `.harborignore` files below it leave out; for a directory only its own path."""


def look_at_tree(source: Path, root: Path) -> _Tree:
    """List every file below source, a directory of the task in root; only `.harborignore` files are opened."""
    if not source.resolve().is_relative_to(root):
        return _Tree([Problem(source, None, "leads out of the task: put the directory here")], ())
    problems, excluded, specs = list[Problem](), list[str](), dict[str, GitIgnoreSpec]()
    count = 0
    for directory, subdirectories, names in os.walk(source, onerror=lambda error: problems.append(_unreadable(error))):
        path = Path(directory)
        if IGNORE_NAME in names:
            specs[directory] = GitIgnoreSpec.from_lines(
                read_text(path / IGNORE_NAME, root, missing="a list of patterns").splitlines()
            )
        ignored = {
            name
            for name in (*subdirectories, *names)
            if _is_ignored(path / name, source, specs, name in subdirectories)
        }
        excluded += [(path / name).relative_to(source).as_posix() for name in sorted(ignored)]
        subdirectories[:] = [name for name in subdirectories if name not in ignored]
        count += len(names)
        if count > _MAX_TREE_FILES:
            return _Tree(
                [Problem(source, None, f"holds more than {_MAX_TREE_FILES:,} files: put them into an image")], ()
            )
        for name in (*subdirectories, *names):
            if name not in ignored and (problem := _problem_of_entry(path / name, root)):
                problems.append(problem)
    return _Tree(problems, tuple(excluded))


def _is_ignored(path: Path, source: Path, specs: dict[str, GitIgnoreSpec], is_directory: bool) -> bool:  # noqa: FBT001
    if path.name == IGNORE_NAME:
        return True
    excluded = False
    for parent in [*reversed([parent for parent in path.parents if parent.is_relative_to(source)])] if specs else ():
        if (spec := specs.get(str(parent))) is not None:
            included = spec.check_file(path.relative_to(parent).as_posix() + "/" * is_directory).include
            excluded = excluded if included is None else included
    return excluded


def _problem_of_entry(path: Path, root: Path) -> Problem | None:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        if not path.resolve().is_relative_to(root):
            return Problem(path, None, f"leads out of the task, to {path.readlink()}: put the file here")
    elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return Problem(path, None, "is neither a file nor a directory: remove it")
    elif not os.access(path, os.R_OK):
        return Problem(path, None, "cannot be read: permission denied")
    return None


def _unreadable(error: OSError) -> Problem:
    return Problem(Path(error.filename), None, f"cannot be read: {error.strerror}")


def environment_problems(told: TaskEnvironment) -> list[tuple[str, str]]:
    """Return what an engine would refuse, as pairs of a field's name and a sentence; no engine is contacted."""
    options_by_field: dict[str, dict[str, object]] = {
        "image": {"image": told.image} if told.image is not None else {},
        "workdir": {"workdir": told.workdir},
        "env": {"env": told.env},
        "cpus": {"cpus": told.cpus},
        "memory_bytes": {"memory_bytes": told.memory_bytes},
        "disk_bytes": {"disk_bytes": told.disk_bytes},
    }
    try:
        images.check_options(
            **{name: value for options in options_by_field.values() for name, value in options.items()}
        )
    except UsageError:
        pass  # which of them is asked now, each by itself: that takes five times as long
    else:
        return []
    problems = []
    for field, options in options_by_field.items():
        try:
            images.check_options(**options)
        except UsageError as error:
            problems.append((field, str(error)))
    return problems


def hosts_of_task(hosts: Iterable[str]) -> tuple[str, ...]:
    """Return the rules of a task's allowlist: public hosts only, since its author is not the person who runs it.

    Raises:
        UsageError: one is not a host, or is more than a public host; one line.
    """
    rules = [parse_rule(host) for host in hosts]
    if (more := next((rule for rule in rules if rule.private or not rule.host), None)) is not None:
        raise UsageError(f"{more.text!r} is for the person who runs the task (--agent-allow), not for a task.")
    return tuple(rule.text for rule in rules)
