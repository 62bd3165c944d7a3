"""`Service`: a container beside a sandbox, as the caller describes it; validated without an engine."""

from __future__ import annotations

import os
import re
import shlex
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from ohsandbox.arguments import ConfigModel
from ohsandbox.errors import UsageError
from ohsandbox.runtime.build_options import Build
from ohsandbox.runtime.build_options import resolved_build as checked_build
from ohsandbox.runtime.port_numbers import PROXY_PORT
from ohsandbox.runtime.process.invocation import check_call
from ohsandbox.secrets import check_name, check_reference
from ohsandbox.text import byte_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.runtime.runtime_settings import NetworkMode

_MIB, _GIB = 2**20, 2**30
_MAX_SERVICES = 16
"""Maximum number of services: each is a container with its own limits, and a project with more runs its own engine."""
MAX_START_S = 3600.0
MAX_COMMAND_CHARS = 64 * 1024
"""Longest command that is split into words: shlex takes time quadratic in a word."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?")
"""A host name without dots, so that no service takes the name of a host elsewhere."""
_TAKEN = frozenset({"localhost", "sandbox", "network", "ip6-localhost", "ip6-loopback"})
"""Names that every sandbox has, and the suffix of the container that owns the network."""
_PORTS = range(1, 65536)


def _words(value: object) -> object:
    """Split a text into words as a shell does."""
    if not isinstance(value, str):
        return value
    if len(value) > MAX_COMMAND_CHARS:
        raise ValueError(f"is longer than {MAX_COMMAND_CHARS:,} characters")
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ValueError(f"a quotation is not closed ({error})") from None


def _check_words(value: object) -> object:
    """Turn a text into a command for /bin/sh, as in a Dockerfile's HEALTHCHECK."""
    return ("/bin/sh", "-c", value) if isinstance(value, str) else value


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str | int) and not isinstance(value, bool) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


class Service(ConfigModel):
    """A container beside the sandbox, such as a database: `Service("db", image="postgres:17")`.

    It shares the sandbox's network: the sandbox reaches it at 127.0.0.1 and by its name, and nothing else can reach it.
    """

    name: str
    """Lower-case letters, digits, '-' and '_': a host name in the sandbox and in the other services."""
    image: str | None = None
    build: Build | None = None
    """A directory with a Dockerfile, or the Dockerfile, instead of image."""
    command: Words | None = None
    """Command instead of the image's CMD. A text is split into words as a shell does."""
    entrypoint: Words | None = None
    """Entry point instead of the image's ENTRYPOINT; the image's CMD is then ignored."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables, in addition to the image's."""
    secrets: dict[str, str] = Field(default_factory=dict)
    """More variables, by the location of their value: "env:NAME", "file:PATH". Values are stored only in the
    container.
    """
    user: str | None = None
    """User of its processes. Default: the image's."""
    workdir: str | None = None
    """Working directory. Default: the image's."""
    ports: Annotated[tuple[int, ...], BeforeValidator(_one_or_more)] | None = None
    """The TCP ports that it listens on. Default: those that the image exposes."""
    healthcheck: Annotated[tuple[str, ...], BeforeValidator(_check_words)] | None = None
    """A command that succeeds in the container once the service is ready; a text is run by /bin/sh. () means none.
    Default: the image's own; without one the service is ready when it listens on its ports.
    """
    run_once: bool = False
    """Whether the service performs a task and ends; it is ready once it has ended with exit code 0."""
    start_timeout_s: float = Field(default=60.0, gt=0, le=MAX_START_S)
    """Maximum time in seconds until it is ready."""
    depends_on: Annotated[tuple[str, ...], BeforeValidator(_one_or_more)] = ()
    """Names of services that must be ready before this one starts."""
    volumes: Annotated[tuple[str, ...], BeforeValidator(_one_or_more)] = ()
    """Directories in the container that get volumes of their own in the engine, removed with the sandbox."""
    memory: int = Field(default=_GIB, ge=32 * _MIB)
    """Memory in bytes, swap included, or a text such as "512m"."""
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Number of processors. None: as in `SandboxLimits`."""
    pids: int = Field(default=512, ge=16)
    """Maximum number of processes and threads."""

    by_position = ("name",)

    if TYPE_CHECKING:

        def __init__(
            self, name: str, *, image: str | None = ..., build: Build | str | os.PathLike[str] | None = ...,
            command: str | Sequence[str] | None = ..., entrypoint: str | Sequence[str] | None = ...,
            env: Mapping[str, str] = ..., secrets: Mapping[str, str] = ..., user: str | None = ...,
            workdir: str | None = ..., ports: int | Sequence[int] | None = ...,
            healthcheck: str | Sequence[str] | None = ..., run_once: bool = ..., start_timeout_s: float = ...,
            depends_on: str | Sequence[str] = ..., volumes: str | Sequence[str] = ..., memory: int | str = ...,
            cpus: float | None = ..., pids: int = ...,
        ) -> None: ...  # fmt: skip

    @field_validator("name")
    @classmethod
    def _is_host_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or name in _TAKEN:
            raise ValueError(
                f"{name[:80]!r} is not a service name: use lower-case letters, digits, '-' and '_', at most 63, and "
                f"none of the reserved names {', '.join(sorted(_TAKEN))}"
            )
        return name

    @field_validator("memory", mode="before")
    @classmethod
    def _bytes(cls, value: object) -> object:
        return byte_size(value) if isinstance(value, str) else value

    @field_validator("build", mode="before")
    @classmethod
    def _build(cls, value: Any) -> object:
        return checked_build(value) if isinstance(value, str | os.PathLike | Build) else value

    @field_validator("env")
    @classmethod
    def _variables(cls, env: dict[str, str]) -> dict[str, str]:
        check_call(env=env)
        return env

    @field_validator("secrets")
    @classmethod
    def _references(cls, secrets: dict[str, str]) -> dict[str, str]:
        return {check_name(name): check_reference(name, reference) for name, reference in secrets.items()}

    @field_validator("ports")
    @classmethod
    def _are_ports(cls, ports: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if ports is not None and (wrong := [port for port in ports if port not in _PORTS]):
            raise ValueError(f"{wrong[0]} is not a port")
        return ports

    @field_validator("command", "entrypoint", "healthcheck")
    @classmethod
    def _has_no_nul(cls, words: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if any("\0" in word for word in words or ()):
            raise ValueError("a word holds a NUL")
        return words

    @field_validator("workdir")
    @classmethod
    def _is_absolute(cls, workdir: str | None) -> str | None:
        if workdir is not None and not workdir.startswith("/"):
            raise ValueError(f"{workdir[:80]!r} is not an absolute path")
        return workdir

    @field_validator("volumes")
    @classmethod
    def _are_directories(cls, volumes: tuple[str, ...]) -> tuple[str, ...]:
        for path in volumes:
            if not path.startswith("/") or path[1:2] == "/" or path != os.path.normpath(path) or {*path} & {":", "\0"}:
                raise ValueError(
                    f"{path[:80]!r} is not an absolute path of the service; directories of the host are not bound"
                )
            if path == "/" or path.split("/")[1] in {"proc", "sys", "dev"}:
                raise ValueError(f"{path!r} cannot be a volume")
        return volumes

    @model_validator(mode="after")
    def _has_one_image(self) -> Service:
        if (self.image is None) == (self.build is None):
            raise ValueError(f"service {self.name!r} needs an image or a build, and not both")
        if both := self.env.keys() & self.secrets.keys():
            raise ValueError(f"service {self.name!r} has {min(both)!r} in env and in secrets")
        return self


def check_services(services: Sequence[Service], *, network: NetworkMode) -> tuple[Service, ...]:
    """Return the services in the order in which they start.

    Raises:
        UsageError: two services have the same name or port, services depend on each other, or a port is the proxy's.
    """
    if len(services) > _MAX_SERVICES:
        raise UsageError(f"{len(services)} services are too many. Give at most {_MAX_SERVICES}.")
    by_name = {service.name: service for service in services}
    if len(by_name) < len(services):
        names = [service.name for service in services]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"Two services are called {twice!r}. Rename one.")
    for service in services:
        for other in service.depends_on:
            if other not in by_name:
                raise UsageError(f"Service {service.name!r} depends on {other!r}, which is missing. Add it.")
    check_ports({service.name: service.ports or () for service in services}, network=network)
    try:
        order = TopologicalSorter({service.name: service.depends_on for service in services}).static_order()
        return tuple(by_name[name] for name in order)
    except CycleError as error:
        shown = ", ".join(map(str, error.args[1]))
        raise UsageError(f"Services wait for each other: {shown}. Leave out one depends_on.") from None


def check_ports(ports: dict[str, tuple[int, ...]], *, network: NetworkMode) -> None:
    """Refuse a port that two services have: the sandbox and its services share one loopback interface.

    Raises:
        UsageError: a port occurs twice; the message has the port and both names.
    """
    used: dict[int, str] = {PROXY_PORT: "the proxy of the allowlist"} if network == "allowlist" else {}
    for name, own in ports.items():
        for port in dict.fromkeys(own):
            if port in used:
                raise UsageError(
                    f"Service {name!r} and {used[port]} both use port {port}, and a sandbox shares 127.0.0.1 with its "
                    f"services. Have one listen elsewhere, and say so with ports= ({name!r})."
                )
            used[port] = f"service {name!r}"
