"""A task of an evaluation, independent of its format: `formats` reads it and `trial` carries it out."""

from __future__ import annotations

import hashlib
from pathlib import Path  # noqa: TC003 - pydantic reads annotations at run time
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Network = Literal["none", "allowlist", "open"]
"""The network modes of `DockerRuntime`."""
_Format = Literal["harbor", "terminal-bench", "inline", "swe-bench"]
_VerdictKind = Literal["reward", "exit code", "tests"]
"""The source of a verdict: the files that Harbor's verifiers write, the exit code of the verifier's command, or the
outcome of each named test in its output."""


class Model(BaseModel):
    """Base class of all parts of a task: immutable, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Files(Model):
    """Files for a directory of the sandbox: a directory of this machine, or texts by relative path."""

    target: str
    """An absolute path in the sandbox, or one relative to the task's working directory."""
    source: Path | None = None
    excluded: tuple[str, ...] = ()
    """Relative paths of files and directories below source that are left out."""
    texts: dict[str, str] = {}
    owner: str | None = None
    """The owner of the target and the texts; None is the user who puts them in."""


class Healthcheck(Model):
    """A command that must succeed before the agent begins."""

    command: str
    interval_s: float = 5
    timeout_s: float = 30
    start_period_s: float = 0
    """Time in which failures do not count."""
    start_interval_s: float = 5
    retries: int = 3


class ComposeProject(Model):
    """The services of a Compose file, resolved and checked: nothing in it refers to anything outside its project."""

    main: str
    """The name of the service that is the sandbox."""
    services: dict[str, dict[str, JsonValue]]
    """The services in Compose's own form, without their images and limits."""
    environments: dict[str, TaskEnvironment]
    """The image and limits of each service, by its name; other fields of `TaskEnvironment` are not set."""
    networks: tuple[str, ...]
    volumes: tuple[str, ...]


class TaskEnvironment(Model):
    """The sandbox of a task: an image, or the files that one is built from."""

    image: str | None = None
    build: Path | None = None
    """A directory with a Dockerfile."""
    dockerfile: str = "Dockerfile"
    """The Dockerfile's path in that directory."""
    build_args: dict[str, str] = {}
    build_target: str | None = None
    """The stage to build; None is the last."""
    compose: ComposeProject | None = None
    """Services that run beside the sandbox, which is one of them."""
    build_timeout_s: float = 600
    workdir: str | None = None
    """The working directory; None is the image's."""
    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    env: dict[str, str] = {}
    files: tuple[Files, ...] = ()
    healthcheck: Healthcheck | None = None


class Artifact(Model):
    """A file or directory of the sandbox that is kept with the results."""

    source: str
    destination: str | None = None
    """Path below the directory of artifacts; None is made of service and source."""
    exclude: tuple[str, ...] = ()
    """Patterns (`*.o`) of names, or of paths below source, that are not kept."""
    service: str | None = None
    """The service of the Compose project that has the file; None is the sandbox."""

    @property
    def name(self) -> str:
        """The path below the directory of artifacts, which it cannot leave; it begins with the service, if any."""
        parts = (self.destination or f"{self.service or ''}/{self.source}").split("/")
        return "/".join(part for part in parts if part not in {"", ".", ".."}) or "root"


class AgentPhase(Model):
    """The conditions under which an agent works."""

    timeout_s: float | None = None
    user: str | None = None
    """The user; None is the image's."""
    network: Network = "none"
    allow: tuple[str, ...] = ()
    """The hosts of the allowlist."""


class Collect(Model):
    """A command that runs after the agent, to save files that the verifier needs."""

    command: str
    timeout_s: float = 60
    user: str | None = None
    service: str | None = None
    """The service of the Compose project in which it runs; None is the sandbox."""


class Verifier(Model):
    """How a step is judged: `files` are put into the sandbox after the agent has stopped, then `command` runs."""

    command: str
    files: tuple[Files, ...] = ()
    verdict: _VerdictKind = "reward"
    must_pass: tuple[str, ...] = ()
    """With the verdict "tests": the tests that must pass."""
    must_not_fail: tuple[str, ...] = ()
    """With the verdict "tests": the tests that must pass or be skipped. If neither list is given, all tests must."""
    timeout_s: float = 600
    env: dict[str, str] = {}
    user: str | None = None
    network: Network = "none"
    allow: tuple[str, ...] = ()
    environment: TaskEnvironment | None = None
    """A fresh sandbox for the verifier; None is the agent's own, in which all processes have ended."""
    collect: tuple[Collect, ...] = ()


class Solution(Model):
    """What the agent `oracle` does: `files` are put into the sandbox, then `command` runs."""

    command: str
    files: tuple[Files, ...] = ()
    env: dict[str, str] = {}


class Step(Model):
    """An instruction, the agent's work on it, and a verdict. Most tasks have one step."""

    name: str = ""
    """The step's name; empty for the only one."""
    instruction: str
    files: tuple[Files, ...] = ()
    """Files that are put into the sandbox before the step."""
    setup: str | None = None
    """A command that runs before the agent."""
    agent: AgentPhase = AgentPhase()
    verifier: Verifier
    solution: Solution | None = None
    min_reward: dict[str, float] = {}
    """The least rewards by name; with a smaller one the following steps are not tried."""
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()


class Task(Model):
    """A task: a sandbox and the steps in it."""

    id: str = Field(min_length=1)
    """The task's id: unique in a run, and the name of its results."""
    path: Path
    """The directory or file that it was read from."""
    format: _Format
    environment: TaskEnvironment
    steps: tuple[Step, ...] = Field(min_length=1)
    reward_strategy: Literal["mean", "final"] = "mean"
    """How the rewards of several steps become the task's reward."""
    notes: tuple[str, ...] = ()
    """Notes on keys that were read and have no effect here."""
    metadata: dict[str, object] = {}

    def digest(self) -> str:
        """Return the SHA-256 of the task's description and of every file that belongs to it.

        Raises:
            OSError: one of its files cannot be read.
        """
        task, root = self, self.path
        if not root.is_dir():
            # of a list, the line and the directory that its image is built from; where they lie does not matter
            task = self.model_copy(update={"environment": self.environment.model_copy(update={"build": None})})
            root = self.environment.build or root
        description = task.model_dump_json(exclude={"path"})
        description = description.replace(str(self.path.resolve()), ".").replace(str(self.path), ".")
        digest = hashlib.sha256(description.encode("utf-8", "surrogatepass"))
        for file in sorted(root.rglob("*")):
            digest.update(f"\0{file.relative_to(root)}\0{file.lstat().st_mode:o}\0".encode("utf-8", "surrogateescape"))
            if file.is_symlink():
                digest.update(str(file.readlink()).encode("utf-8", "surrogateescape"))
            elif file.is_file():
                digest.update(hashlib.sha256(file.read_bytes()).digest())
        return f"sha256:{digest.hexdigest()}"
