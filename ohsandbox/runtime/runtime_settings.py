"""The settings of a sandbox, whatever its backend, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_BACKEND = "docker"
HOST_BACKEND: Final = "cli"
"""The backend that works on this machine, without isolation; a person may choose it where no engine answers."""
DEFAULT_IMAGE = "python:3.12"
"""The default image: most tasks are Python or need it; any image with a POSIX `sh` works."""


NetworkMode = Literal["none", "allowlist", "open"]
"""none; allowlist: only named hosts, over HTTP and HTTPS, through the connector and our proxy; open: the internet."""
DEFAULT_ALLOW = ("packages",)
"""Default allowlist of commands: the package registries of the person's own configuration."""

NETWORK_OPTIONS = ("network", "allow", "credential")
RESOURCE_LIMITS = {"memory": "memory_bytes", "cpus": "cpus", "pids": "pids", "disk": "disk_bytes"}
"""Limits of a container that is created: the fields here, and those of `runtime.docker.SandboxLimits`."""


@dataclass(frozen=True, kw_only=True)
class ContainerOptions:
    """Options of a container that is created, beside its limits.

    A field here reaches the argument of the same name of `DockerRuntime` from `SandboxOptions` (its flag) and from
    `Settings`, where they have a field of the same name.
    """

    cache: str | None = None
    """"project" or a name: package tools keep their downloads for other sandboxes; see `DockerRuntime`."""
    platform: str | None = None
    """The platform of the image: os/architecture."""
    gpus: int | str | None = None
    """A number, also as a text, or "all"."""
    oci_runtime: str | None = None
    """An OCI runtime of the engine, such as runsc."""
    profile: Literal["strict", "trusted"] | None = None
    """How strict the sandbox is; see `DockerRuntime`."""
    accept_unenforced: bool = False
    """Whether to accept an engine or OCI runtime that does not enforce the limits; `Runtime.describe` names them."""


CONTAINER_OPTIONS = tuple(option.name for option in fields(ContainerOptions))


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings(ContainerOptions):
    """What a sandbox is created from, whatever the backend. A backend ignores no option: see `BackendInfo.options`."""

    runtime: str = DEFAULT_BACKEND
    """The name of a backend, as in `--runtime`."""
    image: str = DEFAULT_IMAGE
    build: str | Path | None = None
    """A directory with a Dockerfile, to use instead of image."""
    build_options: Mapping[str, Any] | None = None
    """Fields of `Build` other than its context."""
    workspace: str | Path | None = None
    """A directory of this machine to work in."""
    workspaces: tuple[str, ...] = ()
    """Several workspaces, each `DIR[:ro]`, to use instead of workspace; commands start in the first."""
    same_path: bool = False
    """Whether workspaces have the same paths in the sandbox as on this machine."""
    mount: tuple[str, ...] = ()
    """More files of this machine to bind, each `SOURCE:TARGET[:ro]`."""
    host_workdir: str | Path | None = None
    """The directory where a backend that runs on this machine starts commands without a workspace; None:
    the current one.
    """
    git: Literal["guarded", "ro", "rw"] = "guarded"
    copy: bool | Literal["all"] = False
    """Whether to work on a copy of the workspace; "all" includes ignored files and secrets."""
    network: NetworkMode = "none"
    allow: tuple[str, ...] = ()
    """The allowlist's rules, as `--allow` takes them; with the open network, the private addresses that
    stay reachable."""
    credential: tuple[str, ...] = ()
    """Keys that stay outside the sandbox, as `--credential` takes them."""
    keep: bool = False
    attach: str | None = None
    """The name of a running sandbox to join."""
    ca_bundle: str | Path | None = None
    memory: int | None = None
    """Limit of memory and swap together, in bytes; for this and the next three, None is the backend's default."""
    cpus: float | None = None
    pids: int | None = None
    """Limit of processes and threads."""
    disk: int | None = None
    """Limit, in bytes, of the growth of the root file system."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of every process."""
    user: str | None = None
    """Name or id of the user of every process."""
    conversation: str | None = None
    checkpoint: str | None = None
    """The id of a checkpoint to begin with."""
    services: tuple[Mapping[str, Any], ...] = ()
    """The services beside the sandbox, each by the fields of `Service`."""
    setup_key: str | None = None
    """A key of everything else that a setup depends on; for a backend that keeps checkpoints."""
