"""Our own lists of small tasks: an object on each line of a `.jsonl` file, or the items of a list in a `.yaml` file."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from ohsandbox.errors import UsageError
from ohsandbox.evaluation.formats.compose import size_bytes
from ohsandbox.evaluation.formats.inputs import environment_problems, hosts_of_task
from ohsandbox.evaluation.formats.problems import InvalidTask, Problem, Section, problems_of, unusable_texts
from ohsandbox.evaluation.task import (
    AgentPhase,
    Artifact,
    Files,
    Network,
    Solution,
    Step,
    Task,
    TaskEnvironment,
    Verifier,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SOLUTION_DIR = "/solution"


def _size(value: Any) -> Any:
    if isinstance(value, str):
        if (size := size_bytes(value)) is None:
            raise ValueError(f"{value!r}: expected a size such as 512M or 2G")
        return size
    return value


class _InlineLimits(Section):
    """The resource limits of a task."""

    cpus: float | None = Field(default=None, gt=0, description="Processors.")
    memory: Annotated[int | None, BeforeValidator(_size, json_schema_input_type=int | str)] = Field(
        default=None, description="Bytes, or a text such as 512M or 2G."
    )
    timeout: float | None = Field(default=None, gt=0, description="Seconds for the agent; none without it.")
    check_timeout: float = Field(default=600, gt=0, description="Seconds for the check.")


class _InlineNetwork(Section):
    """The network access of a task."""

    agent: Network = Field(default="none", description="While the agent works; allowlist: the hosts of allow alone.")
    allow: list[str] = Field(
        default=[], description="With agent: allowlist, the hosts: HOST, *.HOST (all below it) or HOST:PORT."
    )
    check: Literal["none", "open"] = Field(default="none", description="During the check.")

    @field_validator("allow")
    @classmethod
    def _hosts(cls, allow: list[str]) -> list[str]:
        try:
            return list(hosts_of_task(allow))
        except UsageError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _hosts_have_a_list(self) -> _InlineNetwork:
        if self.allow and self.agent != "allowlist":
            raise ValueError("allow is for agent: allowlist")
        return self


def _relative(files: dict[str, str]) -> dict[str, str]:
    for name in files:
        if posixpath.isabs(name) or posixpath.normpath(name).split("/")[0] in {"..", "."}:
            raise ValueError(f"{name!r}: expected a path relative to the working directory, without '..'")
    return files


class InlineTask(Section):
    """A task. The paths of its files are relative to the working directory."""

    id: str = Field(min_length=1, max_length=200, description="Its name in the results; unique in a run.")
    image: str | None = Field(default=None, description="The sandbox's image. Either this or build.")
    build: str | None = Field(
        default=None, description="A directory with a Dockerfile, relative to this file and below its directory."
    )
    prompt: str = Field(min_length=1, description="What the agent is asked to do.")
    check: str = Field(min_length=1, description="A shell command after the agent; exit code 0 passes.")
    files: dict[str, str] = Field(default={}, description="Files that the agent finds: path to text.")
    check_files: dict[str, str] = Field(
        default={}, description="Files that are put in after the agent, in place of what has their paths: path to text."
    )
    solution: str | None = Field(default=None, description="A shell command that solves it, for the agent `oracle`.")
    limits: _InlineLimits = _InlineLimits()
    network: _InlineNetwork = _InlineNetwork()
    env: dict[str, str] = Field(default={}, description="Environment variables of all commands.")
    user: str | None = Field(
        default=None,
        description="User of the agent, who gets the working directory and the files; the image's without it.",
    )
    workdir: str | None = Field(default=None, description="An absolute path; the image's without it.")
    artifacts: list[str] = Field(default=[], description="Files and directories that are kept with the results.")

    @field_validator("files", "check_files")
    @classmethod
    def _paths_are_relative(cls, value: dict[str, str]) -> dict[str, str]:
        return _relative(value)

    @field_validator("artifacts")
    @classmethod
    def _artifacts_stay(cls, value: list[str]) -> list[str]:
        for name in value:
            if not name or ".." in name.split("/"):
                raise ValueError(f"{name!r}: expected a path without '..'")
        return value

    @model_validator(mode="after")
    def _has_an_image(self) -> InlineTask:
        if (self.image is None) == (self.build is None):
            raise ValueError("expected either 'image' or 'build'")
        return self


def read_item(value: Any, file: Path, line_of: Callable[[Sequence[int | str]], int | None]) -> Task:
    """Read one task of a list in file; line_of is the line of a key of it.

    Raises:
        InvalidTask: with all problems found.
    """
    if places := unusable_texts(value):
        message = f"{'.'.join(places[0])}: holds a NUL character: remove it"
        raise InvalidTask([Problem(file, line_of(places[0]), message)])
    try:
        told_task = InlineTask.model_validate(value)
    except ValidationError as error:
        raise InvalidTask(problems_of(error, InlineTask, file, line_of)) from None
    build = None if told_task.build is None else _build(told_task.build, file, line_of)
    task = _task(told_task, file, build)
    if problems := environment_problems(task.environment):
        names = {"memory_bytes": ("limits", "memory"), "cpus": ("limits", "cpus")}
        raise InvalidTask(
            [Problem(file, line_of(names.get(name, (name,))), f"{name}: {message}") for name, message in problems]
        )
    return task


def _build(build: str, file: Path, line_of: Callable[[Sequence[int | str]], int | None]) -> Path:
    root = file.parent.resolve()
    directory = (root / build).resolve()
    if Path(build).is_absolute() or not directory.is_relative_to(root):
        raise InvalidTask([Problem(file, line_of(("build",)), f"build = {build!r}: expected a directory below {root}")])
    if not (directory / "Dockerfile").is_file():
        raise InvalidTask(
            [Problem(file, line_of(("build",)), f"build = {build!r}: {directory / 'Dockerfile'} is missing")]
        )
    return directory


def _task(item: InlineTask, file: Path, build: Path | None) -> Task:
    solution = None
    if item.solution is not None:
        texts = {"solve.sh": item.solution.rstrip("\n") + "\n"}
        solution = Solution(command=f"sh {SOLUTION_DIR}/solve.sh", files=(Files(target=SOLUTION_DIR, texts=texts),))
    step = Step(
        instruction=item.prompt,
        agent=AgentPhase(timeout_s=item.limits.timeout, user=item.user, network=item.network.agent,
            allow=tuple(item.network.allow)),
        verifier=Verifier(
            command=item.check, verdict="exit code", timeout_s=item.limits.check_timeout, network=item.network.check,
            files=(Files(target=".", texts=item.check_files),) if item.check_files else (),
        ),
        solution=solution,
        artifacts=tuple(Artifact(source=path) for path in item.artifacts),
    )  # fmt: skip
    environment = TaskEnvironment(
        image=item.image, build=build, workdir=item.workdir, cpus=item.limits.cpus, memory_bytes=item.limits.memory,
        env=item.env,
        files=(Files(target=".", texts=item.files, owner=item.user),) if item.files or item.user else (),
    )  # fmt: skip
    return Task(id=item.id, path=file, format="inline", environment=environment, steps=(step,))
