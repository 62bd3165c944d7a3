"""The one place that knows every backend by its name: a `Runtime` from settings, and the `Inventory` of a backend.

A new backend is one entry in `BACKENDS`; nothing else asks which backend a runtime has. See docs/adding-a-backend.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.runtime.mount_text import parse_mount, parse_path
from ohsandbox.runtime.results import PullProgress

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.inventory import Inventory

Progress = Callable[[PullProgress], None]
"""Called while an image is downloaded."""

DEFAULT_BACKEND = "docker"
DEFAULT_IMAGE = "python:3.12"
"""Most tasks are Python or need it; any image with a POSIX `sh` serves."""


NetworkMode = Literal["none", "allowlist", "open"]
"""Nothing; named hosts alone, by name, over HTTP and HTTPS; the internet."""
DEFAULT_ALLOW = ("packages",)
"""Of the commands, where nobody said what to allow: the package registries of the person's own configuration."""

NETWORK_OPTIONS = ("network", "allow", "credential")

CONTAINER_OPTIONS = ("cache", "platform", "gpus", "oci_runtime", "profile", "accept_unenforced")
"""Of a container that is created, beside its limits."""
RESOURCE_LIMITS = {"memory": "memory_bytes", "cpus": "cpus", "pids": "pids", "disk": "disk_bytes"}
"""Bounds of a container that is created: the fields here, and those of `runtime.docker.SandboxLimits`."""


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings:
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
    accept_unenforced: bool = False
    """Accept an engine or OCI runtime that does not enforce the limits; `Runtime.describe` names them."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of every process."""
    user: str | None = None
    """Name or id of the user of every process."""
    cache: str | None = None
    """"project" or a name: package tools keep their downloads for other sandboxes; see `DockerRuntime`."""
    platform: str | None = None
    """Of the image: os/architecture."""
    gpus: int | Literal["all"] | None = None
    oci_runtime: str | None = None
    """An OCI runtime of the engine, such as runsc."""
    profile: Literal["strict", "trusted"] | None = None
    """More or less strict than usual; see `DockerRuntime`."""
    conversation: str | None = None
    checkpoint: str | None = None
    """The id of a checkpoint to begin with."""
    services: tuple[Mapping[str, Any], ...] = ()
    """What runs beside the sandbox, each by the fields of `Service`."""
    setup_key: str | None = None
    """What a setup depends on beside all this; of a backend that keeps checkpoints."""


class BackendInfo(NamedTuple):
    """What a backend is, without making a sandbox."""

    create: Callable[[RuntimeSettings, Progress | None], Runtime]
    """Make the runtime, not started. Raises UsageError for settings that it cannot meet."""
    isolated: bool
    """Commands reach no files of this machine but a bound workspace."""
    options: frozenset[str] = frozenset()
    """Fields of `RuntimeSettings` that it supports beside `workspace`."""
    users: bool = True
    """Commands can run as another user."""
    open_inventory: Callable[[], Inventory] | None = None
    """None: it stores nothing beyond the life of a process."""


def _build(settings: RuntimeSettings) -> Any:
    from ohsandbox.runtime.docker.build import Build  # noqa: PLC0415 - only who uses docker imports it

    options = settings.build_options
    return Build(settings.build, **options) if settings.build is not None and options else settings.build


def _create_docker(settings: RuntimeSettings, progress: Progress | None) -> Runtime:
    from ohsandbox.runtime.docker import DockerRuntime, SandboxLimits, Service  # noqa: PLC0415 - only who uses docker imports it

    asked = {limit: getattr(settings, name) for name, limit in RESOURCE_LIMITS.items()}
    limits: dict[str, Any] = {limit: value for limit, value in asked.items() if value is not None}
    if settings.accept_unenforced:
        limits["enforced"] = False
    joins = settings.attach is not None
    return DockerRuntime(
        None if joins or settings.build else settings.image,
        workspace=settings.workspaces or settings.workspace,
        same_path=settings.same_path,
        mounts=settings.mount,
        git=settings.git if _is_mapped(settings) else None,
        copy=settings.copy,
        network=None if joins else settings.network,
        allow=settings.allow,
        credentials=settings.credential,
        keep=settings.keep or None,
        attach=settings.attach,
        ca_bundle=settings.ca_bundle,
        conversation=settings.conversation,
        checkpoint=settings.checkpoint,
        limits=SandboxLimits(**limits) if limits else None,
        build=_build(settings),
        services=() if joins else [Service(**one) for one in settings.services],
        env=settings.env,
        user=settings.user,
        cache=None if settings.cache == "none" else settings.cache,
        platform=settings.platform,
        gpus=settings.gpus,
        runtime=settings.oci_runtime or "",
        profile=settings.profile,
        setup_key=settings.setup_key,
        progress=progress,
    )


def container_of(image: str | None, options: Mapping[str, Any]) -> Runtime:
    """A `DockerRuntime` with these arguments, not started. Raises as its constructor."""
    from ohsandbox.runtime.docker import DockerRuntime  # noqa: PLC0415 - as above

    return DockerRuntime(image, **options)


def _is_mapped(settings: RuntimeSettings) -> bool:
    """Whether something of this machine can be written."""
    directories = settings.workspaces or ((str(settings.workspace),) if settings.workspace else ())
    named = [*(parse_mount(one) for one in settings.mount)]
    writable = [] if settings.copy else [one for one in map(parse_path, directories) if not one.read_only]
    return bool(writable) or not all(one.read_only for one in named)


def _open_docker_inventory() -> Inventory:
    from ohsandbox.runtime.docker.inventory import DockerInventory  # noqa: PLC0415 - as above

    return DockerInventory()


def _create_local(settings: RuntimeSettings, _progress: Progress | None) -> Runtime:
    from ohsandbox.runtime.local import CLIRuntime  # noqa: PLC0415 - as above

    if len(settings.workspaces) > 1:
        raise UsageError("--runtime cli works in one workspace. Remedy: name one, or use --runtime docker.")
    return CLIRuntime(settings.workspace or settings.host_workdir, watch=settings.workspace is not None)


BACKENDS: dict[str, BackendInfo] = {
    "docker": BackendInfo(
        _create_docker,
        isolated=True,
        options=frozenset(
            {
                *("image", "build", "build_options", "git", "keep", "attach", "ca_bundle", "copy"),
                *("env", "user", "services", "same_path", "mount"),
                *NETWORK_OPTIONS,
                *RESOURCE_LIMITS,
                *CONTAINER_OPTIONS,
            }
        ),
        open_inventory=_open_docker_inventory,
    ),
    "cli": BackendInfo(_create_local, isolated=False, users=False),
}


def backend_info(name: str | None) -> BackendInfo:
    """The backend of that name; None is the default one.

    Raises:
        UsageError: there is no such backend.
    """
    found = BACKENDS.get(name or DEFAULT_BACKEND)
    if found is None:
        raise UsageError(f"Unknown runtime {name!r}. Choose one of: {', '.join(BACKENDS)}.")
    return found


def runtime_from(settings: RuntimeSettings, *, progress: Progress | None = None) -> Runtime:
    """The runtime that the settings describe, not started. No engine is contacted.

    Raises:
        UsageError: an image name, directory or combination that the backend refuses, or an unknown backend.
    """
    return backend_info(settings.runtime).create(settings, progress)


def project_services(
    told: str | Mapping[str, Any], *, directory: Path, root: Path, only: Sequence[str] = ()
) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """The services of a project's file, by the fields of `Service`, and what of a Compose file has no meaning here.

    told: tables by name, or the path of a Compose file below root; only: of a Compose file these and what they need.

    Raises:
        UsageError: a service is wrong, or the file asks for what no service is given.
    """
    from ohsandbox.runtime.docker import compose_file  # noqa: PLC0415 - only who has services imports it

    if isinstance(told, str):
        found = compose_file.services_of_compose(directory / told, root, only=only)
    else:
        found = compose_file.services_of_tables(told, directory, root)
    dumped = (one.model_dump(mode="json", exclude_defaults=True) for one in found.services)
    return tuple(dumped), found.notes


def engine_elsewhere(name: str | None) -> str | None:
    """The address of the backend's engine where that is on another machine; else None. It is not contacted.

    Raises:
        UsageError: the address is malformed, or its context does not exist.
    """
    if (name or DEFAULT_BACKEND) != "docker":
        return None
    from ohsandbox.runtime.docker.engine import find  # noqa: PLC0415 - only who uses docker imports it

    address = find(os.environ)
    return None if address.is_local else address.url


def build_digest(directory: Any) -> str:
    """The hash of all files that a build of the directory's Dockerfile, or of a `Build`, is sent.

    Raises:
        UsageError: there is no Dockerfile, or the files cannot be a build's.
        OSError: one cannot be read.
    """
    from ohsandbox.runtime.docker.build import (  # noqa: PLC0415 - only who uses docker imports it
        Build,
        checked,
        digest_to_trust,
    )

    if isinstance(directory, list):
        build = Build(*directory)
    else:
        build = Build(**directory) if isinstance(directory, dict) else directory
    return digest_to_trust(checked(build))


def check_mount(text: str) -> None:
    """Vet a mount as a sandbox does.

    Raises:
        UsageError: it is none, or what it names must not be bound.
    """
    from ohsandbox.runtime.docker.mounts import Mount, vetted  # noqa: PLC0415 - only who uses docker imports it

    vetted([], [Mount.parse(text)])


def open_inventory(name: str | None = None) -> Inventory:
    """What a backend (None: the default one) stores; close it after use.

    Raises:
        UsageError: there is no such backend, or it stores nothing.
        EngineUnavailable: no engine answers.
    """
    opener = backend_info(name).open_inventory
    if opener is None:
        raise UsageError(f"Runtime {name!r} stores no sandboxes. Use --runtime docker.")
    return opener()
