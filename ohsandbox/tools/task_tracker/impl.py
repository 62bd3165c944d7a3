"""Implementation of `task_tracker`: a JSON file on the host, in the conversation's directory."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from ohsandbox.errors import ToolError, UsageError
from ohsandbox.private_files import make_private_dir, write_atomically
from ohsandbox.tool import ToolExecutor
from ohsandbox.tools.task_tracker.definition import TaskItem, TaskTrackerObservation, TaskTrackingAction

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "TASKS.json"
DAMAGED_NAME = "TASKS.damaged.json"

_TASKS = TypeAdapter(tuple[TaskItem, ...])


class TaskTrackerExecutor(ToolExecutor[TaskTrackingAction, TaskTrackerObservation]):
    """Holds the list; with a directory, it is stored in a file there for a resumed conversation."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._tasks: tuple[TaskItem, ...] = ()

    def __call__(self, action: TaskTrackingAction) -> TaskTrackerObservation:
        """Show the list, or replace it.

        Raises:
            ToolError: the file cannot be read or written; the list is then unchanged.
        """
        if action.command == "plan":
            self._save(action.task_list or ())
            return TaskTrackerObservation(task_list=self._tasks, notices=tuple(_notices(self._tasks)))
        damage = self._load()
        return TaskTrackerObservation(task_list=self._tasks, notices=(damage,) if damage else ())

    def _load(self) -> str | None:
        """Read the file; return its fault as a sentence. A damaged one is moved aside and counts as empty."""
        if self._directory is None:
            return None
        path = self._directory / FILE_NAME
        try:
            self._tasks = _TASKS.validate_json(path.read_bytes())
        except FileNotFoundError:
            self._tasks = ()
        except ValidationError:
            self._tasks = ()
            with contextlib.suppress(OSError):
                path.replace(self._directory / DAMAGED_NAME)
            return f"The stored list was damaged and is kept as {DAMAGED_NAME!r} on the host. Plan it anew."
        except OSError as error:
            raise ToolError(f"The task list in {str(path)!r} cannot be read: {error.strerror}.") from error
        return None

    def _save(self, tasks: tuple[TaskItem, ...]) -> None:
        if self._directory is not None:
            try:
                make_private_dir(self._directory)
                write_atomically(self._directory / FILE_NAME, _TASKS.dump_json(tasks, indent=2) + b"\n")
            except (OSError, UsageError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise ToolError(
                    f"The task list cannot be stored in {str(self._directory)!r}: {reason}. It is as it was."
                ) from error
        self._tasks = tasks


def _notices(tasks: tuple[TaskItem, ...]) -> list[str]:
    active = sum(task.status == "in_progress" for task in tasks)
    twice = [name for name, count in Counter(task.id for task in tasks).items() if count > 1]
    notices = []
    if active > 1:
        notices.append(f"{active} tasks are in progress. Work on one at a time.")
    if twice:
        notices.append(f"More than one task has the id {', '.join(map(repr, twice[:5]))}. Give each its own.")
    return notices
