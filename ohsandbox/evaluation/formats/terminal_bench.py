"""Tasks in the format of Terminal-Bench 1: `task.yaml`, a Compose file and Dockerfile, `run-tests.sh`, `tests/`.

Read strictly. Its network is as with all formats: none for the agent unless the Compose file names one, all of it for
the tests, which install what they need. Its verdict is what its own harness reads: the outcome of every test in what
`run-tests.sh` prints, for that script's exit code says nothing in many public tasks.
"""

# ruff: noqa: RUF012 - pydantic copies defaults
from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from ohsandbox.evaluation.formats import compose
from ohsandbox.evaluation.formats.inputs import environment_problems, look_at_tree, parse_task_yaml, read_text
from ohsandbox.evaluation.formats.problems import InvalidTask, Problem, Section, problems_of
from ohsandbox.evaluation.formats.project import LOGS, main_environment, resolve_project
from ohsandbox.evaluation.task import AgentPhase, Files, Solution, Step, Task, TaskEnvironment, Verifier

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.evaluation.task import Network
    from ohsandbox.strict_yaml import YamlFile

TESTS_DIR, ORACLE_DIR = "/tests", "/oracle"
RUN_TESTS = "run-tests.sh"
_KNOWN = {
    "T_BENCH_TEST_DIR": TESTS_DIR, "T_BENCH_CONTAINER_LOGS_PATH": "/logs", "T_BENCH_TASK_LOGS_PATH": "/logs",
    "T_BENCH_CONTAINER_AGENT_LOGS_PATH": "/agent-logs", "T_BENCH_TASK_AGENT_LOGS_PATH": "/agent-logs",
    "T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME": "client", "T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME": "client",
    "T_BENCH_TASK_DOCKER_NAME_PREFIX": "client", "COMPOSE_PROJECT_NAME": "client",
}  # fmt: skip
"""The variables that Terminal-Bench's harness sets for Compose files."""
_LOG_VOLUMES = frozenset({
    "${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}",
    "${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}",
})  # fmt: skip
"""Volumes for logs that are ignored: logs are copied out of the sandbox instead."""


_PROJECT_VARIABLES = {
    **_KNOWN, "T_BENCH_TASK_LOGS_PATH": f"{LOGS}/task", "T_BENCH_TASK_AGENT_LOGS_PATH": f"{LOGS}/agent"
}  # fmt: skip


class _TerminalBenchFile(Section):
    instruction: str = Field(min_length=1)
    author_name: str | None = None
    author_email: str | None = None
    difficulty: Literal["easy", "medium", "hard", "unknown"] = "unknown"
    category: str | None = None
    tags: list[str] = []
    parser_name: Literal["pytest", "swebench", "swelancer", "mlebench", "sweperf"] = "pytest"
    max_agent_timeout_sec: float = Field(default=360.0, gt=0)
    max_test_timeout_sec: float = Field(default=60.0, gt=0)
    run_tests_in_same_shell: bool = False
    disable_asciinema: bool = False
    estimated_duration_sec: float | None = None
    expert_time_estimate_min: float | None = None
    junior_time_estimate_min: float | None = None
    # no keys of the harness, but of public datasets; they describe
    author: str | None = None
    language: str | None = None
    env_name: str | None = None


class _TerminalCommand(Section):
    command: str
    min_timeout_sec: float = 0
    max_timeout_sec: float = 180
    block: bool = True
    append_enter: bool = True


_METADATA = (
    "author_name", "author_email", "author", "difficulty", "category", "tags", "language", "env_name",
    "estimated_duration_sec", "expert_time_estimate_min", "junior_time_estimate_min",
)  # fmt: skip


def is_task(directory: Path) -> bool:
    """Whether the directory looks like a task of this format."""
    return (directory / "task.yaml").is_file()


def read(directory: Path) -> Task:
    """Read a task.

    Raises:
        InvalidTask: with all problems found.
    """
    return _TerminalBenchReader(directory).task()


class _TerminalBenchReader:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "task.yaml"
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def task(self) -> Task:
        parsed = self._parsed()
        environment, networks = self._environment()
        scripts = {RUN_TESTS: self._text(RUN_TESTS, "it runs the tests")}
        solution = self._solution()
        files = [Files(target=TESTS_DIR, texts=scripts)]
        if (tests := self.directory / "tests").is_dir():
            tree = look_at_tree(tests, self.directory)
            self.problems += tree.problems
            files.insert(0, Files(target=TESTS_DIR, source=tests))
        if parsed.run_tests_in_same_shell:
            self.notes.append("run_tests_in_same_shell: the tests run in a process of their own here")
        if self.problems:
            raise InvalidTask(self.problems)
        step = Step(
            instruction=parsed.instruction,
            agent=AgentPhase(timeout_s=parsed.max_agent_timeout_sec, network=networks[0]),
            verifier=Verifier(
                command=f"bash {TESTS_DIR}/{RUN_TESTS}", files=tuple(files), verdict="tests",
                timeout_s=parsed.max_test_timeout_sec, network=networks[1],
            ),
            solution=solution,
        )  # fmt: skip
        return Task(
            id=self.directory.name, path=self.directory, format="terminal-bench", environment=environment,
            steps=(step,), notes=tuple(self.notes),
            metadata=parsed.model_dump(include=set(_METADATA), exclude_none=True),
        )  # fmt: skip

    def _parsed(self) -> _TerminalBenchFile:
        read = self._yaml(self.file, "it describes the task")
        if isinstance(read.value, dict) and "descriptions" in read.value:
            line = read.line(("descriptions",))
            message = "'descriptions' is of an older schema: write the text itself as 'instruction'"
            raise InvalidTask([Problem(self.file, line, message)])
        try:
            return _TerminalBenchFile.model_validate(read.value)
        except ValidationError as error:
            raise InvalidTask(problems_of(error, _TerminalBenchFile, self.file, read.line)) from None

    def _yaml(self, path: Path, missing: str) -> YamlFile:
        return parse_task_yaml(read_text(path, self.directory, missing=missing), path)

    def _text(self, name: str, missing: str) -> str:
        try:
            return read_text(self.directory / name, self.directory, missing=missing)
        except InvalidTask as error:
            self.problems += error.problems
            return ""

    def _environment(self) -> tuple[TaskEnvironment, tuple[Network, Network]]:
        """Return the sandbox, and the networks of agent and tests."""
        file = self.directory / compose.FILE_NAME
        if not file.is_file():
            if not (self.directory / "Dockerfile").is_file():
                self.problems.append(Problem(file, None, "missing: give a Compose file, or a Dockerfile"))
            return TaskEnvironment(build=self.directory, env={"TEST_DIR": TESTS_DIR}), ("none", "open")
        try:
            service, needs = compose.collapse(file, self.directory, known=_KNOWN, ignored_volumes=_LOG_VOLUMES)
        except InvalidTask as error:
            self.problems += error.problems
            return TaskEnvironment(build=self.directory), ("none", "none")
        if needs:
            return self._project(file), ("none", "open")
        if service.image is None and service.build is None:
            self.problems.append(Problem(file, None, "the service has neither 'build' nor 'image'"))
        environment = TaskEnvironment(
            image=service.image, build=service.build, dockerfile=service.dockerfile, workdir=service.workdir,
            env={"TEST_DIR": TESTS_DIR, **service.env}, cpus=service.cpus, memory_bytes=service.memory_bytes,
            files=service.files,
        )  # fmt: skip
        self.problems += [
            Problem(file, None, f"{name}: {message}") for name, message in environment_problems(environment)
        ]
        if service.network is None:
            return environment, ("none", "open")
        network: Network = "none" if service.network == "none" else "open"
        return environment, (network, network)

    def _project(self, file: Path) -> TaskEnvironment:
        """Read a project of several services, of which `client` is the sandbox."""
        names = ("tests", RUN_TESTS, "solution.sh", "solution.yaml")
        try:
            project = resolve_project(
                file, self.directory, main="client", known=_PROJECT_VARIABLES, base={},
                hidden=[self.directory / name for name in names],
            )  # fmt: skip
        except InvalidTask as error:
            self.problems += error.problems
            return TaskEnvironment(build=self.directory)
        fields = main_environment(project)
        environment = TaskEnvironment(**fields | {"env": {"TEST_DIR": TESTS_DIR, **fields["env"]}})
        self.problems += [
            Problem(file, None, f"{name}: {message}") for name, message in environment_problems(environment)
        ]
        return environment

    def _solution(self) -> Solution | None:
        if (script := self.directory / "solution.sh").exists():
            texts = {script.name: self._text(script.name, "the solution")}
        elif (keys := self.directory / "solution.yaml").exists():
            if (text := self._keys_as_script(keys)) is None:
                return None
            texts = {"solution.sh": text}
        else:
            return None
        return Solution(command=f"bash {ORACLE_DIR}/solution.sh", files=(Files(target=ORACLE_DIR, texts=texts),))

    def _keys_as_script(self, path: Path) -> str | None:
        """Return the commands of `solution.yaml`, which are typed into a terminal; None if they are not shell lines."""
        try:
            read = self._yaml(path, "the solution")
            commands = _commands(read, path)
        except InvalidTask as error:
            self.problems += error.problems
            return None
        if all(command.block and command.append_enter for command in commands):
            return "".join(f"{command.command}\n" for command in commands)
        first = next(command for command in commands if not (command.block and command.append_enter))
        self.notes.append(f"no solution: solution.yaml types into a program ({shlex.quote(first.command[:60])})")
        return None


def _commands(read: YamlFile, path: Path) -> list[_TerminalCommand]:
    items: Any = read.value
    if not isinstance(items, list):
        raise InvalidTask([Problem(path, 1, "expected a list of commands")])
    commands, problems = [], list[Problem]()
    for number, item in enumerate(items):
        try:
            commands.append(_TerminalCommand.model_validate(item))
        except ValidationError as error:
            problems += problems_of(error, _TerminalCommand, path, read.at(number).line)
    if problems:
        raise InvalidTask(problems)
    return commands
