"""What a sandbox is created from, whatever its backend, and the defaults of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_BACKEND = "docker"
DEFAULT_IMAGE = "python:3.12"
"""Most tasks are Python or need it; any image with a POSIX `sh` serves."""


NetworkMode = Literal["none", "allowlist", "open"]
"""Nothing; named hosts alone, by name, over HTTP and HTTPS, through the connector and our proxy; the internet."""
DEFAULT_ALLOW = ("packages",)
"""Of the commands, where nobody said what to allow: the package registries of the person's own configuration."""

NETWORK_OPTIONS = ("network", "allow", "credential")
RESOURCE_LIMITS = {"memory": "memory_bytes", "cpus": "cpus", "pids": "pids", "disk": "disk_bytes"}
"""Bounds of a container that is created: the fields here, and those of `runtime.docker.SandboxLimits`."""


@dataclass(frozen=True, kw_only=True)
class ContainerOptions:
    """Options of a container that is created, beside its limits.

    A field here reaches the argument of the same name of `DockerRuntime` from `SandboxOptions` (its flag) and from
    `Settings`, where they have a field of the same name.
    """

    cache: str | None = None
    """"project" or a name: package tools keep their downloads for other sandboxes; see `DockerRuntime`."""
    platform: str | None = None
    """Of the image: os/architecture."""
    gpus: int | str | None = None
    """A number, also as a text, or "all"."""
    oci_runtime: str | None = None
    """An OCI runtime of the engine, such as runsc."""
    profile: Literal["strict", "trusted"] | None = None
    """More or less strict than usual; see `DockerRuntime`."""
    accept_unenforced: bool = False
    """Accept an engine or OCI runtime that does not enforce the limits; `Runtime.describe` names them."""


CONTAINER_OPTIONS = tuple(option.name for option in fields(ContainerOptions))


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings(ContainerOptions):
    """What a sandbox is created from, whatever the backend. A backend ignores no option: see `BackendInfo.options`."""

    runtime: str = DEFAULT_BACKEND
    """The name of a backend, as in `--runtime`."""
    image: str = DEFAULT_IMAGE
    build: str | Path | None = None
    """A directory with a Dockerfile, in the place of image."""
    build_options: Mapping[str, Any] | None = None
    """Fields of `Build` beside its context."""
    workspace: str | Path | None = None
    """A directory of this machine to work in."""
    workspaces: tuple[str, ...] = ()
    """Several, each `DIR[:ro]`, in the place of workspace; the first is where commands start."""
    same_path: bool = False
    """Workspaces lie in the sandbox where they lie on this machine."""
    mount: tuple[str, ...] = ()
    """More of this machine's files, each `SOURCE:TARGET[:ro]`."""
    host_workdir: str | Path | None = None
    """Where a backend that runs on this machine starts commands without a workspace; None: the current directory."""
    git: Literal["guarded", "ro", "rw"] = "guarded"
    copy: bool | Literal["all"] = False
    """Work on a copy of the workspace; "all" includes ignored files and secrets."""
    network: NetworkMode = "none"
    allow: tuple[str, ...] = ()
    """With the allowlist: the rules, as `--allow` takes them. With the open network: what of the private ranges is not
    closed."""
    credential: tuple[str, ...] = ()
    """Keys that stay outside, as `--credential` takes them."""
    keep: bool = False
    attach: str | None = None
    """The name of a running sandbox to join."""
    ca_bundle: str | Path | None = None
    memory: int | None = None
    """Bytes of memory and swap together; for this and the next three, None is the backend's default."""
    cpus: float | None = None
    pids: int | None = None
    """Processes and threads."""
    disk: int | None = None
    """Bytes by which the root file system may grow."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of every process."""
    user: str | None = None
    """Name or id of the user of every process."""
    conversation: str | None = None
    checkpoint: str | None = None
    """The id of a checkpoint to begin with."""
    services: tuple[Mapping[str, Any], ...] = ()
    """What runs beside the sandbox, each by the fields of `Service`."""
    setup_key: str | None = None
    """What a setup depends on beside all this; of a backend that keeps checkpoints."""
