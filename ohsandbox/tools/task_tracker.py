"""`task_tracker`: the agent's own task list, a JSON file on the host in the conversation's directory."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema  # noqa: TC002 - pydantic reads annotations at run time
from pydantic_core import PydanticCustomError
from rich.text import Text

from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.errors import ToolError, UsageError
from ohsandbox.private_files import make_private_dir, read_regular, write_atomically
from ohsandbox.schema import Action, Observation, Schema, TextContent
from ohsandbox.text import counted
from ohsandbox.tool import BuiltInTool, CallHint, ToolAnnotations, ToolDefinition, ToolExecutor, cut_middle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ohsandbox.content import Content
    from ohsandbox.state import ConversationState

TOOL_NAME = "task_tracker"

FILE_NAME = "TASKS.json"
_DAMAGED_NAME = "TASKS.damaged.json"

HINT = CallHint(kind="tasks", writes=False, needs_agent=True)
"""Does not write files of the sandbox: the list is on the host."""

_MAX_TASKS = 200
"""Limit of tasks; nobody reads a longer plan."""

MAX_TITLE_CHARS = 500
_MAX_NOTES_CHARS = 4_000

Status = Literal["todo", "in_progress", "done"]

SIGNS: dict[Status, str] = {"todo": "[ ]", "in_progress": "[>]", "done": "[x]"}
STYLES: dict[Status, str] = {"todo": "", "in_progress": "bold yellow", "done": "green"}

DESCRIPTION = f"""\
Keep the list of tasks of a longer piece of work, and return it as text. It outlives this conversation's pauses.

`command` (required) is `view`, which shows the list, or `plan`, which puts `task_list` (required for `plan`) in its
place: always send the whole list, with every change in it. An item is `title`, `status` (`todo`, `in_progress` or
`done`), `notes` for what is worth keeping, and `id`; left out, they are "Untitled task", `todo`, empty, and `task-1`,
`task-2` ... by position. At most {_MAX_TASKS} tasks.

Use it for work of three steps or more. Have one task in progress at a time, and mark each as done when it is."""


class _TaskItem(Schema):
    """One task."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str = Field(default="", max_length=100, description="What it is called; by position when left out.")
    title: str = Field(default="Untitled task", max_length=MAX_TITLE_CHARS, description="What is to be done.")
    status: Status = Field(default="todo", description="Where it stands.")
    notes: str = Field(default="", max_length=_MAX_NOTES_CHARS, description="What is worth keeping about it.")

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, given: Any) -> Any:
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given

    @field_validator("title")
    @classmethod
    def _one_line(cls, title: str) -> str:
        return " ".join(title.split()) or "Untitled task"


class TaskTrackingAction(Action):
    """A look at the list, or a new one."""

    command: Literal["view", "plan"] = Field(description="view shows the list; plan replaces it by task_list.")
    task_list: tuple[_TaskItem, ...] | None = Field(
        default=None, max_length=_MAX_TASKS, description="The whole list; required for plan."
    )

    @field_validator("task_list")
    @classmethod
    def _named(cls, tasks: tuple[_TaskItem, ...] | None) -> tuple[_TaskItem, ...] | None:
        return tasks and tuple(
            task if task.id else task.model_copy(update={"id": f"task-{number}"})
            for number, task in enumerate(tasks, start=1)
        )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.command == "plan" and self.task_list is None:
            raise PydanticCustomError(
                "task_list_missing", 'Missing required argument "task_list" for command "plan": send the whole list'
            )
        return self

    @property
    def visualize(self) -> Text:
        """Return the command and, for a plan, the list."""
        return Text(self.command) if self.task_list is None else checklist(self.task_list)


class TaskTrackerObservation(Observation):
    """The list as it is now."""

    task_list: tuple[_TaskItem, ...] = ()
    notices: tuple[str, ...] = ()
    """Notes on the list."""
    limits: SkipJsonSchema[OutputLimits] = Field(default=DEFAULT_LIMITS, exclude=True, repr=False)
    """How much of the list the model is shown."""

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """Return a count, the list with signs, and the notes."""
        lines = [_count(self.task_list), *(_line(task) for task in self.task_list)]
        text = cut_middle("\n".join(lines), limit_chars=self.limits.max_chars)
        return [TextContent(text="\n".join([text, *(f"[{notice}]" for notice in self.notices)]))]

    @property
    def visualize(self) -> Text:
        """Return the list, coloured by status."""
        text = checklist(self.task_list)
        for notice in self.notices:
            text.append(f"\n{notice}", style="yellow")
        return text


def checklist(tasks: Sequence[_TaskItem]) -> Text:
    """Format the list for a user."""
    text = Text(_count(tasks), style="bold")
    for task in tasks:
        text.append("\n")
        text.append(_line(task), style=STYLES[task.status] or "not bold")
    return text


def _count(tasks: Sequence[_TaskItem]) -> str:
    if not tasks:
        return "The task list is empty."
    ended = sum(task.status == "done" for task in tasks)
    active = sum(task.status == "in_progress" for task in tasks)
    return f"{counted(len(tasks), 'task')}: {ended} done, {active} in progress, {len(tasks) - ended - active} to do."


def _line(task: _TaskItem) -> str:
    notes = "".join(f"\n      {line}" for line in task.notes.splitlines())
    return f"{SIGNS[task.status]} {task.id}: {task.title}{notes}"


_TASKS = TypeAdapter(tuple[_TaskItem, ...])


class TaskTrackerExecutor(ToolExecutor[TaskTrackingAction, TaskTrackerObservation]):
    """Holds the list; with a directory, it is stored in a file there for a resumed conversation."""

    def __init__(
        self, directory: Path | None, *, limits: OutputLimits = DEFAULT_LIMITS, mask: Callable[[str], str] = str
    ) -> None:
        self._directory, self._limits, self._mask = directory, limits, mask
        self._tasks: tuple[_TaskItem, ...] = ()

    def __call__(self, action: TaskTrackingAction) -> TaskTrackerObservation:
        """Show the list, or replace it.

        Raises:
            ToolError: the file cannot be read or written; the list is then unchanged.
        """
        if action.command == "plan":
            self._save(action.task_list or ())
            notices = _notices(self._tasks)
        else:
            damage = self._load()
            notices = [damage] if damage else []
        return TaskTrackerObservation(task_list=self._tasks, notices=tuple(notices), limits=self._limits)

    def _load(self) -> str | None:
        """Read the file; return its fault as a sentence. A damaged one is moved aside and counts as empty."""
        if self._directory is None:
            return None
        path = self._directory / FILE_NAME
        try:
            self._tasks = _TASKS.validate_json(read_regular(path))
        except FileNotFoundError:
            self._tasks = ()
        except ValidationError:
            self._tasks = ()
            with contextlib.suppress(OSError):
                path.replace(self._directory / _DAMAGED_NAME)
            return f"The stored list was damaged and is kept as {_DAMAGED_NAME!r} on the host. Plan it anew."
        except OSError as error:
            raise ToolError(f"The task list in {str(path)!r} cannot be read: {error.strerror}.") from error
        return None

    def _save(self, tasks: tuple[_TaskItem, ...]) -> None:
        if self._directory is not None:
            try:
                make_private_dir(self._directory)
                text = self._mask(_TASKS.dump_json(tasks, indent=2).decode())
                write_atomically(self._directory / FILE_NAME, f"{text}\n".encode())
            except (OSError, UsageError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise ToolError(
                    f"The task list cannot be stored in {str(self._directory)!r}: {reason}. It is as it was."
                ) from error
        self._tasks = tasks


def _notices(tasks: tuple[_TaskItem, ...]) -> list[str]:
    active = sum(task.status == "in_progress" for task in tasks)
    twice = [name for name, count in Counter(task.id for task in tasks).items() if count > 1]
    notices = []
    if active > 1:
        notices.append(f"{active} tasks are in progress. Work on one at a time.")
    if twice:
        notices.append(f"More than one task has the id {', '.join(map(repr, twice[:5]))}. Give each its own.")
    return notices


def make_task_tracker_tool(
    *, conv_state: ConversationState
) -> ToolDefinition[TaskTrackingAction, TaskTrackerObservation]:
    """Create the task list of a conversation; it is kept on disk if the conversation has a directory."""
    directory = conv_state.directory
    return ToolDefinition(
        name=TOOL_NAME,
        description=DESCRIPTION,
        action_type=TaskTrackingAction,
        observation_type=TaskTrackerObservation,
        hint=HINT,
        annotations=ToolAnnotations(title="Task list", destructiveHint=False, idempotentHint=True, openWorldHint=False),
        executor=TaskTrackerExecutor(
            directory / TOOL_NAME if directory else None, limits=conv_state.output, mask=conv_state.mask
        ),
    )


BUILT_IN = BuiltInTool(make_task_tracker_tool, HINT, serves_runtimes=True)
