"""Validating the caller's options, and resolving them with the image's facts to a container configuration."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker import container_config, mount_policy
from ohsandbox.runtime.docker.error_mapping import engine_errors
from ohsandbox.runtime.docker.guard import WORKSPACE, Git, GuardMount
from ohsandbox.runtime.workspace import git_layout

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine import Engine
    from ohsandbox.runtime.docker.images import ImageFacts

WORKDIR_LABEL = "ohsandbox.workdir"
"""Label with the working directory of processes; the container's own working directory is the root directory."""
MAPPED_HOME = "/home/ohsandbox"
"""In the container's own layer, not on a tmpfs: pip and npm caches would count as memory, and our tmpfs is noexec."""
CA_PATH = "/usr/local/share/ohsandbox-ca.pem"
CA_VARIABLES = (
    "SSL_CERT_FILE",  # OpenSSL, Go, Ruby
    "REQUESTS_CA_BUNDLE",  # Python requests
    "PIP_CERT",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
)
_ROOT_USERS = {"", "0", "root", "0:0", "root:root"}
_WANTED_CPUS = 2.0
_WANTED_FILES = 65536
_MAX_TOLD = 20
_GIT_READ_ONLY = "read-only: commits fail"
_GIT_GUARDED = (
    "commits, branches and merges work; config, hooks and info of repositories are read-only ('could not lock config "
    "file'): use `git config --global` or `git -c`. A directory that holds a repository cannot be moved or removed"
)


class DockerOptions(BaseModel):
    """The caller's options, validated without an engine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str
    env: dict[str, str] = {}
    user: str | None = None
    workdir: str | None = None
    workspace: str | None = None
    copy_of: str | None = None
    """A directory whose files are copied to /workspace at the start; workspace is None then."""
    copies_all: bool = False
    git: Git = "guarded"
    network: container_config.Network = "none"
    profile: container_config.Profile = "contained"
    limits: container_config.Limits = container_config.Limits()
    name: str | None = None
    keep: bool = False
    attach: str | None = None
    ca_bundle: str | None = None
    runtime: str = ""
    conversation: str | None = None
    checkpoint: str | None = None


class ResolvedSandbox(NamedTuple):
    """The configuration of a container to create, and the user of its processes."""

    spec: container_config.ContainerConfig
    user: str
    """User of each exec that names no other."""
    identity: mount_policy.Identity | None
    """In a mapped sandbox: the user that needs a passwd entry and a home."""

    @property
    def as_root(self) -> bool:
        """Whether the default user is uid 0."""
        return is_root(self.user)


def is_root(user: str) -> bool:
    """Whether the user, as named by an image or a caller, is uid 0."""
    return user in _ROOT_USERS or user.split(":", maxsplit=1)[0] in {"0", "root"}


def options(**asked: object) -> DockerOptions:
    """Return validated options, as far as that needs no engine.

    Raises:
        UsageError: a name, directory, limit or combination is invalid.
    """
    try:
        found = DockerOptions.model_validate({name: value for name, value in asked.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"DockerRuntime({where}=...): {first['msg']}. Remedy: correct that argument.") from error
    container_config.image_name(found.image)
    for name in (found.name, found.attach):
        if name is not None:
            container_config.container_name(name)
    if found.attach is not None and found.checkpoint is not None:
        raise UsageError("checkpoint= cannot be put into a running container. Remedy: leave out attach=.")
    if found.workdir is not None and container_config.sane_workdir(found.workdir) is None:
        raise UsageError(
            f"workdir={found.workdir!r} is refused. Remedy: an absolute path outside /proc, /sys and /dev."
        )
    if found.ca_bundle is not None and not Path(found.ca_bundle).expanduser().is_file():
        raise UsageError(f"ca_bundle={found.ca_bundle!r} is not a file. Remedy: name a PEM file.")
    if found.ca_bundle is not None and b"-----BEGIN CERT" not in Path(found.ca_bundle).expanduser().read_bytes():
        raise UsageError(f"ca_bundle={found.ca_bundle!r} contains no PEM certificate. Remedy: name a PEM file.")
    return _with_workspace(found)


def _with_workspace(found: DockerOptions) -> DockerOptions:
    if found.profile == "mapped" and found.workspace is None:
        raise UsageError("profile='mapped' needs a directory. Remedy: pass workspace=DIR.")
    if found.copy_of is not None:
        if found.attach is not None:
            raise UsageError("copy= makes a container of its own. Remedy: leave out attach=, or use `upload`.")
        return found.model_copy(update={"copy_of": mount_policy.vet(found.copy_of, copied=True)})
    if found.workspace is None:
        return found
    if found.attach is not None:
        raise UsageError("workspace= cannot be added to a running container. Remedy: leave out attach=, or workspace=.")
    return found.model_copy(update={"workspace": mount_policy.vet(found.workspace), "profile": "mapped"})


def plan(
    asked: DockerOptions,
    facts: ImageFacts,
    engine: Engine,
    *,
    name: str,
    labels: dict[str, str],
    guard: tuple[GuardMount, ...] = (),
) -> ResolvedSandbox:
    """Resolve options and image facts to the sandbox's configuration.

    Raises:
        UsageError: this engine cannot bind a directory of this machine, or map its files to the caller; or the
            environment of image and caller is too large.
        SandboxUnavailable: the engine failed.
    """
    env = _environment(asked, facts)
    container_config.check_environment(facts.env, env, whose=f"Image {asked.image!r} with env=")
    identity = _identity(asked, engine)
    user = asked.user or (identity.user if identity else facts.user)
    unset = tuple(name for name in container_config.hostile_names(facts.env) if name not in asked.env)
    cpus = asked.limits.cpus or min(_WANTED_CPUS, engine.cpu_count())
    workdir = container_config.sane_workdir(asked.workdir) or _default_workdir(asked, facts)
    resolved = container_config.ContainerConfig(
        name=name, image=facts.id, profile=asked.profile, workdir=workdir, env=env, unset=unset,
        network=asked.network, limits=asked.limits, cpus=cpus, open_files=_open_files(asked, engine),
        workspace=asked.workspace, guard=guard, runtime=asked.runtime,
        gid=identity.gid if identity else 0, architecture=facts.platform.split("/")[-1],
    )  # fmt: skip
    marks = {"ohsandbox.user": user, WORKDIR_LABEL: workdir, "ohsandbox.image": asked.image}
    if asked.workspace is not None:
        marks["ohsandbox.git"] = asked.git
    return with_policy(ResolvedSandbox(resolved.model_copy(update={"labels": labels | marks}), user, identity))


def with_policy(made: ResolvedSandbox) -> ResolvedSandbox:
    """Add the digest of all restrictions to the labels."""
    labels = made.spec.labels | {"ohsandbox.policy": made.spec.policy()}
    return made._replace(spec=made.spec.model_copy(update={"labels": labels}))


def describe(
    asked: DockerOptions, made: ResolvedSandbox | None, facts: ImageFacts | None, *, user: str, workdir: str
) -> dict[str, str]:
    """Return facts of a sandbox for a system prompt, name to value; made is None for an attached container."""
    told = {
        "runtime": "a Docker container",
        "image": asked.attach or asked.image,
        "user": user or "root",
        "working directory": workdir,
    }
    if made is None:
        return told
    resolved = made.spec
    memory = f"{resolved.limits.memory_bytes / container_config.GIB:g} GiB of memory"
    told["network"] = "none: only the sandbox itself is reachable" if resolved.network == "none" else "open"
    told["limits"] = f"{memory}, {resolved.cpus:g} processors, {resolved.limits.pids} processes"
    if resolved.limits.file_bytes is not None:
        told["limits"] += f", files of at most {resolved.limits.file_bytes / container_config.GIB:g} GiB"
    if facts is not None:
        told |= {"platform": facts.platform, "digest": facts.digest or facts.id}
    if asked.workspace:
        told["workspace"] = f"{WORKSPACE} is a directory of the user's machine"
        told |= _guarded(asked.git, resolved.guard)
    if asked.copy_of:
        without = "" if asked.copies_all else ", without files that git ignores and without secrets"
        told["workspace"] = f"{WORKSPACE} is a copy of a directory of the user's{without}"
    return told


def notes(asked: DockerOptions, made: ResolvedSandbox) -> tuple[str, ...]:
    """Return notes for the user on how the workspace is guarded."""
    if asked.git == "rw":
        return ("--git rw: the sandbox can change what git, editors and agents run from the workspace.",)
    pointer = git_layout.pointed(str(asked.workspace), ".git") if made.spec.guard else None
    if pointer is not None and pointer.startswith("/"):
        return (f"git does not work in the sandbox: .git names {pointer!r}, which is outside of the workspace.",)
    return ()


def _guarded(git: Git, mounts: tuple[GuardMount, ...]) -> dict[str, str]:
    """Return which files of the workspace are protected, for the model."""
    told = {}
    if any(".git" in mount.path.split("/") for mount in mounts):
        told["git"] = _GIT_READ_ONLY if git == "ro" else _GIT_GUARDED
    others = [mount for mount in mounts if mount.read_only and (mount.source or ".git" not in mount.path.split("/"))]
    for name, found in {
        "read-only files": [mount.path for mount in others if not mount.source],
        "hidden sockets": [mount.path for mount in others if mount.source],
    }.items():
        if found:
            told[name] = ", ".join(found[:_MAX_TOLD]) + (", ..." if len(found) > _MAX_TOLD else "")
    return told


def _open_files(asked: DockerOptions, engine: Engine) -> int:
    """Return 65536, or this process's hard limit if lower: a local engine without CAP_SYS_RESOURCE has the same one."""
    if asked.limits.open_files is not None or not engine.address.is_local:
        return asked.limits.open_files or _WANTED_FILES
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _WANTED_FILES if hard == resource.RLIM_INFINITY else min(_WANTED_FILES, hard)


def _identity(asked: DockerOptions, engine: Engine) -> mount_policy.Identity | None:
    if asked.workspace is None:
        return None
    if not engine.address.is_local:
        raise UsageError(
            f"workspace= needs an engine on this machine, and {engine.address} is another. "
            "Remedy: copy the files in with `upload`, or use a local engine."
        )
    with engine_errors("asking the engine how it maps users"):
        security = " ".join(engine.api.info().get("SecurityOptions") or [])
    if "name=userns" in security:
        raise UsageError(
            "workspace= cannot give its files to you: this engine remaps users (userns-remap). "
            "Remedy: copy the files in with `upload`, or use an engine without userns-remap."
        )
    return mount_policy.identity(asked.workspace, rootless="name=rootless" in security)


def _default_workdir(asked: DockerOptions, facts: ImageFacts) -> str:
    image = container_config.sane_workdir(facts.workdir)
    return WORKSPACE if asked.workspace or asked.copy_of or image in {None, "/"} else image or WORKSPACE


def _environment(asked: DockerOptions, facts: ImageFacts) -> dict[str, str]:
    """Return our variables, then the image's language, then the caller's; the last value wins."""
    env = dict(container_config.QUIET_ENV)
    if not any(entry.startswith(("LANG=", "LC_ALL=")) for entry in facts.env):
        env["LANG"] = "C.UTF-8"
    if asked.workspace is not None:
        env["HOME"] = MAPPED_HOME
    if asked.ca_bundle is not None:
        env |= ca_environment()
    return env | asked.env


def ca_environment() -> dict[str, str]:
    """Return the variables that point common tools to the CA bundle."""
    return dict.fromkeys(CA_VARIABLES, CA_PATH)
