"""The settings of a sandbox, independent of the backend, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, Literal

from ohsandbox.limit_ranges import RESOURCE_LIMITS, ContainerLimits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ohsandbox.runtime.build_options import Build
    from ohsandbox.runtime.service_options import Service

DEFAULT_BACKEND = "docker"
HOST_BACKEND: Final = "cli"
"""The backend that works on this machine, without isolation; a person may choose it where no engine answers."""
DEFAULT_IMAGE = "python:3.12"
"""The default image: most tasks are Python or need it. Any image with a POSIX `sh` works."""


NetworkMode = Literal["none", "allowlist", "open"]
"""allowlist: only named hosts, by HTTP and HTTPS, through the connector and the proxy; open: the internet."""
DEFAULT_ALLOW = ("packages",)
"""Default allowlist of commands: the package registries in the user's own configuration."""

NETWORK_OPTIONS = ("network", "allow", "credential")


@dataclass(frozen=True, kw_only=True)
class ContainerOptions(ContainerLimits):
    """Options of a new container, its limits among them: fields of `SandboxOptions` (flags) and `Settings` by name."""

    cache: str | None = None
    """`project` or a name: package tools keep their downloads for other sandboxes; see `DockerRuntime`."""
    platform: str | None = None
    """Platform of the image: os/architecture."""
    gpus: int | str | None = None
    """A number, also as text, or "all"."""
    oci_runtime: str | None = None
    """An OCI runtime of the engine, such as runsc."""
    profile: Literal["strict", "trusted"] | None = None
    """How strict the sandbox is; see `DockerRuntime`."""
    hard_links: Literal["separate", "keep"] | None = None
    """What is done about files of bound directories that have names outside; see `DockerRuntime`."""
    accept_unenforced: bool = False
    """Whether to accept an engine or OCI runtime that does not enforce the limits; `Runtime.describe` names them."""

    @classmethod
    def of(cls, source: object) -> ContainerOptions:
        """Return the options that a source, `SandboxOptions` or `Settings`, has in fields of the same names."""
        given = vars(source)
        return cls(**{one.name: given[one.name] for one in fields(cls) if given.get(one.name) is not None})


CONTAINER_OPTIONS = tuple(option.name for option in fields(ContainerOptions) if option.name not in RESOURCE_LIMITS)


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings:
    """The settings for a new sandbox of any backend, which must not ignore any: see `BackendInfo.options`."""

    runtime: str = DEFAULT_BACKEND
    """Name of a backend, as in `--runtime`."""
    image: str = DEFAULT_IMAGE
    build: Build | Path | None = None
    """A directory with a Dockerfile, or the whole build; replaces image."""
    workspace: str | Path | None = None
    """A directory of this machine to work in."""
    workspaces: tuple[str, ...] = ()
    """Several workspaces, each `DIR[:ro]`, instead of workspace; commands start in the first."""
    same_path: bool = False
    """Whether workspaces have the same paths in the sandbox as on this machine."""
    mount: tuple[str, ...] = ()
    """Other files of this machine to bind, each `SOURCE:TARGET[:ro]`."""
    host_workdir: str | Path | None = None
    """For a backend that runs on this machine: where commands start without a workspace; None is the current directory.
    """
    git: Literal["guarded", "ro", "rw"] = "guarded"
    copy: bool | Literal["all"] = False
    """Whether to work on a copy of the workspace; "all" includes ignored files and secrets."""
    network: NetworkMode = "none"
    allow: tuple[str, ...] = ()
    """Rules of the allowlist, as in `--allow`; with network open, private addresses that stay reachable."""
    credential: tuple[str, ...] = ()
    """Keys that stay outside of the sandbox, as in `--credential`."""
    keep: bool = False
    attach: str | None = None
    """The name of a running sandbox to join."""
    ca_bundle: str | Path | None = None
    container: ContainerOptions = ContainerOptions()
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of all processes."""
    user: str | None = None
    """Name or id of the user of all processes."""
    conversation: str | None = None
    checkpoint: str | None = None
    """Id of a checkpoint to start with."""
    services: tuple[Service, ...] = ()
    """Services beside the sandbox."""
    setup_key: str | None = None
    """Key of everything else on which a setup depends, for a backend that keeps checkpoints."""
