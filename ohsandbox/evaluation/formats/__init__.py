"""Reading tasks: which format a path is in, and every problem of every task before anything starts."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - NamedTuple's annotation
from typing import NamedTuple

from ohsandbox.evaluation.formats import harbor
from ohsandbox.evaluation.formats.problems import InvalidTask, Problem
from ohsandbox.evaluation.task import Task

__all__ = ["InvalidTask", "LoadedTasks", "Problem", "load_tasks"]


class LoadedTasks(NamedTuple):
    """What was found at a path."""

    tasks: list[Task]
    """In the order of their ids."""
    problems: list[Problem]


def load_tasks(path: Path) -> LoadedTasks:
    """Read the task at path, or all tasks in the directory; a task with a problem is not among the tasks."""
    if not path.exists():
        return LoadedTasks([], [Problem(path, None, "does not exist: give a task, or a directory of tasks")])
    if harbor.is_task(path):
        places = [path]
    else:
        places = sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    tasks, problems = list[Task](), list[Problem]()
    for place in places:
        try:
            tasks.append(harbor.read(place.resolve()))
        except InvalidTask as error:
            problems += error.problems
    if not tasks and not problems:
        problems.append(Problem(path, None, "no task is in it: a task is a directory with task.toml or task.yaml"))
    return LoadedTasks(tasks, problems)
