"""Compose files of several services: resolved by Docker Compose itself, then checked key by key.

A task is foreign content. What is not known here to stay in the task's own project is a problem: a key that is neither
kept nor without meaning, a path outside of the task, a name that belongs to the engine.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import UsageError
from ohsandbox.evaluation.compose_client import docker_compose
from ohsandbox.evaluation.formats.inputs import parse_task_yaml, read_text
from ohsandbox.evaluation.formats.problems import InvalidTask, Problem
from ohsandbox.evaluation.task import ComposeProject, TaskEnvironment
from ohsandbox.strict_json import load_json
from ohsandbox.strict_yaml import amount

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ohsandbox.strict_yaml import YamlFile

_RESOLVE_S = 60.0
"""Time limit for Compose to resolve a file; it takes 0.1 s."""
LOGS = "/ohsandbox-logs"
"""Directories for logs, which harnesses bind; Compose is told that they are here, but they are not bound."""
_KEPT = frozenset({
    "command", "entrypoint", "environment", "user", "working_dir", "depends_on", "healthcheck", "tmpfs", "expose",
    "shm_size", "hostname", "tty", "stdin_open", "platform", "read_only", "init", "cap_drop", "stop_signal",
})  # fmt: skip
_WITHOUT_MEANING = frozenset({
    "ports", "labels", "annotations", "restart", "logging", "pull_policy", "stop_grace_period", "develop", "attach",
    "mem_reservation", "profiles", "oom_score_adj", "container_name",
})  # fmt: skip
"""No port of this machine is opened, and no service outlives its trial."""
_NOT_KEPT = _WITHOUT_MEANING | {"image", "build", "mem_limit", "cpus", "deploy", "volumes", "secrets", "configs"}
"""The latter are of the service's `TaskEnvironment`, and its mounts."""
_ULIMITS = frozenset({"core", "memlock", "nofile", "nproc", "stack"})
"""Limits (ulimit) that databases and compilers ask for. Core files are never written."""
_MAX_ULIMIT = 2**40
"""No machine has so much of anything; engines refuse what does not fit in 63 bits. -1 is not a limit."""
_GIVEN = {"secrets": "/run/secrets", "configs": "/"}
"""Files that services are given, and where those are that name no place. To Compose both are binds, of any mode."""
_NETWORK_KEYS = frozenset({"name", "driver", "internal", "attachable", "labels", "enable_ipv6"})
_BUILD_KEYS = frozenset({"context", "dockerfile", "args", "target", "tags", "labels", "cache_from", "platforms"})
_UNSET = re.compile(r'The \\?"([^"\\]+)\\?" variable is not set')


def resolve_project(
    path: Path, root: Path, *, main: str, known: Mapping[str, str], base: Mapping[str, Any], hidden: Collection[Path]
) -> ComposeProject:
    """Read a Compose file of the task in root.

    main: the service that is the sandbox. known: the only variables that are put in. base: what the service main is
    told beside the file. hidden: files and directories of the task that no service may see.

    Raises:
        InvalidTask: Compose is not here or refuses the file, or it asks for what is not allowed, with all that.
    """
    read = parse_task_yaml(read_text(path, root, missing="the Compose file"), path)
    checker = _Checker(read, path, root, main, hidden)
    checker.check_sources()
    checker.stop_at_problems()
    return checker.project(checker.resolved(known, base))


class _Checker:
    def __init__(self, read: YamlFile, path: Path, root: Path, main: str, hidden: Collection[Path]) -> None:
        self._read, self._path, self._root, self._main = read, path, root.resolve(), main
        self._hidden = [path.resolve() for path in hidden]
        self._problems: list[Problem] = []
        self._given: dict[str, dict[str, Any]] = {}
        """Secrets and configs of the file, by name."""

    def stop_at_problems(self) -> None:
        """Raise InvalidTask if problems were found so far."""
        if self._problems:
            raise InvalidTask(self._problems)

    def check_sources(self) -> None:
        """Refuse keys that make Compose read other files of this machine while it resolves the file."""
        document = self._read.value if isinstance(self._read.value, dict) else {}
        if "include" in document:
            self._refuse(("include",), "is not supported: write its services here")
        for name, service in (document.get("services") or {}).items():
            if not isinstance(service, dict):
                continue
            extends = service.get("extends")
            if isinstance(extends, dict) and "file" in extends:
                self._refuse(("services", name, "extends"), "'file' is not supported: write the service here")
            for key in ("env_file", "label_file"):
                entries = service.get(key) or []
                for entry in entries if isinstance(entries, list) else [entries]:
                    self._source(("services", name, key), entry.get("path") if isinstance(entry, dict) else entry)
        if (self._path.parent / ".env").is_symlink():
            self._source((), ".env")

    def _source(self, location: tuple[str, ...], value: object) -> None:
        text = str(value)
        if text.startswith("~") or "$" in text or self._inside(self._path.parent / text) is None:
            self._refuse(location, f"{text[:200]!r} leads out of the task: put the file here")

    def _inside(self, path: Path) -> Path | None:
        """Return the real path if it is the task's directory or inside it."""
        try:
            real = path.resolve()
        except (OSError, ValueError, RuntimeError):  # too long, a NUL, a loop of links
            return None
        return real if real.is_relative_to(self._root) else None

    def resolved(self, known: Mapping[str, str], base: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model that Compose resolves the file to."""
        with tempfile.TemporaryDirectory(prefix="ohsandbox-compose-") as directory:
            first = Path(directory, "base.json")
            first.write_text(json.dumps({"services": {self._main: base}}))
            files = [*(("-f", str(first)) if base else ()), "-f", str(self._path)]
            arguments = [
                "-p",
                "task",
                "--project-directory",
                str(self._path.parent),
                *files,
                "config",
                "--format",
                "json",
            ]
            try:
                result = docker_compose(arguments, env=known, limit_s=_RESOLVE_S)
            except UsageError as error:
                raise InvalidTask([Problem(self._path, None, str(error))]) from None
        if result.exit_code != 0:
            last_line = result.stderr.strip().rpartition("\n")[2].replace(str(self._root), ".")
            raise InvalidTask([Problem(self._path, None, f"Docker Compose refuses it: {last_line[:500]}")])
        for name in dict.fromkeys(_UNSET.findall(result.stderr)):
            self._problems.append(
                Problem(self._path, None, f"${{{name}}} is not given to tasks: write ${{{name}:-default}}")
            )
        try:
            model: dict[str, Any] = load_json(result.stdout)
        except ValueError as error:
            raise InvalidTask([Problem(self._path, None, f"What Docker Compose makes of it: {error}")]) from None
        return model

    def project(self, model: dict[str, Any]) -> ComposeProject:
        """Check the model; return the part of it that is used."""
        for key in model.keys() - {"name", "services", "networks", "volumes", *_GIVEN}:
            if not key.startswith("x-"):
                self._refuse((key,), "is not supported")
        self._given = {kind: model.get(kind) or {} for kind in _GIVEN}
        for name, network in (model.get("networks") or {}).items():
            self._shared(("networks", name), network or {}, _NETWORK_KEYS, "bridge")
        for name, network in (model.get("volumes") or {}).items():
            self._shared(("volumes", name), network or {}, frozenset({"name", "driver", "labels"}), "local")
        services = {name: self._service(name, volume) for name, volume in model["services"].items()}
        environments = {name: self._environment(name, service) for name, service in model["services"].items()}
        if self._main not in services:
            self._refuse(("services",), f"no service {self._main!r}: it is the sandbox")
        if "network_mode" in services.get(self._main, ()):
            self._refuse(("services", self._main, "network_mode"), "is for the other services")
        self.stop_at_problems()
        return ComposeProject(
            main=self._main, services=services, environments=environments, networks=tuple(model.get("networks") or ()),
            volumes=tuple(model.get("volumes") or ()),
        )  # fmt: skip

    def _shared(
        self, location: tuple[str, ...], resource: dict[str, Any], known_keys: Collection[str], driver: str
    ) -> None:
        """Check a network or volume: it must be an ordinary one that belongs to the project."""
        for key, value in resource.items():
            if key == "driver" and value not in {None, driver}:
                self._refuse((*location, key), f"{value!r} is not supported: only {driver!r}")
            elif key not in known_keys and value and not key.startswith("x-"):
                self._refuse((*location, key), "is not supported: each trial has its own")

    def _service(self, name: str, service: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a service that is passed on to Compose."""
        location, kept_keys = ("services", name), dict[str, Any]()
        for key, value in service.items():
            match key:
                case _ if value in (None, False, "", [], {}) or key in _NOT_KEPT or key.startswith("x-"):
                    pass
                case _ if key in _KEPT:
                    kept_keys[key] = value
                case "ulimits":
                    kept_keys[key] = {
                        limit: self._ulimit((*location, key, limit), ulimit) for limit, ulimit in value.items()
                    }
                case "networks":
                    kept_keys[key] = {
                        net: self._joined((*location, key, net), attachment or {}) for net, attachment in value.items()
                    }
                case "network_mode" if value == "none" or str(value).startswith("service:"):
                    kept_keys[key] = value
                case _:
                    self._refuse(
                        (*location, key), f"{str(value)[:60]!r} is not allowed: a task stays in its own project"
                    )
        mounts = [self._mount((*location, "volumes"), mount) for mount in service.get("volumes") or ()]
        mounts += [self._mount_given(kind, source) for kind in _GIVEN for source in service.get(kind) or ()]
        if volumes := [mount for mount in mounts if mount]:
            kept_keys["volumes"] = volumes
        if alias := service.get("container_name"):
            for network in kept_keys.get("networks", {}).values():
                network["aliases"] = [*network.get("aliases", ()), alias]
        return kept_keys

    def _ulimit(self, location: tuple[str, ...], ulimit: Any) -> Any:
        """Check a ulimit; memory and the number of processes are limited by the service's own settings in any case."""
        numbers = [*ulimit.values()] if isinstance(ulimit, dict) else [ulimit]
        if location[-1] not in _ULIMITS:
            self._refuse(location, f"is not supported: only {', '.join(sorted(_ULIMITS))}")
        elif not all(isinstance(number, int) and -1 <= number <= _MAX_ULIMIT for number in numbers):
            self._refuse(location, f"{ulimit!r} is too high: at most {_MAX_ULIMIT}")
        return ulimit

    def _environment(self, name: str, service: dict[str, Any]) -> TaskEnvironment:
        """Return the image of a service, and its limits."""
        location = ("services", name)
        fields: dict[str, Any] = {"image": service.get("image")}
        if build := service.get("build"):
            fields |= {"image": None, **self._build((*location, "build"), build)}
        for key, field in (("cpus", "cpus"), ("mem_limit", "memory_bytes")):
            if service.get(key) is not None:
                fields[field] = self._number((*location, key), service[key])
        return TaskEnvironment(**fields | self._deploy((*location, "deploy"), service.get("deploy") or {}))

    def _build(self, location: tuple[str, ...], build: dict[str, Any]) -> dict[str, Any]:
        for key, value in build.items():
            if key not in _BUILD_KEYS and value:
                self._refuse((*location, key), "is not supported: name a directory and a Dockerfile in it")
        context = self._inside(Path(str(build.get("context"))))
        dockerfile = os.path.normpath(str(build.get("dockerfile") or "Dockerfile"))
        if context is None or self._inside(context / dockerfile) is None:
            self._refuse((*location, "context"), f"{build.get('context')!r} leads out of the task")
        elif not (context / dockerfile).is_file():
            self._refuse((*location, "dockerfile"), f"{context / dockerfile} is missing")
        args = {key: _plain(value) for key, value in (build.get("args") or {}).items() if value is not None}
        return {"build": context, "dockerfile": dockerfile, "build_args": args, "build_target": build.get("target")}

    def _mount(self, location: tuple[str, ...], mount: dict[str, Any]) -> dict[str, Any] | None:
        source, target = str(mount.get("source") or ""), mount.get("target")
        if mount.get("type") in {"volume", "tmpfs"}:
            return mount
        if mount.get("type") != "bind":
            self._refuse(location, f"a mount of type {mount.get('type')!r} is not allowed")
            return None
        if source.startswith(LOGS):
            return None
        real = self._inside(Path(source))
        if real is None:
            self._refuse(location, f"{source} is outside of the task: a task has no files of this machine")
        elif any(path.is_relative_to(real) or real.is_relative_to(path) for path in self._hidden):
            self._refuse(location, f"{source} would show the tests or the solution to the agent: name a part of it")
        elif not real.exists():
            self._refuse(location, f"{source} is missing")
        # read-only: what a trial does is not seen by the next one
        return {"type": "bind", "source": str(real), "target": target, "read_only": True}

    def _mount_given(self, kind: str, reference: dict[str, Any]) -> dict[str, Any] | None:
        """Mount a secret or config of a service: a file of the task, bound like any other."""
        name = str(reference.get("source"))
        if not isinstance(file := self._given[kind].get(name, {}).get("file"), str):
            self._refuse((kind, name), "is not a file of the task: write it to one, and name that as 'file'")
            return None
        mount_target = posixpath.join(_GIVEN[kind], str(reference.get("target") or name))
        return self._mount((kind, name, "file"), {"type": "bind", "source": file, "target": mount_target})

    def _joined(self, location: tuple[str, ...], attachment: dict[str, Any]) -> dict[str, Any]:
        for key in attachment.keys() - {"aliases", "priority"}:
            self._refuse((*location, key), "is not supported: services have their names")
        return {"aliases": list(attachment.get("aliases") or ())}

    def _deploy(self, location: tuple[str, ...], deploy: dict[str, Any]) -> dict[str, Any]:
        resources = deploy.get("resources") or {}
        limits, reserved = resources.get("limits") or {}, resources.get("reservations") or {}
        odd = [key for key in deploy if deploy[key] and key not in {"resources", "placement", "restart_policy"}]
        odd += [key for key in (*limits, *reserved) if key not in {"cpus", "memory", "pids"}]
        for key in odd:
            if deploy.get(key) != 1:  # one replica
                self._refuse((*location, key), "is not supported")
        resource_limits = {"cpus": limits.get("cpus"), "memory_bytes": limits.get("memory")}
        return {
            name: self._number((*location, name), value) for name, value in resource_limits.items() if value is not None
        }

    def _number(self, location: tuple[str, ...], value: object) -> float | None:
        if (number := amount(value)) is None:
            self._refuse(location, f"{value!r}: expected a number")
        return number or None

    def _refuse(self, location: tuple[str, ...], message: str) -> None:
        line = self._read.line(location) if location else None
        name = ".".join(map(str, location))
        self._problems.append(Problem(self._path, line, f"{name}: {message}" if name else message))


def main_environment(project: ComposeProject) -> dict[str, Any]:
    """Return the fields of the `TaskEnvironment` of the sandbox."""
    service = project.services[project.main]
    env: Any = service.get("environment") or {}
    environment = project.environments[project.main]
    return {
        **{name: getattr(environment, name) for name in environment.model_fields_set},
        "workdir": service.get("working_dir"), "compose": project,
        "env": {name: _plain(value) for name, value in env.items() if value is not None},
    }  # fmt: skip


def _plain(value: object) -> str:
    """Escape text so that Compose substitutes no variables in it."""
    return str(value).replace("$$", "$")
