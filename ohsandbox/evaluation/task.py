"""A task of an evaluation, whatever format it was written in: what `formats` reads and `trial` carries out."""

from __future__ import annotations

import hashlib
from pathlib import Path  # noqa: TC003 - pydantic reads annotations at run time
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Network = Literal["none", "allowlist", "open"]
"""As `DockerRuntime` has it."""
_Format = Literal["harbor", "terminal-bench", "inline", "swe-bench"]
_VerdictKind = Literal["reward", "exit code", "tests"]
"""Where a verdict comes from: the files that Harbor's verifiers write, the exit code of the verifier's command, or the
outcome of each named test in what it printed."""


class Model(BaseModel):
    """What all parts of a task have in common: they do not change, and know all their fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Files(Model):
    """Files for a directory of the sandbox: those of a directory of this machine, or texts by relative path."""

    target: str
    """An absolute path in the sandbox, or one relative to the task's working directory."""
    source: Path | None = None
    excluded: tuple[str, ...] = ()
    """Of source, files and directories that are left out, as relative paths."""
    texts: dict[str, str] = {}
    owner: str | None = None
    """Who owns the target and the texts; None: the user who puts them in."""


class Healthcheck(Model):
    """A command that must succeed before the agent begins."""

    command: str
    interval_s: float = 5
    timeout_s: float = 30
    start_period_s: float = 0
    """Failures in this time do not count."""
    start_interval_s: float = 5
    retries: int = 3


class ComposeProject(Model):
    """The services of a Compose file, resolved and checked: nothing in it reaches out of its own project."""

    main: str
    """The service that is the sandbox."""
    services: dict[str, dict[str, JsonValue]]
    """As Compose writes them, without their images and limits."""
    environments: dict[str, TaskEnvironment]
    """By service, its image and limits; nothing else of it is told there."""
    networks: tuple[str, ...]
    volumes: tuple[str, ...]


class TaskEnvironment(Model):
    """The sandbox of a task: an image, or what one is built from."""

    image: str | None = None
    build: Path | None = None
    """A directory with a Dockerfile."""
    dockerfile: str = "Dockerfile"
    """Its path in that directory."""
    build_args: dict[str, str] = {}
    build_target: str | None = None
    """The stage to build; None is the last."""
    compose: ComposeProject | None = None
    """Services that run beside the sandbox, which is one of them."""
    build_timeout_s: float = 600
    workdir: str | None = None
    """None: the image's."""
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
    """Below the directory of artifacts; None: as service and source."""
    exclude: tuple[str, ...] = ()
    """Patterns (`*.o`) of names or of paths below source that are not kept."""
    service: str | None = None
    """The service of the Compose project that has it; None: the sandbox."""

    @property
    def name(self) -> str:
        """Its path below the directory of artifacts, which it does not leave; it begins with the service, if any."""
        parts = (self.destination or f"{self.service or ''}/{self.source}").split("/")
        return "/".join(part for part in parts if part not in {"", ".", ".."}) or "root"


class AgentPhase(Model):
    """What an agent has for its work."""

    timeout_s: float | None = None
    user: str | None = None
    """None: the image's."""
    network: Network = "none"
    allow: tuple[str, ...] = ()
    """With the allowlist: its hosts."""


class Collect(Model):
    """A command that runs after the agent, to save what the verifier needs."""

    command: str
    timeout_s: float = 60
    user: str | None = None
    service: str | None = None
    """The service of the Compose project in which it runs; None: the sandbox."""


class Verifier(Model):
    """How a step is judged: `files` are put into the sandbox after the agent has stopped, then `command` runs."""

    command: str
    files: tuple[Files, ...] = ()
    verdict: _VerdictKind = "reward"
    must_pass: tuple[str, ...] = ()
    """With the verdict "tests": the tests that must pass."""
    must_not_fail: tuple[str, ...] = ()
    """With the verdict "tests": the tests that must pass or be skipped. Without both, this holds of all."""
    timeout_s: float = 600
    env: dict[str, str] = {}
    user: str | None = None
    network: Network = "none"
    allow: tuple[str, ...] = ()
    environment: TaskEnvironment | None = None
    """A fresh sandbox for the verifier; None: the agent's own, in which all processes have ended."""
    collect: tuple[Collect, ...] = ()


class Solution(Model):
    """What the agent `oracle` does: `files` are put into the sandbox, then `command` runs."""

    command: str
    files: tuple[Files, ...] = ()
    env: dict[str, str] = {}


class Step(Model):
    """An instruction, an agent at work on it, and a verdict. Most tasks have one."""

    name: str = ""
    """Empty for the only one."""
    instruction: str
    files: tuple[Files, ...] = ()
    """Put into the sandbox before the step."""
    setup: str | None = None
    """A command that runs before the agent."""
    agent: AgentPhase = AgentPhase()
    verifier: Verifier
    solution: Solution | None = None
    min_reward: dict[str, float] = {}
    """With a smaller reward of that name, the steps after this one are not tried."""
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()


class Task(Model):
    """A task: a sandbox and the steps in it."""

    id: str = Field(min_length=1)
    """Unique in a run; the name of its results."""
    path: Path
    """The directory or file that it was read from."""
    format: _Format
    environment: TaskEnvironment
    steps: tuple[Step, ...] = Field(min_length=1)
    reward_strategy: Literal["mean", "final"] = "mean"
    """The reward of a task with several steps."""
    notes: tuple[str, ...] = ()
    """What was read and does not change anything here."""
    metadata: dict[str, object] = {}

    def digest(self) -> str:
        """Return the SHA-256 of all that the task says and of every file that it brings.

        Raises:
            OSError: one of its files cannot be read.
        """
        task, root = self, self.path
        if not root.is_dir():
            # of a list, the line and the directory that its image is built from; where they lie does not matter
            task = self.model_copy(update={"environment": self.environment.model_copy(update={"build": None})})
            root = self.environment.build or root
        told = task.model_dump_json(exclude={"path"})
        told = told.replace(str(self.path.resolve()), ".").replace(str(self.path), ".")
        found = hashlib.sha256(told.encode("utf-8", "surrogatepass"))
        for file in sorted(root.rglob("*")):
            found.update(f"\0{file.relative_to(root)}\0{file.lstat().st_mode:o}\0".encode("utf-8", "surrogateescape"))
            if file.is_symlink():
                found.update(str(file.readlink()).encode("utf-8", "surrogateescape"))
            elif file.is_file():
                found.update(hashlib.sha256(file.read_bytes()).digest())
        return f"sha256:{found.hexdigest()}"
