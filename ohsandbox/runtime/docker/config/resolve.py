"""Resolves the caller's options with the facts of image and engine to a `ContainerConfig`."""

from __future__ import annotations

import json
import re
import resource
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError
from ohsandbox.limit_ranges import DEFAULT_CPUS
from ohsandbox.runtime.docker.config import profiles
from ohsandbox.runtime.docker.config.container_config import (
    ALL_GPUS,
    MAPPED_HOME,
    ContainerConfig,
    SandboxLimits,
)
from ohsandbox.runtime.docker.config.options import (
    CA_FILE_VARIABLES,
    DockerOptions,
    check_environment,
    sane_workdir,
)
from ohsandbox.runtime.docker.labels import (
    BINDS_LABEL,
    GIT_LABEL,
    IMAGE_LABEL,
    LABELS_LABEL,
    USER_LABEL,
    WORKDIR_LABEL,
)
from ohsandbox.runtime.docker.mounts import caches, mount_policy
from ohsandbox.runtime.mount_text import WORKSPACE, Mount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.images.engine_images import ImageFacts
    from ohsandbox.runtime.docker.mounts.bind_mounts import Bind

QUIET_ENV = {
    "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive", "PIP_NO_INPUT": "1",
}  # fmt: skip
"""Nobody reads or types at the terminal: no pager, no prompt."""
_HOSTILE_ENV = re.compile(
    r"LD_(?!LIBRARY_PATH$).*|DYLD_.*|BASH_(?!ENV$).*|BASHOPTS|SHELLOPTS|ENV|PROMPT_COMMAND|PS[0-4]|IFS|CDPATH"
    r"|GLOBIGNORE|EXECIGNORE|FIGNORE|HISTFILE|INPUTRC|TMOUT|POSIXLY_CORRECT|OHS_.*|OHSANDBOX_.*"
)
"""Names by which an image's ENV could change how our shells read our lines (PS1, LD_PRELOAD of a file that is missing).
What its programs need is kept: LD_LIBRARY_PATH (nvidia/cuda), TZDIR, BASH_ENV (nvm), which only scripts read."""
_OF_THE_IMAGE = re.compile(r"\$\{containerEnv:([A-Za-z_][A-Za-z0-9_]{0,254})\}")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of an image that sets none."""
_WANTED_FILES = 65536


def resolve_config(
    asked: DockerOptions,
    facts: ImageFacts,
    engine: Engine,
    *,
    name: str,
    labels: dict[str, str],
    binds: tuple[Bind, ...] = (),
) -> ContainerConfig:
    """Resolve options and image facts to the sandbox's configuration.

    Raises:
        UsageError: this engine cannot bind a directory of this machine, or map its files to the caller; or the
            environment of image and caller is too large.
    """
    # later ones override earlier ones: ours, those of the CA bundle, those of the cache, the caller's
    is_strict = asked.profile == "strict"
    home = {"HOME": MAPPED_HOME} if asked.writable or is_strict else {}
    cached = {} if asked.cache is None else caches.ENVIRONMENT | {"APT_CONFIG": CA_FILE_VARIABLES["APT_CONFIG"]}
    env = QUIET_ENV | home | asked.ca_environment | cached | _with_image_variables(asked.env, facts.env)
    if not asked.gpus and any(entry.startswith("NVIDIA_VISIBLE_DEVICES=") for entry in facts.env):
        env = {"NVIDIA_VISIBLE_DEVICES": "void"} | env  # else NVIDIA's default runtime obeys the image
    if not any(entry.startswith(("LANG=", "LC_ALL=")) for entry in facts.env):
        env = {"LANG": "C.UTF-8"} | env
    check_environment(facts.env, env, whose=f"Image {asked.image!r} with env=")
    identity = _identity(asked.bound, engine)
    user = asked.user or (identity.user if identity else facts.user)
    if is_strict:
        user = profiles.ordinary_user(asked, user, engine, is_bound=identity is not None)
    image_workdir = sane_workdir(facts.workdir)
    if asked.workspaces:
        image_workdir = asked.workspaces[0].target
    elif asked.copy_of or is_strict or image_workdir in {None, "/"}:
        image_workdir = WORKSPACE
    workdir = sane_workdir(asked.workdir) or image_workdir or WORKSPACE
    labels = asked.labels | labels | {USER_LABEL: user, WORKDIR_LABEL: workdir, IMAGE_LABEL: asked.image}
    labels[LABELS_LABEL] = " ".join(asked.labels)
    if asked.writable:
        labels[GIT_LABEL] = asked.git
    if asked.bound:
        places = {name: [mount.target for mount in getattr(asked, name)] for name in ("workspaces", "mounts")}
        labels[BINDS_LABEL] = json.dumps(places)
    return ContainerConfig(
        name=name, image=facts.id, workdir=workdir, user=user, env=env,
        unset=_unset(facts.env, env, asked.env), network=asked.network,
        limits=asked.limits, cpus=processor_count(asked.limits, engine),
        open_files=open_files(asked.limits, engine), binds=binds, identity=identity,
        architecture=facts.platform.split("/")[-1], labels=labels, hardening=asked.hardening,
        gpus=ALL_GPUS if asked.gpus == "all" else asked.gpus or 0, **profiles.oci_runtime(asked.runtime, engine),
    )  # fmt: skip


def _with_image_variables(env: Mapping[str, str], image_env: Sequence[str]) -> dict[str, str]:
    """Replace `${containerEnv:NAME}` in values by the image's variable, or "", as in a devcontainer.json."""
    variables = {"PATH": _DEFAULT_PATH} | dict(entry.partition("=")[::2] for entry in image_env)
    return {name: _OF_THE_IMAGE.sub(lambda match: variables.get(match[1], ""), value) for name, value in env.items()}


def _unset(image_env: list[str], env: Mapping[str, str], asked: Mapping[str, str]) -> tuple[str, ...]:
    """Return the image's variables to remove; a checkpoint may have those of a cache that the new sandbox lacks."""
    values = dict(entry.partition("=")[::2] for entry in image_env)
    ours = (*caches.ENVIRONMENT.items(), ("APT_CONFIG", CA_FILE_VARIABLES["APT_CONFIG"]))
    unchanged = {name for name, value in ours if values.get(name) == value and name not in env}
    return tuple(sorted(unchanged.union(name for name in hostile_names(image_env) if name not in asked)))


def hostile_names(image_env: list[str]) -> tuple[str, ...]:
    """Return the variables of an image's ENV to remove; a bare name in Env removes the image's value."""
    names = {entry.split("=", 1)[0] for entry in image_env}
    return tuple(sorted(name for name in names if _HOSTILE_ENV.fullmatch(name)))


def processor_count(limits: SandboxLimits, engine: Engine) -> float:
    """Return the requested number of processors, by default two, or as many as the engine has."""
    return limits.cpus or min(DEFAULT_CPUS, engine.cpu_count())


def open_files(limits: SandboxLimits, engine: Engine) -> int:
    """Return the requested limit of open files; by default 65536, or this process's hard limit if that is lower.

    A local engine without CAP_SYS_RESOURCE cannot exceed its own hard limit, which is taken to be the same; an engine
    on another machine gets 65536.
    """
    if limits.open_files is not None or not engine.address.is_local:
        return limits.open_files or _WANTED_FILES
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _WANTED_FILES if hard == resource.RLIM_INFINITY else min(_WANTED_FILES, hard)


def _identity(bound: Sequence[Mount], engine: Engine) -> mount_policy.Identity | None:
    """Return the user who is to own files written to this machine; None if nothing writable is bound."""
    if not bound:
        return None
    options_named = "workspace= and mounts="
    if not engine.address.is_local:
        raise UsageError(
            f"{options_named} need an engine on this machine, and {engine.address} is another. "
            "Work on a copy (--copy, copy=True); `ohsandbox run` brings its changes back."
        )
    writable = [mount.source for mount in bound if not mount.read_only]
    if not writable:
        return None
    security = " ".join(engine.info().get("SecurityOptions") or [])
    if "name=userns" in security:
        raise UsageError(
            f"{options_named} cannot give their files to you: this engine remaps users (userns-remap). "
            "Copy the files in with `upload`, or use an engine without userns-remap."
        )
    first, *others = [mount_policy.identity(source, rootless="name=rootless" in security) for source in writable]
    return first._replace(may_setgid=first.may_setgid and all(other == first for other in others))
