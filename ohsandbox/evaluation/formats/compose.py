"""Compose files that say no more than an image and a few of its options: then no Compose is needed."""

from __future__ import annotations

import os
import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.evaluation.formats.inputs import parse_yaml, read_text
from ohsandbox.evaluation.formats.problems import InvalidTask, Problem
from ohsandbox.evaluation.task import Files

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
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([bkmgt]?)(?:i?b)?", re.IGNORECASE)


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
    read = parse_yaml(read_text(path, root, missing="the Compose file"), path)
    services = read.value.get("services") if isinstance(read.value, dict) else None
    if not isinstance(services, dict) or not services or not all(isinstance(one, dict) for one in services.values()):
        raise InvalidTask([Problem(path, read.line(("services",)), "names no service: expected 'services'")])
    needs = [(read.line((key,)), f"{key!r}") for key in read.value if key not in {"services", "version", "name"}]
    if len(services) > 1:
        return _Collapsed(OnlyService(), [(read.line(("services",)), f"{len(services)} services"), *needs])
    [(name, told)] = services.items()
    where = ("services", str(name))
    reader = _ServiceReader(read, path, root, where=where, known=known, ignored_volumes=ignored_volumes)
    service = reader.service(told)
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
        found = OnlyService()
        for key, value in told.items():
            if value is None or self._says_nothing(key, value, told):
                continue
            match key:
                case "build":
                    found = self._build(found, value)
                case "image" | "working_dir":
                    text = self._text(key, value)
                    found = found._replace(image=text) if key == "image" else found._replace(workdir=text)
                case "environment":
                    found = found._replace(env=self._environment(value))
                case "volumes" if isinstance(value, list):
                    found = found._replace(files=tuple(filter(None, map(self._bound, value))))
                case "network_mode" if value in ("none", "bridge"):  # of any type, also one without a hash
                    found = found._replace(network=value)
                case "cpus" | "mem_limit":
                    found = self._limits(found, {"cpus" if key == "cpus" else "memory": value}, (key,))
                case "deploy":
                    found = self._deploy(found, value)
                case _:
                    self._need((key,), f"{key} = {str(value)[:60]!r}")
        return found

    def _says_nothing(self, key: str, value: Any, told: dict[str, Any]) -> bool:
        match key:
            case "image":
                return "build" in told  # then it is the name that the built image gets
            case "command" | "entrypoint":
                words = value if isinstance(value, list) else [value]
                return not words or bool(IDLE.fullmatch(" ".join(map(str, words)).strip()))
            case _:
                return key in _WITHOUT_MEANING

    def _build(self, found: OnlyService, told: Any) -> OnlyService:
        told = {"context": told} if isinstance(told, str) else told
        if not isinstance(told, dict):
            self._refuse(("build",), "expected a directory, or 'context' and 'dockerfile'")
            return found
        for key in told.keys() - {"context", "dockerfile"}:
            self._need(("build", str(key)), f"build.{key}")
        context = (self._path.parent / self._text("build", told.get("context", "."))).resolve()
        dockerfile = self._text("build", told.get("dockerfile", "Dockerfile"))
        if not context.is_relative_to(self._root):
            self._refuse(("build",), f"context {told.get('context')!r} leads out of the task")
        elif not (context / dockerfile).is_file():
            self._refuse(("build",), f"{context / dockerfile} is missing")
        elif not (context / dockerfile).resolve().is_relative_to(self._root):
            self._refuse(("build",), f"{dockerfile!r} leads out of the task")
        return found._replace(build=context, dockerfile=os.path.normpath(dockerfile))

    def _bound(self, volume: Any) -> Files | None:
        """Return the files of a volume `./here:/there`, or of its long form; None for another kind of volume."""
        if str(volume) in self._ignored_volumes:
            return None
        if isinstance(volume, str):
            here, _, there = self._text("volumes", volume).partition(":")
            there = there.removesuffix(":ro").removesuffix(":rw")
        elif isinstance(volume, dict) and volume.get("type") == "bind" and not set(volume) - _BIND_KEYS:
            here, there = (self._text("volumes", volume.get(key, "")) for key in ("source", "target"))
        else:
            here, there = "", ""
        source = (self._path.parent / here).resolve()
        is_ours = here.startswith(".") and source.is_relative_to(self._root) and there.startswith("/")
        if is_ours and ":" not in there and source.is_dir():
            return Files(target=there, source=source)
        if is_ours and ":" not in there and source.is_file():
            text = read_text(source, self._root, missing="a volume")
            return Files(target=posixpath.dirname(there), texts={posixpath.basename(there): text})
        self._need(("volumes",), f"volume {str(volume)[:60]!r}")
        return None

    def _environment(self, told: Any) -> dict[str, str]:
        if isinstance(told, dict):
            pairs = {str(name): value for name, value in told.items()}
        elif isinstance(told, list) and all(isinstance(one, str) for one in told):
            pairs = {name: value if sign else None for name, sign, value in (one.partition("=") for one in told)}
        else:
            self._refuse(("environment",), "expected names with values")
            return {}
        found = {}
        for name, value in pairs.items():
            # as Compose has it, a name without a value takes the one of this machine, if it is set here
            text = os.environ.get(name) if value is None else self._text("environment", value)
            if text is not None:
                found[name] = text
        return found

    def _deploy(self, found: OnlyService, told: Any) -> OnlyService:
        match told:
            case {"resources": {"limits": dict(limits), **resources}, **others} if not others:
                if not set(resources) - {"reservations"}:
                    return self._limits(found, limits, ("deploy", "resources", "limits"))
        self._need(("deploy",), "deploy")
        return found

    def _limits(self, found: OnlyService, told: dict[str, Any], where: tuple[str, ...]) -> OnlyService:
        for key, value in told.items():
            text = self._text(where[-1], value)
            try:
                if key == "cpus":
                    found = found._replace(cpus=float(text))
                elif key == "memory" and (size := size_bytes(text)) is not None:
                    found = found._replace(memory_bytes=size)
                else:
                    self._need(where, f"limit {key} = {text!r}")
            except ValueError:
                self._refuse(where, f"{key} = {text!r}: expected a number")
        return found

    def _text(self, key: str, value: Any) -> str:
        """Return the value with variables substituted, as Compose does."""
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str | int | float):
            self._refuse((key,), f"{str(value)[:60]!r}: expected a text")
            return ""

        def variable(found: re.Match[str]) -> str:
            name, sign, other = found[1] or found[2], found[3] or "", found[4] or ""
            if name is None:
                return "$"
            here = self._known.get(name, os.environ.get(name))
            if sign.endswith("+"):
                return other if here else ""
            if here is not None and not (sign.startswith(":") and not here):
                return here
            if not sign.endswith("-"):
                self._refuse((key,), f"${{{name}}} is not set here: set it, or write ${{{name}:-default}}")
            return other

        return _VARIABLE.sub(variable, str(value))

    def _refuse(self, where: tuple[str, ...], message: str) -> None:
        place = (*self._where, *where)
        self.problems.append(Problem(self._path, self._read.line(place), f"{'.'.join(place)}: {message}"))

    def _need(self, where: tuple[str, ...], message: str) -> None:
        self.needs.append((self._read.line((*self._where, *where)), message))


def size_bytes(text: str) -> int | None:
    """Parse `2G`, `512M`, `1.5 GiB` or a plain number into bytes; return None for any other text. 1K is 1024."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    return int(float(found[1]) * 1024 ** "bkmgt".index(found[2].lower() or "b"))
