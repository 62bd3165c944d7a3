"""Reads tasks: finds out the format of a path, and reports every problem of every task before anything starts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.evaluation.formats import harbor, inline, swe_bench, terminal_bench
from ohsandbox.evaluation.formats.inputs import parse_task_yaml, read_lines, read_text
from ohsandbox.evaluation.formats.problems import InvalidTask, Problem
from ohsandbox.evaluation.task import Task  # noqa: TC001 - NamedTuple's annotation
from ohsandbox.review_text import on_one_line, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["InvalidTask", "LoadedTasks", "Problem", "load_tasks"]

_LIST_SUFFIXES = (".jsonl", ".yaml", ".yml")
MAX_LIST_BYTES = 64 * 1024**2
_MAX_ID_CHARS = 255
"""As long as the name of a directory, which is the id of most tasks; it is a label of each container."""
_LISTS_IN_DIRECTORIES = tuple(f"tasks{suffix}" for suffix in _LIST_SUFFIXES)
_SIGNS_OF_A_TASK = (
    "instruction.md", "run-tests.sh", "solution.sh", "docker-compose.yaml", "tests", "solution", "environment", "steps",
    "Task.toml", "task.yml", "task.json",
)  # fmt: skip
"""A directory that has one of these and no task.toml or task.yaml is a task that somebody has not finished."""
_HINT = (
    "a task is a directory with task.toml (Harbor) or task.yaml (Terminal-Bench), or a list of tasks in .jsonl or .yaml"
)


class LoadedTasks(NamedTuple):
    """The tasks found at some paths."""

    tasks: list[Task]
    """The tasks, sorted by id."""
    problems: list[Problem]
    """The problems, sorted by file and line."""


def load_tasks(paths: Path | Sequence[Path]) -> LoadedTasks:
    """Read the tasks at paths: a task, a list of tasks, a directory of those, or one of such directories.

    A task with a problem is not among the tasks. Two tasks of the same id are a problem: their results would have one
    name. Hidden directories are left out, and those without any file of a task.
    """
    loader = _Loader()
    for path in [paths] if isinstance(paths, Path) else paths:
        loader.load(path)
    by_id: dict[str, Task] = {}
    for task in loader.tasks:
        if len(task.id) > _MAX_ID_CHARS or not task.id.isprintable():
            message = (
                f"id {task.id[:40]!r}: expected at most {_MAX_ID_CHARS} characters, none of them a control character"
            )
            loader.problems.append(Problem(task.path, None, message))
            continue
        if (first := by_id.setdefault(task.id, task)) is not task:
            message = f"task {task.id!r} is at {first.path} already: rename one of the two"
            loader.problems.append(Problem(task.path, None, message))
    # keys of a task's files are in messages as they are: one may have a newline
    found = {problem._replace(message=on_one_line(visible(problem.message))) for problem in loader.problems}
    problems = sorted(found, key=lambda problem: (str(problem.file), problem.line or 0, problem.message))
    return LoadedTasks([task for _, task in sorted(by_id.items())], problems)


class _Loader:
    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.problems: list[Problem] = []

    def load(self, path: Path) -> None:
        """Read a path that a caller names."""
        count_before = len(self.tasks) + len(self.problems)
        if path.is_dir():
            if not self._task(path):
                self._directory(path, datasets=True)
        elif path.is_file():
            self._list(path)
        else:
            self.problems.append(Problem(path, None, "does not exist: give a task, or a directory of tasks"))
        if len(self.tasks) + len(self.problems) == count_before:
            self.problems.append(Problem(path, None, f"holds no task: {_HINT}"))

    def _task(self, directory: Path) -> bool:
        """Read a directory that is a task; return False where it is not a task."""
        readers = [format_module.read for format_module in (harbor, terminal_bench) if format_module.is_task(directory)]
        if len(readers) > 1:
            message = "has task.toml and task.yaml: keep the one that counts"
            self.problems.append(Problem(directory, None, message))
        elif readers:
            self._read(directory, partial(readers[0], directory.resolve()))
        return bool(readers)

    def _directory(self, directory: Path, *, datasets: bool) -> None:
        """Read the tasks in a directory; with datasets also those in subdirectories that are not tasks themselves."""
        for entry in self._entries(directory):
            if entry.is_file():
                if entry.name in _LISTS_IN_DIRECTORIES:
                    self._list(entry)
            elif not self._task(entry):
                self._no_task(entry, datasets=datasets)

    def _no_task(self, entry: Path, *, datasets: bool) -> None:
        count_before = len(self.tasks) + len(self.problems)
        signs = [name for name in _SIGNS_OF_A_TASK if (entry / name).exists()]
        if datasets and not signs:
            self._directory(entry, datasets=False)
        if signs and len(self.tasks) + len(self.problems) == count_before:
            message = f"is not a task, but has {signs[0]!r}: add task.toml or task.yaml, or move it away"
            self.problems.append(Problem(entry, None, message))

    def _entries(self, directory: Path) -> Iterator[Path]:
        try:
            names = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
        except OSError as error:
            self.problems.append(Problem(directory, None, f"cannot be read: {error.strerror}"))
            return
        for name in names:
            entry = directory / name
            if entry.is_symlink() and not entry.exists():
                self.problems.append(Problem(entry, None, f"leads nowhere: {entry.readlink()} does not exist"))
            elif entry.is_dir() or entry.is_file():
                yield entry

    def _list(self, path: Path) -> None:
        if path.suffix not in _LIST_SUFFIXES:
            self.problems.append(Problem(path, None, f"is not a list of tasks: {_HINT}"))
            return
        try:
            if path.suffix == ".jsonl":
                self._lines(path)
            else:
                self._items(path)
        except InvalidTask as error:
            self.problems += error.problems

    def _lines(self, path: Path) -> None:
        for line in read_lines(path):
            if line.problem is not None:
                self.problems.append(line.problem)
            elif swe_bench.is_instance(line.value):
                self._read(path, partial(swe_bench.read_line, line, path))
            else:
                self._read(path, partial(inline.read_item, line.value, path, line.line_of))

    def _items(self, path: Path) -> None:
        read = parse_task_yaml(read_text(path, path.resolve().parent, missing="", limit_bytes=MAX_LIST_BYTES), path)
        if not isinstance(read.value, list):
            raise InvalidTask([Problem(path, 1, "expected a list of tasks, each beginning with '- id: NAME'")])
        for number, item in enumerate(read.value):
            self._read(path, partial(inline.read_item, item, path, read.at(number).line))

    def _read(self, entry: Path, read: Callable[[], Task]) -> None:
        try:
            self.tasks.append(read())
        except InvalidTask as error:
            self.problems += error.problems
        except OSError as error:
            self.problems.append(Problem(entry, None, f"cannot be read: {error.strerror}"))
