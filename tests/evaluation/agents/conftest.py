from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.evaluation.agents import Assignment
from ohsandbox.evaluation.task import Step, Task, TaskEnvironment, Verifier

if TYPE_CHECKING:
    from pathlib import Path

Assign = Callable[..., Assignment]


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[CLIRuntime]:
    """Processes of this host: what an agent does of a runtime does not depend on its kind."""
    workdir = tmp_path / "workspace"
    workdir.mkdir()
    with CLIRuntime(workdir, bubblewrap=False, quiet=True) as runtime:
        yield runtime


@pytest.fixture
def assign(tmp_path: Path) -> Assign:
    """The only step of a task, and a directory for its logs."""

    def assign(
        instruction: str = "Do it.", *, timeout_s: float | None = None, attempt: int = 1, **step: Any
    ) -> Assignment:
        directory = tmp_path / "results" / "trials" / "task" / str(attempt) / "agent"
        directory.mkdir(parents=True, exist_ok=True)
        only = Step(instruction=instruction, verifier=Verifier(command="true"), **step)
        task = Task(id="task", path=tmp_path, format="harbor", environment=TaskEnvironment(image="any"), steps=(only,))
        return Assignment(task, task.steps[0], attempt, directory, timeout_s, threading.Event())

    return assign
