"""Creates a `Runtime` from settings, and a backend's `Inventory`; the only module that knows all backends by name.

A new backend is one entry in `BACKENDS`; nothing else asks which backend a runtime has. See docs/adding-a-backend.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.limit_ranges import RESOURCE_LIMITS
from ohsandbox.runtime.build_options import resolved_build
from ohsandbox.runtime.mount_text import Mount, parse_path
from ohsandbox.runtime.results import PullProgress
from ohsandbox.runtime.runtime_settings import (
    CONTAINER_OPTIONS,
    DEFAULT_BACKEND,
    HOST_BACKEND,
    NETWORK_OPTIONS,
    ContainerOptions,
    RuntimeSettings,
)

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.build_options import Build
    from ohsandbox.runtime.docker import SandboxLimits
    from ohsandbox.runtime.inventory import Inventory

Progress = Callable[[PullProgress], None]
"""Called while an image is downloaded."""


class BackendInfo(NamedTuple):
    """A backend's properties, known without a sandbox."""

    create: Callable[[RuntimeSettings, Progress | None], Runtime]
    """Makes a runtime, not started; raises UsageError for settings that it does not support."""
    isolated: bool
    """Whether commands cannot reach files of the machine on which they run, except bound directories."""
    machine: str = ""
    """If not isolated: what commands run on, for a person, before there is a runtime to ask (`Backend.machine`)."""
    options: frozenset[str] = frozenset()
    """The fields of `RuntimeSettings` and `ContainerOptions` that a flag names and it supports."""
    users: bool = True
    """Whether commands can run as another user."""
    engine_elsewhere: Callable[[], str | None] = lambda: None
    """Returns the address of the engine that makes the sandboxes if it is on another machine, so that nothing of this
    one can be bound; else None. The engine is not contacted. Raises UsageError for a malformed address or an unknown
    context."""


def _create_docker(settings: RuntimeSettings, progress: Progress | None) -> Runtime:
    from ohsandbox.runtime.docker import DockerRuntime  # noqa: PLC0415 - docker: only for the Docker backend

    container, joins = settings.container, settings.attach is not None
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
        limits=_limits(container),
        build=settings.build,
        services=() if joins else settings.services,
        env=settings.env,
        user=settings.user,
        setup_key=settings.setup_key,
        progress=progress,
        cache=None if container.cache == "none" else container.cache,
        platform=container.platform,
        gpus="all" if container.gpus == "all" else None if container.gpus is None else int(container.gpus),
        profile=container.profile,
        runtime=container.oci_runtime or "",
        hard_links=container.hard_links,
    )


def _limits(container: ContainerOptions) -> SandboxLimits | None:
    """Return the limits that the options name; None if they name none."""
    from ohsandbox.runtime.docker import SandboxLimits  # noqa: PLC0415 - docker: only for the Docker backend

    named = {limit.field: getattr(container, name) for name, limit in RESOURCE_LIMITS.items()}
    given = {field: value for field, value in named.items() if value is not None}
    if container.accept_unenforced:
        given["enforced"] = False
    return SandboxLimits(**given) if given else None


def _docker_elsewhere() -> str | None:
    from ohsandbox.runtime.docker.engine.connection import find_address  # noqa: PLC0415 - docker: only for the Docker backend

    address = find_address(os.environ)
    return None if address.is_local else address.url


def container_of(image: str | None, options: Mapping[str, Any]) -> Runtime:
    """Return a `DockerRuntime` with these arguments, not started; raises the errors of its constructor."""
    from ohsandbox.runtime.docker import DockerRuntime  # noqa: PLC0415 - docker: only for the Docker backend

    return DockerRuntime(image, **options)


def _is_mapped(settings: RuntimeSettings) -> bool:
    """Whether a directory of this machine is bound writable."""
    directories = settings.workspaces or ((str(settings.workspace),) if settings.workspace else ())
    workspaces = () if settings.copy else map(parse_path, directories)
    return not all(mount.read_only for mount in (*workspaces, *map(Mount.parse, settings.mount)))


def _create_local(settings: RuntimeSettings, _progress: Progress | None) -> Runtime:
    from ohsandbox.runtime.local import CLIRuntime  # noqa: PLC0415 - only for the backend of this machine

    if len(settings.workspaces) > 1:
        raise UsageError("--runtime cli works in one workspace. Name one, or use --runtime docker.")
    return CLIRuntime(settings.workspace or settings.host_workdir, watch=settings.workspace is not None)


BACKENDS: dict[str, BackendInfo] = {
    "docker": BackendInfo(
        _create_docker,
        isolated=True,
        engine_elsewhere=_docker_elsewhere,
        options=frozenset(
            {
                *("image", "build", "git", "keep", "attach", "ca_bundle", "copy", "env", "user", "same_path", "mount"),
                *NETWORK_OPTIONS,
                *RESOURCE_LIMITS,
                *CONTAINER_OPTIONS,
            }
        ),
    ),
    HOST_BACKEND: BackendInfo(_create_local, isolated=False, machine="this host", users=False),
}


def backend_info(name: str | None) -> BackendInfo:
    """Return the backend of that name; None is the default one.

    Raises:
        UsageError: there is no such backend.
    """
    info = BACKENDS.get(name or DEFAULT_BACKEND)
    if info is None:
        raise UsageError(f"Unknown runtime {name!r}. Choose one of: {', '.join(BACKENDS)}.")
    return info


def runtime_from(settings: RuntimeSettings, *, progress: Progress | None = None) -> Runtime:
    """Return the runtime that the settings describe, not started. No engine is contacted.

    Raises:
        UsageError: the backend is unknown, or refuses an image name, a directory or a combination.
    """
    return backend_info(settings.runtime).create(settings, progress)


def build_digest(build: Build) -> str:
    """Return the hash of all files that a build sends to the engine, and accept no other content from now on.

    Raises:
        UsageError: there is no Dockerfile, or the files cannot be sent.
        OSError: a file cannot be read.
    """
    from ohsandbox.runtime.docker.images.build import digest_to_trust  # noqa: PLC0415 - docker: only for the Docker backend

    return digest_to_trust(resolved_build(build))


def check_mount(text: str) -> None:
    """Check a mount by the rules of a sandbox.

    Raises:
        UsageError: it is not a mount, or its source must not be bound.
    """
    from ohsandbox.runtime.docker.mounts.bind_mounts import vetted  # noqa: PLC0415 - docker: only for the Docker backend

    vetted([], [Mount.parse(text)])


def open_inventory() -> Inventory:
    """Open the inventory of the backend that stores sandboxes and checkpoints; close it after use.

    Raises:
        EngineUnavailable: no engine answers.
    """
    from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory  # noqa: PLC0415 - docker: only for the Docker backend

    return DockerInventory()
