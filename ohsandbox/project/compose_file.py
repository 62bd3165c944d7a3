"""The services of a project: from tables, or from a Compose file, of which only a safe subset is accepted.

The file is as untrusted as its repository, so it is read strictly: unknown keys are refused with their line, and so is
everything that would reach this machine (its directories, devices, namespaces, variables). Keys without a meaning here
(a published port, a restart policy) are reported in notes.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.paths import path_below
from ohsandbox.private_files import open_regular
from ohsandbox.runtime.build_options import Build, resolved_build
from ohsandbox.runtime.service_options import Service, check_services
from ohsandbox.strict_yaml import NO, YES, InvalidYaml, YamlFile, amount, mapping_or_empty, parse_yaml, text_of
from ohsandbox.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAX_FILE_BYTES = 256 * 1024
_REACH = frozenset({
    "privileged", "cap_add", "devices", "device_cgroup_rules", "network_mode", "pid", "ipc", "uts", "userns_mode",
    "security_opt", "sysctls", "group_add", "cgroup_parent", "cgroup", "volumes_from", "runtime", "gpus", "extra_hosts",
    "dns", "dns_search", "dns_opt", "external_links", "secrets", "configs", "env_file", "extends", "credential_spec",
    "use_api_socket", "isolation", "oom_kill_disable",
})  # fmt: skip
"""Keys that would reach this machine, weaken the container, or read more files."""
_UNUSED = frozenset({
    "container_name", "hostname", "domainname", "restart", "networks", "stdin_open", "tty", "init", "stop_signal",
    "stop_grace_period", "pull_policy", "labels", "annotations", "logging", "links", "cap_drop", "shm_size", "ulimits",
    "read_only", "mac_address", "oom_score_adj", "mem_swappiness", "memswap_limit", "mem_reservation", "scale",
    "attach", "develop", "cpu_shares", "platform",
})  # fmt: skip
_TOP = frozenset({"services", "volumes", "networks", "version", "name"})
_VARIABLE = re.compile(r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::?(-)([^}$]*))?\})")
_WHOLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
"""A value that consists of one variable and nothing else."""
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(h|ms|m|s|us|ns)")
_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PORT = re.compile(r"(?:(?:\[[0-9a-fA-F:]*\]|[0-9.]*):)?(?:[0-9-]*:)?([0-9]{1,5})(?:/(tcp|udp))?")
_SERVICE_START_S = 60.0
_COMPLETED = "service_completed_successfully"
_NAMES = {"working_dir": "workdir", "mem_limit": "memory"}
"""Keys of a Compose file whose fields in `Service` have other names."""


class ProjectServices(NamedTuple):
    """The services that a project runs beside a sandbox."""

    services: tuple[Service, ...]
    notes: tuple[str, ...] = ()
    """One line for each part of the file that has no meaning here."""


def project_services(
    told: str | Mapping[str, Any], directory: Path, root: Path, *, only: Sequence[str] = ()
) -> ProjectServices:
    """Return the services that a project's file in a directory describes.

    told: tables by name, or the path of a Compose file below root, relative to the directory; only: services of a
    Compose file to take, with those that they need.

    Raises:
        UsageError: a service is invalid, or the Compose file has what is not supported.
    """
    if isinstance(told, str):
        return services_of_compose(directory / told, root, only=only)
    return services_of_tables(told, directory, root)


def services_of_tables(tables: Mapping[str, Any], directory: Path, root: Path) -> ProjectServices:
    """Return the services of a project's file, given as a table from name to the other fields of `Service`.

    Raises:
        UsageError: a service is invalid, or a build lies outside of root; the message has its name.
    """
    found = []
    for name, told in tables.items():
        if not isinstance(told, dict):
            raise UsageError(f"service {name!r} is not a table. Give it an image.")
        own = dict(told)
        if "build" in own:
            own["build"] = str(path_below(str(own["build"]), directory, root, f"build of service {name!r}"))
        for key, reference in mapping_or_empty(own.get("secrets")).items():
            if not str(reference).startswith("env:"):
                raise UsageError(f"secret {key!r} of service {name!r} names no variable of yours. Write env:NAME.")
        try:
            found.append(Service(name, **own))
        except TypeError:
            raise UsageError(f"service {name!r} has a key 'name'. Leave it out.") from None
        except UsageError as error:
            raise UsageError(f"service {name!r}: {str(error).removeprefix('Service(...): ')}") from None
    return ProjectServices(check_services(found, network="none"))


def services_of_compose(path: Path, root: Path, *, only: Sequence[str] = ()) -> ProjectServices:
    """Return the services of a Compose file; only limits them to these and their dependencies.

    Nothing outside of root is read. Variables are not looked up: `${NAME:-default}` is its default, and a value of
    `environment` that is one variable, such as `${NAME}`, becomes a secret env:NAME.

    Raises:
        UsageError: it is not a Compose file, or asks for something that services may not have; each problem with its
            line.
    """
    with os.fdopen(open_regular(path, os.O_RDONLY, name="Compose file"), "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{str(path)!r} has over {MAX_FILE_BYTES} bytes. Shorten it.")
    try:
        read = parse_yaml(data.decode())
    except UnicodeDecodeError:
        raise UsageError(f"{str(path)!r} is not UTF-8. Correct it.") from None
    except InvalidYaml as error:
        raise UsageError(f"{str(path)!r}: {error}. Correct it.") from None
    return _ComposeReader(read, path, root).services(only)


class _ComposeReader:
    """Reads one file, and collects all problems in it."""

    def __init__(self, read: YamlFile, path: Path, root: Path) -> None:
        self._read, self._path, self._root = read, path, root
        self._faults: list[str] = []
        self._notes: list[str] = []
        self._once: set[str] = set()
        """Names of services that run once: others wait for them to end."""
        self._where: tuple[str, ...] = ()

    def services(self, only: Sequence[str]) -> ProjectServices:
        value = self._read.value
        tables = value.get("services") if isinstance(value, dict) else None
        if not isinstance(tables, dict) or not tables or not all(isinstance(one, dict) for one in tables.values()):
            raise UsageError(f"{str(self._path)!r} names no services. Name a Compose file.")
        for key in value.keys() - _TOP:
            if not str(key).startswith("x-"):
                self._refuse((str(key),), "is not taken")
        for name, told in mapping_or_empty(value.get("volumes")).items():
            if told:
                self._refuse(("volumes", str(name)), "has options, and a service's volumes are its own. Leave them out")
        wanted = self._wanted({str(name): told for name, told in tables.items()}, only)
        found = [self._service(name, told) for name, told in wanted.items()]
        if self._faults:
            raise UsageError(f"{str(self._path)!r} asks for what no service is given: {'; '.join(self._faults)}.")
        ended = {"run_once": True}
        found = [one.model_copy(update=ended) if one and one.name in self._once else one for one in found]
        services = check_services([one for one in found if one is not None], network="none")
        return ProjectServices(services, tuple(dict.fromkeys(self._notes)))

    def _wanted(self, tables: dict[str, dict[str, Any]], only: Sequence[str]) -> dict[str, dict[str, Any]]:
        if not only:
            left = [name for name, told in tables.items() if told.get("profiles")]
            self._notes += [f"service {name!r} is of a profile and not started" for name in left]
            return {name: told for name, told in tables.items() if name not in left}
        wanted, open_names = dict[str, dict[str, Any]](), [*only]
        while open_names:
            name = open_names.pop()
            if name not in tables:
                raise UsageError(f"{str(self._path)!r} has no service {name!r}.{did_you_mean(name, tables)}")
            if name not in wanted:
                wanted[name] = tables[name]
                open_names += [str(one) for one in tables[name].get("depends_on") or ()]
        return wanted

    def _service(self, name: str, told: dict[str, Any]) -> Service | None:
        self._where = ("services", name)
        before, found = len(self._faults), dict[str, Any]()
        for key, value in told.items():
            if value is not None:
                self._field(found, str(key), value)
        if len(self._faults) > before:
            return None
        if "build" in found:
            found.pop("image", None)  # the name is then that of the built image
        try:
            return Service(name, **found)
        except UsageError as error:
            self._refuse((), str(error).removeprefix("Service(...): ").rstrip("."))
        return None

    def _field(self, found: dict[str, Any], key: str, value: Any) -> None:
        match key:
            case "image" | "user" | "working_dir" | "mem_limit":
                found[_NAMES.get(key, key)] = self._text((key,), value)
            case "command" | "entrypoint":
                words = [self._text((key,), one) for one in value] if isinstance(value, list) else None
                found[key] = self._text((key,), value) if words is None else words
            case "cpus":
                found["cpus"] = self._number((key,), value)
            case "pids_limit":
                found["pids"] = int(self._number((key,), value))
            case "ports" | "expose":
                found["ports"] = sorted({*found.get("ports", ()), *self._ports(key, value)})
            case "volumes":
                paths = [self._volume(one) for one in value] if isinstance(value, list) else [self._volume(value)]
                found["volumes"] = [path for path in paths if path]
            case "environment" | "build" | "healthcheck" | "depends_on" | "deploy":
                self._table(found, key, value)
            case _:
                self._other(key, value)

    def _table(self, found: dict[str, Any], key: str, value: Any) -> None:
        match key:
            case "environment":
                self._environment(found, value)
            case "build":
                found["build"] = self._build(value)
            case "healthcheck":
                self._healthcheck(found, mapping_or_empty(value))
            case "deploy":
                self._deploy(found, mapping_or_empty(value))
            case _:
                found[key] = [str(one) for one in value] if isinstance(value, list | dict) else [str(value)]
                waits = mapping_or_empty(value).items()
                self._once |= {str(one) for one, how in waits if mapping_or_empty(how).get("condition") == _COMPLETED}

    def _other(self, key: str, value: Any) -> None:
        """Handle a key that `Service` has no field for: refuse it if it could reach anything, else note it."""
        if key == "profiles" or key.startswith("x-") or (value in NO and key in {"privileged", "oom_kill_disable"}):
            return
        if key in _UNUSED:
            self._notes.append(f"{'.'.join((*self._where, key))} has no meaning here")
        else:
            self._refuse((key,), "is given to no service" if key in _REACH else "is not known")

    def _environment(self, found: dict[str, Any], told: Any) -> None:
        pairs = told if isinstance(told, dict) else {}
        if isinstance(told, list):
            pairs = {name: value if sign else None for name, sign, value in (str(one).partition("=") for one in told)}
        env, secrets = dict[str, str](), dict[str, str]()
        for name, value in pairs.items():
            if type(name) is not str:
                self._refuse(("environment",), f"has a key {str(name)[:40]!r}, which is no text. Quote it")
            whole = _WHOLE.fullmatch(str(value))
            if value is None or whole:
                secrets[str(name)] = f"env:{whole[1] if whole else name}"
            else:
                env[str(name)] = self._text(("environment", str(name)), value)
        found |= {"env": env, "secrets": secrets}

    def _build(self, told: Any) -> Any:
        told = {"context": told} if isinstance(told, str) else mapping_or_empty(told)
        for key in told.keys() - {"context", "dockerfile", "args", "target"}:
            self._refuse(("build", str(key)), "is not taken")
        try:
            directory = self._path.parent
            context = path_below(self._text(("build",), told.get("context", ".")), directory, self._root, "build")
            dockerfile = self._text(("build",), told.get("dockerfile", "Dockerfile"))
            args = {
                str(name): self._text(("build", "args"), value)
                for name, value in mapping_or_empty(told.get("args")).items()
            }
            return resolved_build(Build(context, dockerfile, args, told.get("target")))
        except UsageError as error:
            self._refuse(("build",), str(error).rstrip("."))
        return None

    def _ports(self, key: str, told: Any) -> list[int]:
        found = []
        for one in told if isinstance(told, list) else [told]:
            text = str(one.get("target")) if isinstance(one, dict) else self._text((key,), one)
            match = _PORT.fullmatch(text)
            if match is None:
                self._refuse((key,), f"{text[:40]!r} is not a port")
            elif match[2] != "udp":
                found.append(int(match[1]))
        if key == "ports":
            self._notes.append(
                f"{'.'.join((*self._where, key))}: no port of this machine is opened (`/forward` shows one)"
            )
        return found

    def _healthcheck(self, found: dict[str, Any], told: dict[str, Any]) -> None:
        for key in told.keys() - {
            "test",
            "interval",
            "timeout",
            "retries",
            "start_period",
            "start_interval",
            "disable",
        }:
            self._refuse(("healthcheck", str(key)), "is not known")
        test = told.get("test")
        if told.get("disable") in YES:
            found["healthcheck"] = ()
        elif isinstance(test, str):
            found["healthcheck"] = self._text(("healthcheck",), test)
        elif isinstance(test, list):
            found["healthcheck"] = [self._text(("healthcheck",), one) for one in test]
        spans = [
            self._seconds(key, told.get(key, default)) for key, default in (("start_period", "0s"), ("interval", "30s"))
        ]
        retries = self._number(("healthcheck", "retries"), told.get("retries", 3))
        found["start_timeout_s"] = max(_SERVICE_START_S, spans[0] + spans[1] * retries)

    def _seconds(self, key: str, value: Any) -> float:
        text = str(value)
        parts = _SPAN.findall(text)
        if "".join(number + unit for number, unit in parts) != text or not parts:
            self._refuse(("healthcheck", key), f"{text[:40]!r} is not a time such as 10s or 1m30s")
        return sum(float(number) * _UNITS_S[unit] for number, unit in parts)

    def _volume(self, told: Any) -> str | None:
        """Return the path of a volume of the service's own; refuse a directory of the host."""
        if isinstance(told, dict):
            if told.get("type") == "volume" and not told.keys() - {"type", "source", "target"}:
                return self._text(("volumes",), told.get("target"))
        elif isinstance(told, str):
            first, colon, rest = told.partition(":")
            if not colon and first.startswith("/"):
                return first
            path = rest.removesuffix(":rw")
            if colon and first and not first.startswith((".", "/", "~", "$")) and path[:1] == "/" and ":" not in path:
                return self._text(("volumes",), path)
        self._refuse(("volumes",), f"{str(told)[:60]!r} is a directory of this machine, or no volume that is known")
        return None

    def _deploy(self, found: dict[str, Any], told: dict[str, Any]) -> None:
        resources = mapping_or_empty(told.get("resources"))
        for key, value in mapping_or_empty(resources.get("limits")).items():
            match key:
                case "cpus":
                    found["cpus"] = self._number(("deploy",), value)
                case "memory":
                    found["memory"] = self._text(("deploy",), value)
                case "pids":
                    found["pids"] = int(self._number(("deploy",), value))
                case _:
                    self._refuse(("deploy", "resources", "limits", str(key)), "is not known")
        if mapping_or_empty(resources.get("reservations")).get("devices"):
            self._refuse(("deploy", "resources", "reservations"), "asks for devices")
        if other := sorted(map(str, told.keys() - {"resources"})):
            self._notes.append(f"{'.'.join((*self._where, 'deploy'))}: {', '.join(other)} have no meaning here")

    def _number(self, where: tuple[str, ...], value: Any) -> float:
        if (number := amount(value)) is None:
            self._refuse(where, f"{str(value)[:40]!r} is not a number")
        return number or 0.0

    def _text(self, where: tuple[str, ...], value: Any) -> str:
        """Return the value as text, with the defaults of variables substituted."""
        if not isinstance(value, str | int | float):
            self._refuse(where, f"{str(value)[:60]!r} is not text")
            return ""

        def variable(found: re.Match[str]) -> str:
            if found[1]:
                return "$"
            if found[4] is None:
                self._refuse(where, f"${{{found[2] or found[3]}}} has no default. Write ${{NAME:-default}}")
            return found[5] or ""

        return _VARIABLE.sub(variable, text_of(value))

    def _refuse(self, where: tuple[str, ...], message: str) -> None:
        place = (*self._where, *where)
        self._faults.append(f"line {self._read.line(place)}: {'.'.join(place)} {message}")
