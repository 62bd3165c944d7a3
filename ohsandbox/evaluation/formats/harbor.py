"""Tasks in Harbor's format (schema 1.0 to 1.4): `task.toml`, `instruction.md`, `environment/`, `tests/`, `solution/`.

Read strictly: a key that Harbor would ignore is a problem here. A task that names no network has none while the agent
works, and all of it for its verifier, which in most public tasks installs what it needs.
"""

from __future__ import annotations

import os
import re
import tomllib
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
from ohsandbox.evaluation.formats.project import LOGS, main_environment, resolve
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

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.evaluation.task import ComposeProject, Network

TESTS_DIR, SOLUTION_DIR, LOGS_DIR = "/tests", "/solution", "/logs"
_TEST_COMMAND = f"{TESTS_DIR}/test.sh"
_SOLVE_COMMAND = f"chmod +x {SOLUTION_DIR}/solve.sh && {SOLUTION_DIR}/solve.sh"
FILE_NAME = "task.toml"
_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)
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
        told = self._parsed()
        environment = self._environment(told.environment, self.directory / "environment", ("environment",))
        self.project = environment.compose
        steps = self._steps(told)
        if (self.directory / IGNORE_NAME).is_file():
            self.notes[".harborignore has a meaning in tests/ and solution/ only"] = None
        if self.problems:
            raise InvalidTask(self.problems)
        return Task(
            id=self.directory.name, path=self.directory, format="harbor", environment=environment, steps=tuple(steps),
            reward_strategy=told.multi_step_reward_strategy, notes=tuple(self.notes), metadata=told.metadata,
        )  # fmt: skip

    def _parsed(self) -> HarborFile:
        self.text = read_text(self.file, self.directory, missing="it describes the task")
        try:
            told = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            line = re.search(r"line (\d+)", str(error))
            raise InvalidTask([Problem(self.file, int(line[1]) if line else None, f"not TOML: {error}")]) from None
        except RecursionError:
            raise InvalidTask([Problem(self.file, None, "is nested too deeply")]) from None
        for where in unusable_texts(told):
            self._say(where, "", "holds a NUL character: remove it")
        try:
            return HarborFile.model_validate(told)
        except ValidationError as error:
            found = problems_of(error, HarborFile, self.file, lambda where: toml_line(self.text, where))
            raise InvalidTask([*self.problems, *found]) from None

    def _steps(self, told: HarborFile) -> list[Step]:
        if not told.steps:
            only = HarborStep(name="only", agent=told.agent, verifier=told.verifier)
            return [self._step(told, only, self.directory, ())]
        return [
            self._step(told, step, self.directory / "steps" / step.name, ("steps", number))
            for number, step in enumerate(told.steps)
        ]

    def _step(self, told: HarborFile, step: HarborStep, place: Path, where: _Where) -> Step:
        is_only = not where
        files = () if is_only else self._files(".", place / "workdir")
        least = step.min_reward if isinstance(step.min_reward, dict) else {}
        if isinstance(step.min_reward, int | float):
            least = {"reward": float(step.min_reward)}
        if (place / "trajectory.json").exists():
            self.notes["trajectory.json is not offered to the agent"] = None
        networks = [((*where, "agent"), step.agent), (("agent",), told.agent), (("environment",), told.environment)]
        return Step(
            name="" if is_only else step.name,
            instruction=self._instruction(place / "instruction.md"),
            files=files,
            setup="sh ./setup.sh" if files and (place / "workdir" / "setup.sh").is_file() else None,
            agent=AgentPhase(
                timeout_s=step.agent.timeout_sec or told.agent.timeout_sec,
                user=_user(step.agent.user, told.agent.user),
                **self._network(networks, default="none", in_project=True),
            ),
            verifier=self._verifier(told, step, place, where),
            solution=self._solution(told, place),
            min_reward=least,
            healthcheck=_healthcheck(step.healthcheck),
            artifacts=tuple(
                self._artifact(one, at)
                for at, items in (((), told.artifacts), (where, () if is_only else step.artifacts))
                for one in items
            ),
        )  # fmt: skip

    def _instruction(self, path: Path) -> str:
        try:
            text = read_text(path, self.directory, missing="it holds what the agent is asked to do")
        except InvalidTask as error:
            self.problems += error.problems
            return ""
        lines = text.splitlines(keepends=True)
        while lines and _CANARY.fullmatch(lines[0].strip()):
            del lines[0]
            while lines and not lines[0].strip():
                del lines[0]
        if not "".join(lines).strip():
            self.problems.append(Problem(path, 1, "is empty: write what the agent is asked to do"))
        return "".join(lines)

    def _network(
        self, told: list[tuple[_Where, HarborNetwork]], *, default: Network, in_project: bool
    ) -> dict[str, Any]:
        """Network and allowlist: the first that says something decides; the old `allow_internet` does so last.

        in_project: the phase takes place in the task's Compose project, if it has one.
        """
        for where, one in told:
            if one.network_mode == "allowlist":
                if in_project and self.project is not None:
                    self._say(where, "network_mode", "a Compose project has no allowlist: say public or no-network")
                try:
                    return {"network": "allowlist", "allow": hosts_of_task(one.allowed_hosts or ())}
                except UsageError as error:
                    self._say(where, "allowed_hosts", str(error))
                    return {}
            if one.network_mode is not None:
                return {"network": "open" if one.network_mode == "public" else "none"}
            if isinstance(one, HarborTaskEnvironment) and one.allow_internet is not None:
                return {"network": "open" if one.allow_internet else "none"}
        return {"network": default}

    def _verifier(self, told: HarborFile, step: HarborStep, place: Path, where: _Where) -> Verifier:
        asked, here = step.verifier, (*where, "verifier")
        separate = self._separate(told, asked, place, here)
        env = {**told.verifier.env, **asked.env}
        networks: list[tuple[_Where, HarborNetwork]] = [(here, asked)]
        if separate is not None:
            networks.append((separate.where, separate.told))
        networks += [(("verifier",), told.verifier), (("environment",), told.environment)]
        return Verifier(
            command=_TEST_COMMAND,
            files=() if separate and separate.brings_tests else self._tests(place),
            timeout_s=asked.timeout_sec if "timeout_sec" in asked.model_fields_set else told.verifier.timeout_sec,
            env=self._resolved(env, (*here, "env")),
            user=_user(asked.user, told.verifier.user),
            **self._network(networks, default="open", in_project=separate is None),
            environment=separate and self._environment(separate.told, separate.place, separate.where),
            collect=tuple(self._collect(one, (*here, "collect", number)) for number, one in enumerate(asked.collect)),
        )

    def _separate(self, told: HarborFile, asked: HarborVerifier, place: Path, here: _Where) -> _Verifying | None:
        """Return a verifier's fresh sandbox: its own image, that of a Dockerfile in tests/, or the task's again."""
        levels = [(asked, place / "tests", here)]
        if place != self.directory:
            levels.append((told.verifier, self.directory / "tests", ("verifier",)))
        modes = [one.environment_mode or ("separate" if one.environment else None) for one, _, _ in levels]
        if next((mode for mode in modes if mode), "shared") != "separate":
            return None
        resources, where = next(
            ((one.environment, (*at, "environment")) for one, _, at in levels if one.environment),
            (told.environment, ("environment",)),
        )
        for one, tests, _ in levels:
            if one.environment and one.environment.docker_image:
                image = one.environment.docker_image
                return _Verifying(resources.model_copy(update={"docker_image": image}), tests, where, True)  # noqa: FBT003
            if (tests / "Dockerfile").is_file() or (tests / compose.FILE_NAME).is_file():
                return _Verifying(resources.model_copy(update={"docker_image": None}), tests, where, True)  # noqa: FBT003
        own = resources.model_copy(update={"docker_image": told.environment.docker_image})
        return _Verifying(own, self.directory / "environment", where, False)  # noqa: FBT003

    def _tests(self, place: Path) -> tuple[Files, ...]:
        own, common = place / "tests", self.directory / "tests"
        tests = own if own.is_dir() else common
        if not (tests / "test.sh").is_file():
            self.problems.append(Problem(own / "test.sh", None, "missing: it is the verifier"))
        return self._files(TESTS_DIR, tests, needs="test.sh")

    def _solution(self, told: HarborFile, place: Path) -> Solution | None:
        solution = place / "solution"
        if not solution.is_dir():
            return None
        if not (solution / "solve.sh").is_file():
            self.problems.append(Problem(solution / "solve.sh", None, "missing: it is the solution"))
        env = {"DEBIAN_FRONTEND": "noninteractive", **self._resolved(told.solution.env, ("solution", "env"))}
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

    def _environment(self, told: HarborTaskEnvironment, place: Path, where: _Where) -> TaskEnvironment:
        build = place if (place / "Dockerfile").is_file() else None
        service, own = compose.OnlyService(), dict[str, Any]()
        if (place / compose.FILE_NAME).is_file():
            service, own = self._service(place, told.docker_image)
        elif told.docker_image is None and build is None:
            missing = place / "Dockerfile"
            self.problems.append(Problem(missing, None, "missing: give a Dockerfile, a Compose file or docker_image"))
        if build is not None and not (place / "Dockerfile").resolve().is_relative_to(self.directory):
            self.problems.append(Problem(place / "Dockerfile", None, "leads out of the task: put the file here"))
        self._tell_unsupported(told, where)
        image = told.docker_image or (None if build or service.build else service.image)
        own = own or {
            "image": image, "build": None if image else service.build or build, "dockerfile": service.dockerfile,
            "workdir": service.workdir, "cpus": service.cpus, "memory_bytes": service.memory_bytes, "env": service.env,
            "files": service.files,
        }  # fmt: skip
        asked = {"workdir": told.workdir, "cpus": told.cpus, "memory_bytes": told.memory_bytes}
        found = TaskEnvironment(**{
            **own, **{name: value for name, value in asked.items() if value},
            "env": {**own["env"], **self._resolved(told.env, (*where, "env"))},
            "build_timeout_s": told.build_timeout_sec, "healthcheck": _healthcheck(told.healthcheck),
        })  # fmt: skip
        for field, said in environment_problems(found):
            self._say(where, _KEYS.get(field, field), said)
        return found

    def _tell_unsupported(self, told: HarborTaskEnvironment, where: _Where) -> None:
        for name, value in (("gpus", told.gpus), ("tpu", told.tpu), ("gpu_types", told.gpu_types)):
            if value:
                self._say(where, name, f"{name} are not supported: sandboxes have none")
        if told.os != "linux":
            self._say(where, "os", "sandboxes run Linux")
        if told.storage_bytes:
            # most engines cannot bound a container's disk, and nearly all public tasks have this key
            self.notes["the environment's storage is not bounded"] = None
        for name in ("mcp_servers", "skills_dir"):
            if getattr(told, name):
                self.notes[f"{name} of the environment is not offered to the agent"] = None

    def _service(self, place: Path, image: str | None) -> tuple[compose.OnlyService, dict[str, Any]]:
        """Return a Compose file's only service; or, if it has several, what is known of the service `main`."""
        file = place / compose.FILE_NAME
        try:
            service, needs = compose.collapse(
                file, self.directory, known=_COMPOSE_VARIABLES, ignored_volumes=_COMPOSE_VOLUMES
            )
            if not needs:
                return service, {}
            base: dict[str, Any] = {"build": {"context": str(place)}} if (place / "Dockerfile").is_file() else {}
            project = resolve(
                file, self.directory, main=_MAIN, known=_PROJECT_VARIABLES, base={"image": image} if image else base,
                hidden=[one for name in ("tests", "solution") for one in self.directory.glob(f"**/{name}")],
            )  # fmt: skip
        except InvalidTask as error:
            self.problems += error.problems
            return compose.OnlyService(), {}
        fixed = {"image": image, "build": None} if image else {}
        return service, main_environment(project) | fixed

    def _collect(self, told: HarborCollect, where: _Where) -> Collect:
        service = self._service_of(told, where, "service")
        return Collect(command=told.command, timeout_s=told.timeout_sec, user=_user(told.user), service=service)

    def _artifact(self, told: HarborArtifact, where: _Where) -> Artifact:
        service = self._service_of(told, where, "artifacts")
        return Artifact(
            source=told.source, destination=told.destination, exclude=tuple(told.exclude), service=service
        )  # fmt: skip

    def _service_of(self, told: HarborCollect | HarborArtifact, where: _Where, key: str) -> str | None:
        """Return the name of the service, other than the sandbox, that is meant; None is the sandbox."""
        if told.service in {None, _MAIN}:
            return None
        services = sorted(self.project.services) if self.project else [_MAIN]
        if told.service not in services:
            self._say(where, key, f"unknown service {told.service!r}: the task has {', '.join(services)}")
        return told.service

    def _resolved(self, env: dict[str, str], where: _Where) -> dict[str, str]:
        """Return the variables; ${NAME} and ${NAME:-default} take their value from this machine, which is noted."""
        resolved = {}
        for key, text in env.items():
            if (found := _VARIABLE.fullmatch(text)) is None:
                resolved[key] = text
                continue
            name, default = found[1], found[2]
            if name in os.environ:
                self.notes[f"takes {name} from this machine's environment"] = None
            elif default is None:
                self._say(where, key, f"${{{name}}} is not set here: set it, or write ${{{name}:-default}}")
            resolved[key] = os.environ.get(name, default or "")
        return resolved

    def _say(self, where: _Where, key: str, message: str) -> None:
        location = (*where, key) if key else where
        name = ".".join(map(str, location))
        self.problems.append(Problem(self.file, toml_line(self.text, location), f"{name}: {message}"))


def _user(*asked: str | int | None) -> str | None:
    return next((str(one) for one in asked if one is not None), None)


def _healthcheck(told: HarborHealthcheck | None) -> Healthcheck | None:
    if told is None:
        return None
    return Healthcheck(
        command=told.command, interval_s=told.interval_sec, timeout_s=told.timeout_sec,
        start_period_s=told.start_period_sec, start_interval_s=told.start_interval_sec, retries=told.retries,
    )  # fmt: skip
