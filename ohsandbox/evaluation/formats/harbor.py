"""Tasks in Harbor's format (schema 1.0 to 1.4): `task.toml`, `instruction.md`, `environment/`, `tests/`, `solution/`.

Read strictly: a key that Harbor would ignore is a problem here. A task that names no network has none while the agent
works, and all of it for its verifier, which in most public tasks installs what it needs.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ohsandbox.evaluation.formats.problems import InvalidTask, Problem, explain, toml_line
from ohsandbox.evaluation.task import (
    AgentPhase,
    Artifact,
    Collect,
    Files,
    Healthcheck,
    Solution,
    Step,
    Task,
    TaskEnvironment,
    Verifier,
)

MIB = 1024**2
NetworkMode = Literal["public", "no-network", "allowlist"]
TESTS_DIR, SOLUTION_DIR, LOGS_DIR = "/tests", "/solution", "/logs"
TEST_COMMAND = f"({TESTS_DIR}/test.sh) > {LOGS_DIR}/verifier/test-stdout.txt 2>&1"
SOLVE_COMMAND = f"{SOLUTION_DIR}/solve.sh"
_CANARY = re.compile(r"^(<!--.*canary.*-->|#.*canary.*)$", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", re.IGNORECASE)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Network(_Section):
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] = []


class _Author(_Section):
    name: str
    email: str | None = None


class _About(_Section):
    name: str | None = None
    version: str | None = None
    description: str = ""
    authors: list[_Author] = []
    keywords: list[str] = []


class _Agent(_Network):
    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None


class _Healthcheck(_Section):
    command: str
    interval_sec: float = Field(default=5, gt=0)
    timeout_sec: float = Field(default=30, gt=0)
    start_period_sec: float = Field(default=0, ge=0)
    start_interval_sec: float = Field(default=5, gt=0)
    retries: int = Field(default=3, ge=1)


class _McpServer(_Section):
    name: str
    transport: Literal["sse", "streamable-http", "stdio"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    headers: dict[str, str] = {}


class _Environment(_Network):
    build_timeout_sec: float = Field(default=600, gt=0)
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpus: int | None = Field(default=None, ge=0)
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    env: dict[str, str] = {}
    skills_dir: str | None = None
    workdir: str | None = None
    mcp_servers: list[_McpServer] = []
    healthcheck: _Healthcheck | None = None
    allow_internet: bool | None = None
    memory: str | None = None
    storage: str | None = None


class _Collect(_Section):
    command: str
    service: str = "main"
    timeout_sec: float = Field(default=60, gt=0)
    user: str | int | None = None


class _Verifier(_Network):
    timeout_sec: float = Field(default=600, gt=0)
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: _Environment | None = None
    collect: list[_Collect] = []


class _Solution(_Section):
    env: dict[str, str] = {}


class _Artifact(_Section):
    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str = "main"

    @field_validator("destination")
    @classmethod
    def _stays_below(cls, value: str | None) -> str | None:
        if value is not None and (value.startswith("/") or ".." in Path(value).parts or value == "manifest.json"):
            raise ValueError("a relative path without '..', and not 'manifest.json'")
        return value


class _Step(_Section):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    agent: _Agent = _Agent()
    verifier: _Verifier = _Verifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: _Healthcheck | None = None
    artifacts: list[str | _Artifact] = []


class _TaskFile(_Section):
    schema_version: str | None = None
    version: str | None = None
    source: str | None = None
    artifacts: list[str | _Artifact] = []
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    task: _About | None = None
    metadata: dict[str, Any] = {}
    agent: _Agent = _Agent()
    verifier: _Verifier = _Verifier()
    environment: _Environment = _Environment()
    solution: _Solution = _Solution()
    steps: list[_Step] = []

    @model_validator(mode="after")
    def _step_names_differ(self) -> _TaskFile:
        names = [step.name for step in self.steps]
        if len(set(names)) != len(names):
            raise ValueError("two [[steps]] have the same name")
        return self


def is_task(directory: Path) -> bool:
    """Whether the directory says of itself that it is a task of this format."""
    return (directory / "task.toml").is_file()


def read(directory: Path) -> Task:
    """Read a task.

    Raises:
        InvalidTask: with all that is wrong.
    """
    return _Reader(directory).task()


class _Reader:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "task.toml"
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.text = ""

    def task(self) -> Task:
        told = self._parsed()
        steps = self._steps(told)
        environment = self._environment(told.environment, self.directory / "environment", ("environment",))
        if self.problems:
            raise InvalidTask(self.problems)
        return Task(
            id=self.directory.name, path=self.directory, format="harbor", environment=environment, steps=tuple(steps),
            reward_strategy=told.multi_step_reward_strategy, notes=tuple(self.notes), metadata=told.metadata,
        )  # fmt: skip

    def _parsed(self) -> _TaskFile:
        try:
            self.text = self.file.read_text(encoding="utf-8")
            return _TaskFile.model_validate(tomllib.loads(self.text))
        except tomllib.TOMLDecodeError as error:
            line = re.search(r"line (\d+)", str(error))
            raise InvalidTask([Problem(self.file, int(line[1]) if line else None, f"not TOML: {error}")]) from None
        except ValidationError as error:
            raise InvalidTask(
                [Problem(self.file, toml_line(self.text, where), said) for where, said in explain(error, _Section)]
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidTask([Problem(self.file, None, f"cannot be read: {error}")]) from None

    def _steps(self, told: _TaskFile) -> list[Step]:
        if not told.steps:
            return [self._step(told, _Step(name="only", agent=told.agent, verifier=told.verifier), self.directory, ())]
        return [
            self._step(told, step, self.directory / "steps" / step.name, ("steps", number))
            for number, step in enumerate(told.steps)
        ]

    def _step(self, told: _TaskFile, step: _Step, place: Path, where: tuple[str | int, ...]) -> Step:
        is_only = not where
        artifacts = told.artifacts if is_only else [*told.artifacts, *step.artifacts]
        setup = place / "workdir" / "setup.sh"
        files: tuple[Files, ...] = ()
        if not is_only and (place / "workdir").is_dir():
            files = (Files(target=".", source=place / "workdir"),)
        least = step.min_reward if isinstance(step.min_reward, dict) else {}
        if isinstance(step.min_reward, int | float):
            least = {"reward": float(step.min_reward)}
        return Step(
            name="" if is_only else step.name,
            instruction=self._instruction(place / "instruction.md"),
            files=files,
            setup="sh ./setup.sh" if files and setup.is_file() else None,
            agent=AgentPhase(
                timeout_s=step.agent.timeout_sec or told.agent.timeout_sec,
                user=_user(step.agent.user, told.agent.user),
                network=self._network((*where, "agent"), step.agent, told.agent, told.environment, default="none"),
            ),
            verifier=self._verifier(told, step, place, where),
            solution=self._solution(told, place),
            min_reward=least,
            healthcheck=_healthcheck(step.healthcheck),
            artifacts=tuple(self._artifact(one) for one in artifacts),
        )

    def _instruction(self, path: Path) -> str:
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            self.problems.append(Problem(path, None, "missing: it holds what the agent is asked to do"))
            return ""
        except (OSError, UnicodeDecodeError) as error:
            self.problems.append(Problem(path, None, f"cannot be read: {error}"))
            return ""
        while lines and _CANARY.match(lines[0].strip()):
            del lines[0]
            while lines and not lines[0].strip():
                del lines[0]
        if not "".join(lines).strip():
            self.problems.append(Problem(path, 1, "empty: write what the agent is asked to do"))
        return "".join(lines)

    def _network(
        self, where: tuple[str | int, ...], *told: _Network, default: Literal["none", "open"]
    ) -> Literal["none", "open"]:
        """The first that says something decides; the old `allow_internet` is what the environment says last."""
        for one in told:
            if one.allowed_hosts or one.network_mode == "allowlist":
                self._say(where, "network_mode", "a list of hosts is not supported yet: use public or no-network")
                return "none"
            if one.network_mode is not None:
                return "open" if one.network_mode == "public" else "none"
            if isinstance(one, _Environment) and one.allow_internet is not None:
                return "open" if one.allow_internet else "none"
        return default

    def _verifier(self, told: _TaskFile, step: _Step, place: Path, where: tuple[str | int, ...]) -> Verifier:
        here = (*where, "verifier")
        tests = self._tests(place)
        asked = step.verifier
        separate = asked.environment is not None or asked.environment_mode == "separate"
        environment = None
        if separate:
            own = asked.environment or _Environment()
            environment = self._environment(own, tests, (*here, "environment"))
        env = {**told.verifier.env, **asked.env}
        return Verifier(
            command=TEST_COMMAND,
            files=() if environment is not None and environment.build else (Files(target=TESTS_DIR, source=tests),),
            timeout_s=asked.timeout_sec if "timeout_sec" in asked.model_fields_set else told.verifier.timeout_sec,
            env=self._resolved(env, (*here, "env")),
            user=_user(asked.user, told.verifier.user),
            network=self._network(
                here, asked, *((asked.environment,) if asked.environment else ()), told.verifier, told.environment,
                default="open",
            ),
            environment=environment,
            collect=tuple(self._collect(one, here) for one in asked.collect),
        )  # fmt: skip

    def _tests(self, place: Path) -> Path:
        own, common = place / "tests", self.directory / "tests"
        tests = own if own.is_dir() else common
        if not (tests / "test.sh").is_file():
            self.problems.append(Problem(own / "test.sh", None, "missing: it is the verifier"))
        return tests

    def _solution(self, told: _TaskFile, place: Path) -> Solution | None:
        solution = place / "solution"
        if not solution.is_dir():
            return None
        if not (solution / "solve.sh").is_file():
            self.problems.append(Problem(solution / "solve.sh", None, "missing: it is the solution"))
        env = {"DEBIAN_FRONTEND": "noninteractive", **self._resolved(told.solution.env, ("solution", "env"))}
        return Solution(command=SOLVE_COMMAND, files=(Files(target=SOLUTION_DIR, source=solution),), env=env)

    def _environment(self, told: _Environment, place: Path, where: tuple[str | int, ...]) -> TaskEnvironment:
        build = place if (place / "Dockerfile").is_file() else None
        compose = next(
            (found for name in ("docker-compose.yaml", "docker-compose.yml") if (found := place / name).is_file()), None
        )
        if told.docker_image is None and build is None and compose is None:
            self.problems.append(
                Problem(place / "Dockerfile", None, "missing: give a Dockerfile, a Compose file or docker_image")
            )
        for name, value in (("gpus", told.gpus), ("tpu", told.tpu), ("gpu_types", told.gpu_types)):
            if value:
                self._say(where, name, f"{name} are not supported: sandboxes have none")
        if told.os != "linux":
            self._say(where, "os", "sandboxes run Linux")
        if told.mcp_servers:
            self.notes.append("mcp_servers of the environment are not offered to the agent")
        if told.skills_dir:
            self.notes.append("skills_dir is not offered to the agent")
        memory = told.memory_mb * MIB if told.memory_mb else self._size(told.memory, (*where, "memory"))
        disk = told.storage_mb * MIB if told.storage_mb else self._size(told.storage, (*where, "storage"))
        return TaskEnvironment(
            image=told.docker_image, build=None if told.docker_image else build, compose=compose,
            build_timeout_s=told.build_timeout_sec, workdir=told.workdir, cpus=told.cpus, memory_bytes=memory,
            disk_bytes=disk, env=self._resolved(told.env, (*where, "env")), healthcheck=_healthcheck(told.healthcheck),
        )  # fmt: skip

    def _collect(self, told: _Collect, where: tuple[str | int, ...]) -> Collect:
        if told.service != "main":
            self._say(where, "collect", f"service {told.service!r}: only commands in 'main' are supported")
        return Collect(command=told.command, timeout_s=told.timeout_sec, user=_user(told.user))

    def _artifact(self, told: str | _Artifact) -> Artifact:
        one = _Artifact(source=told) if isinstance(told, str) else told
        if ".." in Path(one.source).parts:
            self._say(("artifacts",), "source", f"{one.source!r}: expected a path without '..'")
        if one.service != "main":
            self._say(("artifacts",), "service", f"{one.service!r}: only artifacts of 'main' are supported")
        return Artifact(source=one.source, destination=one.destination, exclude=tuple(one.exclude))

    def _resolved(self, env: dict[str, str], where: tuple[str | int, ...]) -> dict[str, str]:
        """The variables, those of this machine put in where a value asks for them as ${NAME} or ${NAME:-default}."""

        def value(found: re.Match[str]) -> str:
            name, default = found[1], found[2]
            if (here := os.environ.get(name, default)) is None:
                self._say(where, "", f"${{{name}}} is not set here: set it, or write ${{{name}:-default}}")
                return ""
            return here

        return {name: _VARIABLE.sub(value, text) for name, text in env.items()}

    def _size(self, text: str | None, where: tuple[str | int, ...]) -> int | None:
        if text is None:
            return None
        if (found := _SIZE.fullmatch(text.strip())) is None:
            self._say(where, "", f"{shlex.quote(text)}: expected a size such as 2G or 512M")
            return None
        return int(float(found[1]) * 1024 ** (1 + "KMGT".index(found[2].upper())))

    def _say(self, where: tuple[str | int, ...], key: str, message: str) -> None:
        location = (*where, key) if key else where
        name = ".".join(map(str, location))
        self.problems.append(Problem(self.file, toml_line(self.text, location), f"{name}: {message}"))


def _user(*asked: str | int | None) -> str | None:
    return next((str(one) for one in asked if one is not None), None)


def _healthcheck(told: _Healthcheck | None) -> Healthcheck | None:
    if told is None:
        return None
    return Healthcheck(
        command=told.command, interval_s=told.interval_sec, timeout_s=told.timeout_sec,
        start_period_s=told.start_period_sec, start_interval_s=told.start_interval_sec, retries=told.retries,
    )  # fmt: skip
