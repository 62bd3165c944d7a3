"""Compose files that say no more than an image and a few of its options: then no Compose is needed."""

from __future__ import annotations

import os
import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.evaluation.formats.inputs import parse_task_yaml, read_text
from ohsandbox.evaluation.formats.problems import InvalidTask, Problem
from ohsandbox.evaluation.task import Files
from ohsandbox.strict_yaml import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ohsandbox.strict_yaml import YamlFile

FILE_NAME = "docker-compose.yaml"
"""The only name that Harbor and Terminal-Bench know; one of another name is a file that some public tasks are about."""
_WITHOUT_MEANING = frozenset({
    "container_name", "hostname", "tty", "stdin_open", "init", "restart", "stop_grace_period", "stop_signal", "expose",
    "pull_policy", "platform",
})  # fmt: skip
"""A sandbox has its own name and first process, and `expose` opens nothing; an image of another platform is refused
when it is pulled."""
_BIND_KEYS = frozenset({"type", "source", "target", "read_only"})
IDLE = re.compile(
    r"(?:(?:/usr)?(?:/bin/)?(?:ba)?sh -c )?(?:exec )?"
    r"(?:sleep (?:infinity|inf|[0-9]+d?)|tail -f /dev/null|(?:/bin/)?(?:ba)?sh)"
)
"""Commands that only keep a container running."""
_VARIABLE = re.compile(r"\$(?:\$|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+?])([^}$]*))?\})")
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([bkmgt]?)(?:i?b)?", re.IGNORECASE)


class OnlyService(NamedTuple):
    """What a Compose file's only service says; whatever it leaves out is None or empty."""

    image: str | None = None
    build: Path | None = None
    dockerfile: str = "Dockerfile"
    workdir: str | None = None
    env: Mapping[str, str] = {}
    cpus: float | None = None
    memory_bytes: int | None = None
    network: str | None = None
    """`none`, or `bridge`."""
    files: tuple[Files, ...] = ()
    """Files of the task that Compose would bind into the container; they are copied, so that nothing is
    written back.
    """


class _Collapsed(NamedTuple):
    """A Compose file reduced to one service; or the reason, with its line, why Compose is needed."""

    service: OnlyService
    needs: list[tuple[int | None, str]]


def collapse(path: Path, root: Path, *, known: Mapping[str, str], ignored_volumes: frozenset[str]) -> _Collapsed:
    """Read a Compose file of the task in root.

    known: variables that have these values and no others; `${...}` of another name is looked for on this machine.
    ignored_volumes: volumes that have no meaning here, as they are written.

    Raises:
        InvalidTask: it is not a Compose file, or asks for a variable that is not set.
    """
    read = parse_task_yaml(read_text(path, root, missing="the Compose file"), path)
    services = read.value.get("services") if isinstance(read.value, dict) else None
    if (
        not isinstance(services, dict)
        or not services
        or not all(isinstance(service, dict) for service in services.values())
    ):
        raise InvalidTask([Problem(path, read.line(("services",)), "names no service: expected 'services'")])
    needs = [(read.line((key,)), f"{key!r}") for key in read.value if key not in {"services", "version", "name"}]
    if len(services) > 1:
        return _Collapsed(OnlyService(), [(read.line(("services",)), f"{len(services)} services"), *needs])
    [(name, service_config)] = services.items()
    location = ("services", str(name))
    reader = _ServiceReader(read, path, root, where=location, known=known, ignored_volumes=ignored_volumes)
    service = reader.service(service_config)
    if reader.problems:
        raise InvalidTask(reader.problems)
    return _Collapsed(service, needs + reader.needs)


class _ServiceReader:
    def __init__(
        self,
        read: YamlFile,
        path: Path,
        root: Path,
        *,
        where: tuple[str, ...],
        known: Mapping[str, str],
        ignored_volumes: frozenset[str],
    ) -> None:
        self._read, self._path, self._root, self._where = read, path, root, where
        self._known, self._ignored_volumes = known, ignored_volumes
        self.problems: list[Problem] = []
        self.needs: list[tuple[int | None, str]] = []

    def service(self, told: dict[str, Any]) -> OnlyService:
        """Read all keys of the service; keys that an image and its options cannot express go to `needs`."""
        only = OnlyService()
        for key, value in told.items():
            if value is None or self._has_no_effect(key, value, told):
                continue
            match key:
                case "build":
                    only = self._build(only, value)
                case "image" | "working_dir":
                    text = self._text(key, value)
                    only = only._replace(image=text) if key == "image" else only._replace(workdir=text)
                case "environment":
                    only = only._replace(env=self._environment(value))
                case "volumes" if isinstance(value, list):
                    only = only._replace(files=tuple(filter(None, map(self._bound, value))))
                case "network_mode" if value in ("none", "bridge"):  # of any type, also one without a hash
                    only = only._replace(network=value)
                case "cpus" | "mem_limit":
                    only = self._limits(only, {"cpus" if key == "cpus" else "memory": value}, (key,))
                case "deploy":
                    only = self._deploy(only, value)
                case _:
                    self._need((key,), f"{key} = {str(value)[:60]!r}")
        return only

    def _has_no_effect(self, key: str, value: Any, service_config: dict[str, Any]) -> bool:
        match key:
            case "image":
                return "build" in service_config  # then it is the name that the built image gets
            case "command" | "entrypoint":
                words = value if isinstance(value, list) else [value]
                return not words or bool(IDLE.fullmatch(" ".join(map(str, words)).strip()))
            case _:
                return key in _WITHOUT_MEANING

    def _build(self, only: OnlyService, build: Any) -> OnlyService:
        build = {"context": build} if isinstance(build, str) else build
        if not isinstance(build, dict):
            self._refuse(("build",), "expected a directory, or 'context' and 'dockerfile'")
            return only
        for key in build.keys() - {"context", "dockerfile"}:
            self._need(("build", str(key)), f"build.{key}")
        context = (self._path.parent / self._text("build", build.get("context", "."))).resolve()
        dockerfile = self._text("build", build.get("dockerfile", "Dockerfile"))
        if not context.is_relative_to(self._root):
            self._refuse(("build",), f"context {build.get('context')!r} leads out of the task")
        elif not (context / dockerfile).is_file():
            self._refuse(("build",), f"{context / dockerfile} is missing")
        elif not (context / dockerfile).resolve().is_relative_to(self._root):
            self._refuse(("build",), f"{dockerfile!r} leads out of the task")
        return only._replace(build=context, dockerfile=os.path.normpath(dockerfile))

    def _bound(self, volume: Any) -> Files | None:
        """Return the files of a volume `./here:/there`, or of its long form; None for another kind of volume."""
        if str(volume) in self._ignored_volumes:
            return None
        if isinstance(volume, str):
            source_text, _, target = self._text("volumes", volume).partition(":")
            target = target.removesuffix(":ro").removesuffix(":rw")
        elif isinstance(volume, dict) and volume.get("type") == "bind" and not set(volume) - _BIND_KEYS:
            source_text, target = (self._text("volumes", volume.get(key, "")) for key in ("source", "target"))
        else:
            source_text, target = "", ""
        source = (self._path.parent / source_text).resolve()
        is_ours = source_text.startswith(".") and source.is_relative_to(self._root) and target.startswith("/")
        if is_ours and ":" not in target and source.is_dir():
            return Files(target=target, source=source)
        if is_ours and ":" not in target and source.is_file():
            text = read_text(source, self._root, missing="a volume")
            return Files(target=posixpath.dirname(target), texts={posixpath.basename(target): text})
        self._need(("volumes",), f"volume {str(volume)[:60]!r}")
        return None

    def _environment(self, declared: Any) -> dict[str, str]:
        if isinstance(declared, dict):
            pairs = declared
        elif isinstance(declared, list) and all(isinstance(item, str) for item in declared):
            pairs = {name: value if sign else None for name, sign, value in (item.partition("=") for item in declared)}
        else:
            self._refuse(("environment",), "expected names with values")
            return {}
        environment = {}
        for name, value in pairs.items():
            if type(name) is not str:
                self._refuse(("environment",), f"key {str(name)[:60]!r} is no text: quote it")
                return {}
            # as Compose has it, a name without a value takes the one of this machine, if it is set here
            text = os.environ.get(name) if value is None else self._text("environment", value)
            if text is not None:
                environment[name] = text
        return environment

    def _deploy(self, only: OnlyService, deploy: Any) -> OnlyService:
        match deploy:
            case {"resources": {"limits": dict(limits), **resources}, **others} if not others:
                if not set(resources) - {"reservations"}:
                    return self._limits(only, limits, ("deploy", "resources", "limits"))
        self._need(("deploy",), "deploy")
        return only

    def _limits(self, only: OnlyService, limits: dict[str, Any], location: tuple[str, ...]) -> OnlyService:
        for key, value in limits.items():
            text = self._text(location[-1], value)
            try:
                if key == "cpus":
                    only = only._replace(cpus=float(text))
                elif key == "memory" and (size := size_bytes(text)) is not None:
                    only = only._replace(memory_bytes=size)
                else:
                    self._need(location, f"limit {key} = {text!r}")
            except ValueError:
                self._refuse(location, f"{key} = {text!r}: expected a number")
        return only

    def _text(self, key: str, value: Any) -> str:
        """Return the value with variables substituted, as Compose does."""
        if not isinstance(value, str | int | float):
            self._refuse((key,), f"{str(value)[:60]!r}: expected a text")
            return ""

        def variable(match: re.Match[str]) -> str:
            name, sign, operand = match[1] or match[2], match[3] or "", match[4] or ""
            if name is None:
                return "$"
            current = self._known.get(name, os.environ.get(name))
            if sign.endswith("+"):
                return operand if current else ""
            if current is not None and not (sign.startswith(":") and not current):
                return current
            if not sign.endswith("-"):
                self._refuse((key,), f"${{{name}}} is not set here: set it, or write ${{{name}:-default}}")
            return operand

        return _VARIABLE.sub(variable, text_of(value))

    def _refuse(self, location: tuple[str, ...], message: str) -> None:
        full_location = (*self._where, *location)
        self.problems.append(
            Problem(self._path, self._read.line(full_location), f"{'.'.join(full_location)}: {message}")
        )

    def _need(self, location: tuple[str, ...], message: str) -> None:
        self.needs.append((self._read.line((*self._where, *location)), message))


def size_bytes(text: str) -> int | None:
    """Parse `2G`, `512M`, `1.5 GiB` or a plain number into bytes; return None for any other text. 1K is 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    return int(float(match[1]) * 1024 ** "bkmgt".index(match[2].lower() or "b"))
