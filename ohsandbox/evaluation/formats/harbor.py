"""Tasks in Harbor's format (schema 1.0 to 1.4): `task.toml`, `instruction.md`, `environment/`, `tests/`, `solution/`.

Read strictly: a key that Harbor would ignore is a problem here. A task that names no network has none while the agent
works, and all of it for its verifier, which in most public tasks installs what it needs.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from ohsandbox.errors import UsageError
from ohsandbox.evaluation.formats import compose
from ohsandbox.evaluation.formats.harbor_file import (
    HarborArtifact,
    HarborCollect,
    HarborFile,
    HarborHealthcheck,
    HarborNetwork,
    HarborStep,
    HarborTaskEnvironment,
    HarborVerifier,
)
from ohsandbox.evaluation.formats.inputs import (
    IGNORE_NAME,
    environment_problems,
    hosts_of_task,
    look_at_tree,
    read_text,
)
from ohsandbox.evaluation.formats.problems import InvalidTask, Problem, problems_of, toml_line, unusable_texts
from ohsandbox.evaluation.formats.project import LOGS, main_environment, resolve_project
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
from ohsandbox.strict_toml import InvalidToml, parse_toml

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.evaluation.task import ComposeProject, Network

TESTS_DIR, SOLUTION_DIR, LOGS_DIR = "/tests", "/solution", "/logs"
_TEST_COMMAND = f"{TESTS_DIR}/test.sh"
_SOLVE_COMMAND = f"chmod +x {SOLUTION_DIR}/solve.sh && {SOLUTION_DIR}/solve.sh"
FILE_NAME = "task.toml"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\}", re.DOTALL)
_COMPOSE_VARIABLES = {"CONTEXT_DIR": ".", "MAIN_IMAGE_NAME": "main", "TEST_DIR": TESTS_DIR}
_COMPOSE_VOLUMES = frozenset({
    "${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}", "${HOST_AGENT_LOGS_PATH}:${ENV_AGENT_LOGS_PATH}",
    "${HOST_ARTIFACTS_PATH}:${ENV_ARTIFACTS_PATH}",
})  # fmt: skip
"""Volumes of Compose files that are ignored: logs are copied out of the sandbox instead."""
_PROJECT_VARIABLES = {
    **_COMPOSE_VARIABLES,
    **{f"HOST_{name}_PATH": f"{LOGS}/{name}" for name in ("VERIFIER_LOGS", "AGENT_LOGS", "ARTIFACTS")},
    "ENV_VERIFIER_LOGS_PATH": f"{LOGS_DIR}/verifier", "ENV_AGENT_LOGS_PATH": f"{LOGS_DIR}/agent",
    "ENV_ARTIFACTS_PATH": f"{LOGS_DIR}/artifacts", "CPUS": "2", "MEMORY": "2G",
}  # fmt: skip
"""The variables that Harbor sets for Compose files."""
_MAIN = "main"
"""The name of the service that is the sandbox."""
_KEYS = {"image": "docker_image", "memory_bytes": "memory_mb"}
"""The names in `task.toml` of fields of `TaskEnvironment` that are named differently there."""
_Where = tuple[str | int, ...]


class _Verifying(NamedTuple):
    """Where a separate verifier runs, and whether its image contains the tests."""

    told: HarborTaskEnvironment
    place: Path
    where: _Where
    brings_tests: bool


def is_task(directory: Path) -> bool:
    """Whether the directory looks like a task of this format."""
    return (directory / FILE_NAME).is_file()


def read(directory: Path) -> Task:
    """Read a task.

    Raises:
        InvalidTask: with all problems found.
    """
    return _HarborReader(directory).task()


class _HarborReader:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / FILE_NAME
        self.problems: list[Problem] = []
        self.notes: dict[str, None] = {}
        self.text = ""
        self.project: ComposeProject | None = None

    def task(self) -> Task:
        parsed = self._parsed()
        environment = self._environment(parsed.environment, self.directory / "environment", ("environment",))
        self.project = environment.compose
        steps = self._steps(parsed)
        if (self.directory / IGNORE_NAME).is_file():
            self.notes[".harborignore has a meaning in tests/ and solution/ only"] = None
        if self.problems:
            raise InvalidTask(self.problems)
        return Task(
            id=self.directory.name, path=self.directory, format="harbor", environment=environment, steps=tuple(steps),
            reward_strategy=parsed.multi_step_reward_strategy, notes=tuple(self.notes), metadata=parsed.metadata,
        )  # fmt: skip

    def _parsed(self) -> HarborFile:
        self.text = read_text(self.file, self.directory, missing="it describes the task")
        try:
            document = parse_toml(self.text)
        except InvalidToml as error:
            line = error.line or toml_line(self.text, error.location)
            raise InvalidTask([Problem(self.file, line, str(error))]) from None
        for location in unusable_texts(document):
            self._add_problem(location, "", "holds a NUL character: remove it")
        try:
            return HarborFile.model_validate(document)
        except ValidationError as error:
            problems = problems_of(error, HarborFile, self.file, lambda location: toml_line(self.text, location))
            raise InvalidTask([*self.problems, *problems]) from None

    def _steps(self, parsed: HarborFile) -> list[Step]:
        if not parsed.steps:
            only = HarborStep(name="only", agent=parsed.agent, verifier=parsed.verifier)
            return [self._step(parsed, only, self.directory, ())]
        return [
            self._step(parsed, step, self.directory / "steps" / step.name, ("steps", number))
            for number, step in enumerate(parsed.steps)
        ]

    def _step(self, parsed: HarborFile, step: HarborStep, step_directory: Path, location: _Where) -> Step:
        is_only = not location
        files = () if is_only else self._files(".", step_directory / "workdir")
        least = step.min_reward if isinstance(step.min_reward, dict) else {}
        if isinstance(step.min_reward, int | float):
            least = {"reward": float(step.min_reward)}
        if (step_directory / "trajectory.json").exists():
            self.notes["trajectory.json is not offered to the agent"] = None
        networks = [
            ((*location, "agent"), step.agent),
            (("agent",), parsed.agent),
            (("environment",), parsed.environment),
        ]
        return Step(
            name="" if is_only else step.name,
            instruction=self._instruction(step_directory / "instruction.md"),
            files=files,
            setup="sh ./setup.sh" if files and (step_directory / "workdir" / "setup.sh").is_file() else None,
            agent=AgentPhase(
                timeout_s=step.agent.timeout_sec or parsed.agent.timeout_sec,
                user=_user(step.agent.user, parsed.agent.user),
                **self._network(networks, default="none", in_project=True),
            ),
            verifier=self._verifier(parsed, step, step_directory, location),
            solution=self._solution(parsed, step_directory),
            min_reward=least,
            healthcheck=_healthcheck(step.healthcheck),
            artifacts=tuple(
                self._artifact(artifact, owner_location)
                for owner_location, items in (((), parsed.artifacts), (location, () if is_only else step.artifacts))
                for artifact in items
            ),
        )  # fmt: skip

    def _instruction(self, path: Path) -> str:
        try:
            text = read_text(path, self.directory, missing="it holds what the agent is asked to do")
        except InvalidTask as error:
            self.problems += error.problems
            return ""
        lines = text.splitlines(keepends=True)
        while lines and _is_canary(lines[0].strip()):
            del lines[0]
            while lines and not lines[0].strip():
                del lines[0]
        if not "".join(lines).strip():
            self.problems.append(Problem(path, 1, "is empty: write what the agent is asked to do"))
        return "".join(lines)

    def _network(
        self, networks: list[tuple[_Where, HarborNetwork]], *, default: Network, in_project: bool
    ) -> dict[str, Any]:
        """Network and allowlist: the first that says something decides; the old `allow_internet` does so last.

        in_project: the phase takes place in the task's Compose project, if it has one.
        """
        for location, network in networks:
            if network.network_mode == "allowlist":
                if in_project and self.project is not None:
                    self._add_problem(
                        location, "network_mode", "a Compose project has no allowlist: say public or no-network"
                    )
                try:
                    return {"network": "allowlist", "allow": hosts_of_task(network.allowed_hosts or ())}
                except UsageError as error:
                    self._add_problem(location, "allowed_hosts", str(error))
                    return {}
            if network.network_mode is not None:
                return {"network": "open" if network.network_mode == "public" else "none"}
            if isinstance(network, HarborTaskEnvironment) and network.allow_internet is not None:
                return {"network": "open" if network.allow_internet else "none"}
        return {"network": default}

    def _verifier(self, parsed: HarborFile, step: HarborStep, step_directory: Path, location: _Where) -> Verifier:
        verifier, verifier_location = step.verifier, (*location, "verifier")
        separate = self._separate(parsed, verifier, step_directory, verifier_location)
        env = {**parsed.verifier.env, **verifier.env}
        networks: list[tuple[_Where, HarborNetwork]] = [(verifier_location, verifier)]
        if separate is not None:
            networks.append((separate.where, separate.told))
        networks += [(("verifier",), parsed.verifier), (("environment",), parsed.environment)]
        return Verifier(
            command=_TEST_COMMAND,
            files=() if separate and separate.brings_tests else self._tests(step_directory),
            timeout_s=verifier.timeout_sec
            if "timeout_sec" in verifier.model_fields_set
            else parsed.verifier.timeout_sec,
            env=self._resolved(env, (*verifier_location, "env")),
            user=_user(verifier.user, parsed.verifier.user),
            **self._network(networks, default="open", in_project=separate is None),
            environment=separate and self._environment(separate.told, separate.place, separate.where),
            collect=tuple(
                self._collect(collect, (*verifier_location, "collect", number))
                for number, collect in enumerate(verifier.collect)
            ),
        )

    def _separate(
        self, parsed: HarborFile, verifier: HarborVerifier, step_directory: Path, verifier_location: _Where
    ) -> _Verifying | None:
        """Return a verifier's fresh sandbox: its own image, that of a Dockerfile in tests/, or the task's again."""
        levels = [(verifier, step_directory / "tests", verifier_location)]
        if step_directory != self.directory:
            levels.append((parsed.verifier, self.directory / "tests", ("verifier",)))
        modes = [level.environment_mode or ("separate" if level.environment else None) for level, _, _ in levels]
        if next((mode for mode in modes if mode), "shared") != "separate":
            return None
        resources, location = next(
            (
                (level.environment, (*level_location, "environment"))
                for level, _, level_location in levels
                if level.environment
            ),
            (parsed.environment, ("environment",)),
        )
        for level, tests, _ in levels:
            if level.environment and level.environment.docker_image:
                image = level.environment.docker_image
                return _Verifying(resources.model_copy(update={"docker_image": image}), tests, location, True)  # noqa: FBT003
            if (tests / "Dockerfile").is_file() or (tests / compose.FILE_NAME).is_file():
                return _Verifying(resources.model_copy(update={"docker_image": None}), tests, location, True)  # noqa: FBT003
        declared = resources.model_copy(update={"docker_image": parsed.environment.docker_image})
        return _Verifying(declared, self.directory / "environment", location, False)  # noqa: FBT003

    def _tests(self, step_directory: Path) -> tuple[Files, ...]:
        step_tests, common = step_directory / "tests", self.directory / "tests"
        tests = step_tests if step_tests.is_dir() else common
        if not (tests / "test.sh").is_file():
            self.problems.append(Problem(step_tests / "test.sh", None, "missing: it is the verifier"))
        return self._files(TESTS_DIR, tests, needs="test.sh")

    def _solution(self, parsed: HarborFile, step_directory: Path) -> Solution | None:
        solution = step_directory / "solution"
        if not solution.is_dir():
            return None
        if not (solution / "solve.sh").is_file():
            self.problems.append(Problem(solution / "solve.sh", None, "missing: it is the solution"))
        env = {"DEBIAN_FRONTEND": "noninteractive", **self._resolved(parsed.solution.env, ("solution", "env"))}
        return Solution(command=_SOLVE_COMMAND, files=self._files(SOLUTION_DIR, solution, needs="solve.sh"), env=env)

    def _files(self, target: str, source: Path, *, needs: str = "") -> tuple[Files, ...]:
        if not source.is_dir():
            return ()
        try:
            tree = look_at_tree(source, self.directory)
        except InvalidTask as error:
            self.problems += error.problems
            return ()
        self.problems += tree.problems
        if needs in tree.excluded:
            self.problems.append(Problem(source / needs, None, "is left out by a .harborignore: it is needed"))
        return (Files(target=target, source=source, excluded=tree.excluded),)

    def _environment(self, declared: HarborTaskEnvironment, directory: Path, location: _Where) -> TaskEnvironment:
        build = directory if (directory / "Dockerfile").is_file() else None
        service, project_fields = compose.OnlyService(), dict[str, Any]()
        if (directory / compose.FILE_NAME).is_file():
            service, project_fields = self._service(directory, declared.docker_image)
        elif declared.docker_image is None and build is None:
            missing = directory / "Dockerfile"
            self.problems.append(Problem(missing, None, "missing: give a Dockerfile, a Compose file or docker_image"))
        if build is not None and not (directory / "Dockerfile").resolve().is_relative_to(self.directory):
            self.problems.append(Problem(directory / "Dockerfile", None, "leads out of the task: put the file here"))
        self._report_unsupported(declared, location)
        image = declared.docker_image or (None if build or service.build else service.image)
        project_fields = project_fields or {
            "image": image, "build": None if image else service.build or build, "dockerfile": service.dockerfile,
            "workdir": service.workdir, "cpus": service.cpus, "memory_bytes": service.memory_bytes, "env": service.env,
            "files": service.files,
        }  # fmt: skip
        resources = {"workdir": declared.workdir, "cpus": declared.cpus, "memory_bytes": declared.memory_bytes}
        environment = TaskEnvironment(**{
            **project_fields, **{name: value for name, value in resources.items() if value},
            "env": {**project_fields["env"], **self._resolved(declared.env, (*location, "env"))},
            "build_timeout_s": declared.build_timeout_sec, "healthcheck": _healthcheck(declared.healthcheck),
        })  # fmt: skip
        for field, message in environment_problems(environment):
            self._add_problem(location, _KEYS.get(field, field), message)
        return environment

    def _report_unsupported(self, declared: HarborTaskEnvironment, location: _Where) -> None:
        for name, value in (("gpus", declared.gpus), ("tpu", declared.tpu), ("gpu_types", declared.gpu_types)):
            if value:
                self._add_problem(location, name, f"{name} are not supported: sandboxes have none")
        if declared.os != "linux":
            self._add_problem(location, "os", "sandboxes run Linux")
        if declared.storage_bytes:
            # most engines cannot bound a container's disk, and nearly all public tasks have this key
            self.notes["the environment's storage is not bounded"] = None
        for name in ("mcp_servers", "skills_dir"):
            if getattr(declared, name):
                self.notes[f"{name} of the environment is not offered to the agent"] = None

    def _service(self, directory: Path, image: str | None) -> tuple[compose.OnlyService, dict[str, Any]]:
        """Return a Compose file's only service; or, if it has several, what is known of the service `main`."""
        file = directory / compose.FILE_NAME
        try:
            service, needs = compose.collapse(
                file, self.directory, known=_COMPOSE_VARIABLES, ignored_volumes=_COMPOSE_VOLUMES
            )
            if not needs:
                return service, {}
            base: dict[str, Any] = (
                {"build": {"context": str(directory)}} if (directory / "Dockerfile").is_file() else {}
            )
            project = resolve_project(
                file, self.directory, main=_MAIN, known=_PROJECT_VARIABLES, base={"image": image} if image else base,
                hidden=[path for name in ("tests", "solution") for path in self.directory.glob(f"**/{name}")],
            )  # fmt: skip
        except InvalidTask as error:
            self.problems += error.problems
            return compose.OnlyService(), {}
        fixed = {"image": image, "build": None} if image else {}
        return service, main_environment(project) | fixed

    def _collect(self, collect: HarborCollect, location: _Where) -> Collect:
        service = self._service_of(collect, location, "service")
        return Collect(
            command=collect.command, timeout_s=collect.timeout_sec, user=_user(collect.user), service=service
        )

    def _artifact(self, artifact: HarborArtifact, location: _Where) -> Artifact:
        service = self._service_of(artifact, location, "artifacts")
        return Artifact(
            source=artifact.source, destination=artifact.destination, exclude=tuple(artifact.exclude), service=service
        )  # fmt: skip

    def _service_of(self, item: HarborCollect | HarborArtifact, location: _Where, key: str) -> str | None:
        """Return the name of the service, other than the sandbox, that is meant; None is the sandbox."""
        if item.service in {None, _MAIN}:
            return None
        services = sorted(self.project.services) if self.project else [_MAIN]
        if item.service not in services:
            self._add_problem(location, key, f"unknown service {item.service!r}: the task has {', '.join(services)}")
        return item.service

    def _resolved(self, env: dict[str, str], location: _Where) -> dict[str, str]:
        """Return the variables; ${NAME} and ${NAME:-default} take their value from this machine, which is noted."""
        resolved = {}
        for key, text in env.items():
            if (match := _VARIABLE.fullmatch(text)) is None:
                resolved[key] = text
                continue
            name, default = match[1], match[2]
            if name in os.environ:
                self.notes[f"takes {name} from this machine's environment"] = None
            elif default is None:
                self._add_problem(location, key, f"${{{name}}} is not set here: set it, or write ${{{name}:-default}}")
            resolved[key] = os.environ.get(name, default or "")
        return resolved

    def _add_problem(self, parent: _Where, key: str, message: str) -> None:
        location = (*parent, key) if key else parent
        name = ".".join(map(str, location))
        self.problems.append(Problem(self.file, toml_line(self.text, location), f"{name}: {message}"))


def _user(*users: str | int | None) -> str | None:
    return next((str(user) for user in users if user is not None), None)


def _is_canary(line: str) -> bool:
    """Whether a line only marks a task, so that its text is found in training data."""
    is_comment = line.startswith("#") or (line.startswith("<!--") and line.endswith("-->"))
    return is_comment and "canary" in line.lower()


def _healthcheck(check: HarborHealthcheck | None) -> Healthcheck | None:
    if check is None:
        return None
    return Healthcheck(
        command=check.command, interval_s=check.interval_sec, timeout_s=check.timeout_sec,
        start_period_s=check.start_period_sec, start_interval_s=check.start_interval_sec, retries=check.retries,
    )  # fmt: skip
