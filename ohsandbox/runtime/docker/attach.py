"""Attaching to an existing container: one named by the caller, or the earlier container of a conversation."""

from __future__ import annotations

import contextlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import EngineUnavailable, SandboxGone, SandboxPaused, SandboxUnavailable, UsageError
from ohsandbox.runtime.docker import checkpoints, gc, images, lease, mount_policy, resolve
from ohsandbox.runtime.docker.container import Container, how_it_ended
from ohsandbox.runtime.docker.container_config import ALWAYS_UNSET, PRIVATE_DIR, check_environment, sane_workdir
from ohsandbox.runtime.docker.error_mapping import engine_errors
from ohsandbox.runtime.docker.guard import WORKSPACE, GuardMount, guard
from ohsandbox.runtime.docker.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ohsandbox.runtime.docker.engine import Engine
    from ohsandbox.runtime.docker.lease import Lease
    from ohsandbox.runtime.docker.setup import Opener

END_S = 10.0
"""A shell that sends one signal takes 30 ms."""
_NO_NETWORK = {"none"}
_STOPPED = {137, 143}
"""Exit codes of PID 1 after SIGKILL (`DockerRuntime.leave`) and SIGTERM (sandbox.OwnerWatchdog)."""
_END_ALL = f"chmod 1777 {PRIVATE_DIR} 2>/dev/null; kill -KILL -1 2>/dev/null || :"
"""kill(2) with pid -1 spares PID 1 and the calling shell. A container made from a checkpoint has our tmpfs with mode
0755 after each start (setup.py)."""


class AdoptedSandbox(NamedTuple):
    """A conversation's running container, whose lease this process holds."""

    sandbox: Sandbox
    notes: list[str]
    """Differences from the requested options, one line each."""


def join(engine: Engine, options: resolve.DockerOptions) -> Sandbox:
    """Return the running container named by attach=, whoever created it.

    Raises:
        UsageError: the container does not exist, or its environment is too large.
        SandboxUnavailable: it is not running.
    """
    joined = Container(engine, str(options.attach), name=str(options.attach))
    try:
        found = joined.inspect()
    except SandboxGone:
        raise UsageError(
            f"Container {options.attach!r} does not exist. Remedy: choose one that `docker ps` lists."
        ) from None
    joined.id, joined.name = str(found["Id"]), str(found["Name"]).lstrip("/")
    joined.started = str(found["State"].get("StartedAt", ""))
    if (loss := joined.loss()) is not None:
        raise loss
    config = found["Config"]
    labels = config.get("Labels") or {}
    exec_env = (resolve.ca_environment() if options.ca_bundle else {}) | options.env
    check_environment(config.get("Env") or [], exec_env, whose=f"Container {joined.name!r} with env=")
    has_ours = PRIVATE_DIR in (found["HostConfig"].get("Tmpfs") or {})
    return Sandbox(
        container=joined,
        options=options,
        user=options.user or labels.get("ohsandbox.user") or config.get("User") or "",
        workdir=sane_workdir(options.workdir) or _workdir(config),
        exec_env=exec_env,
        unset=ALWAYS_UNSET,
        state_dir=PRIVATE_DIR if has_ours else "/tmp",  # noqa: S108 - in the container; every image has it
        exposed=tuple(exposures(found | {"Mounts": _resolved(engine, found.get("Mounts") or [])})),
    )


def adopt(engine: Engine, options: resolve.DockerOptions) -> AdoptedSandbox | None:
    """Resume the container of the conversation in options; None if it has none.

    Raises:
        SandboxUnavailable: another process uses it, or it cannot be started.
        UsageError: its directory cannot be bound any more.
    """
    if options.conversation is None or (found := _find(engine, options.conversation)) is None:
        return None
    held = lease.adopt(str(found["Config"]["Labels"][lease.LEASE_LABEL]))
    name = str(found["Name"]).lstrip("/")
    if held is None:
        raise SandboxUnavailable(f"Another process works in sandbox {name!r}. Remedy: end it, or wait until it ends.")
    try:
        return _adopted(engine, options, found, held)
    except BaseException:
        held.leave()
        raise


def last_checkpoint(engine: Engine, candidates: Sequence[str]) -> str | None:
    """Return the image id of the first candidate that exists and is one of our checkpoints."""
    for candidate in candidates:
        with contextlib.suppress(SandboxUnavailable):
            return checkpoints.require(engine, candidate)
    return None


def end_processes(left: Sandbox) -> list[str]:
    """Kill every process of the container except PID 1, so that nothing started by a dead owner keeps running.

    A running container that cannot start a process is restarted. On return, processes can be started.

    Returns:
        Notes for the user, one line each.

    Raises:
        SandboxUnavailable: no process can be started in it, not even after a restart.
    """
    # also as the user: root of a mapped sandbox has no CAP_KILL; on a terminal, since shells will need one
    openers = (left.open_as_root, left.open_as_user)
    try:
        _end_all(*openers)
    except (SandboxGone, SandboxPaused, EngineUnavailable):
        raise
    except SandboxUnavailable:
        container = left.container
        container.kill()
        container.start()
        container.note_start()
        _end_all(*openers)
        return [f"Sandbox {container.name} could start no process any more and was restarted; its files are kept."]
    return []


def _end_all(*openers: Opener) -> None:
    for open_as in openers:
        with open_as(["/bin/sh", "-c", _END_ALL]) as channel:
            try:
                channel.wait(END_S)
            except TimeoutError as error:
                raise SandboxUnavailable(f"Its processes could not be ended in {END_S:g} s.") from error


def _find(engine: Engine, conversation: str) -> dict[str, Any] | None:
    """The newest container of the conversation whose lease is in this state directory."""
    wanted = [f"{checkpoints.CONVERSATION_LABEL}={conversation}", lease.LEASE_LABEL]
    with engine_errors("looking for the conversation's sandbox"):
        listed = engine.api.containers(all=True, filters={"label": wanted})
        ours = [one for one in listed if (record := gc.own_record(one)) and record.conversation == conversation]
        newest = max(ours, key=lambda one: int(one.get("Created", 0)), default=None)
        return None if newest is None else dict(engine.api.inspect_container(newest["Id"]))


def _adopted(engine: Engine, options: resolve.DockerOptions, found: dict[str, Any], held: Lease) -> AdoptedSandbox:
    container = Container(engine, str(found["Id"]), name=str(found["Name"]).lstrip("/"))
    labels = dict(found["Config"].get("Labels") or {})
    real = _as_made(options, found, labels)
    if real.workspace is not None:
        mount_policy.vet(real.workspace)  # older versions accepted more directories, and the contents may have changed
    facts = images.look(engine, str(found["Image"])) or _facts_of(found)
    made = resolve.plan(real, facts, engine, name=container.name, labels=_ours(labels), guard=_guard_of(found))
    if real.workspace is not None:
        guard(real.workspace, real.git)  # mount sources must exist when the container starts
    afresh = real.workspace is not None and not held.record.keep
    notes = [*_awaken(container, found["State"], afresh=afresh), *_drift(options, real, container.name)]
    if _is_outdated(engine, options, found):
        notes.append(f"Image {options.image} is another one now; sandbox {container.name} stays on the one it had.")
    container.note_start()
    made = made._replace(spec=made.spec.model_copy(update={"workdir": _workdir(found["Config"])}))
    sandbox = Sandbox(container, real, made.user, made.spec.workdir, held, made, facts)
    return AdoptedSandbox(sandbox, notes)


def _awaken(container: Container, state: dict[str, Any], *, afresh: bool) -> list[str]:
    """Make the container run. afresh: kill its processes first; its last owner's end may be stopping them already."""
    notes = []
    if state.get("Paused"):
        with engine_errors(f"unpausing sandbox {container.name!r}"):
            container.engine.api.unpause(container.id)
        notes = [f"Sandbox {container.name} was paused; it goes on."]
    elif not state.get("Running"):
        stopped = afresh and state.get("ExitCode") in _STOPPED and not state.get("OOMKilled")
        how = "was stopped when it was left, as each with a workspace is" if stopped else how_it_ended(state)
        notes = [f"Sandbox {container.name} {how}; it was started again, its files are kept."]
    if afresh or not state.get("Running"):
        container.kill()
        container.start()
    return notes


def _as_made(options: resolve.DockerOptions, found: dict[str, Any], labels: dict[str, str]) -> resolve.DockerOptions:
    """Return the options with the values that the container was created with."""
    host = found["HostConfig"]
    networks = {*((found.get("NetworkSettings") or {}).get("Networks") or {})} - _NO_NETWORK
    binds = [one for one in found.get("Mounts") or [] if one.get("Type") == "bind"]
    sources = [str(one["Source"]) for one in binds if one.get("Destination") == WORKSPACE]
    limits = {"memory_bytes": host.get("Memory"), "pids": host.get("PidsLimit")}
    limits["cpus"] = (host.get("NanoCpus") or 0) / 1_000_000_000
    sizes = [one.get("Hard") for one in host.get("Ulimits") or [] if one.get("Name") == "fsize"]
    kept = {key: value for key, value in limits.items() if value} | {"file_bytes": sizes[0] if sizes else None}
    return options.model_copy(
        update={
            "image": labels.get("ohsandbox.image", options.image),
            "user": labels.get("ohsandbox.user", options.user),
            "network": "open" if networks or host.get("NetworkMode") != "none" else "none",
            "workspace": sources[0] if sources else None,
            "git": labels.get("ohsandbox.git", "rw"),
            "profile": "mapped" if sources else "contained",
            "limits": options.limits.model_copy(update=kept),
        }
    )


def _guard_of(found: dict[str, Any]) -> tuple[GuardMount, ...]:
    """Return the nested mounts that the container was created with."""
    binds = {str(one.get("Destination")): one for one in found.get("Mounts") or [] if one.get("Type") == "bind"}
    root = str(binds.get(WORKSPACE, {}).get("Source"))
    mounts = []
    for target, bind in sorted(binds.items()):
        path = target.removeprefix(f"{WORKSPACE}/")
        if path != target:
            source = str(bind.get("Source"))
            own = "" if source == f"{root}/{path}" else source
            mounts.append(GuardMount(path, read_only=not bind.get("RW", True), source=own))
    return tuple(mounts)


def _drift(asked: resolve.DockerOptions, real: resolve.DockerOptions, name: str) -> list[str]:
    """Return a line for each requested option with another value in the container; others are not compared."""
    pairs = [
        ("image", asked.image, real.image),
        ("network", asked.network, real.network),
        ("workspace", asked.workspace or "none", real.workspace or "none"),
        ("--git", asked.git if real.workspace else real.git, real.git),
        ("user", asked.user or real.user, real.user),
        ("memory", f"{asked.limits.memory_bytes >> 20} MiB", f"{real.limits.memory_bytes >> 20} MiB"),
        ("processors", asked.limits.cpus or real.limits.cpus, real.limits.cpus),
        ("processes", asked.limits.pids, real.limits.pids),
        ("file size", asked.limits.file_bytes or "any", real.limits.file_bytes or "any"),
    ]
    remedy = f"To change it, remove the sandbox and its files: docker rm -f {name}"
    return [
        f"Sandbox {name} has {what} {had}, and {wanted} was asked for; it stays as it was made. {remedy}"
        for what, wanted, had in pairs
        if wanted != had
    ]


def _workdir(config: dict[str, Any]) -> str:
    """Return the working directory of processes: from our label, else from the container's configuration."""
    labelled = (config.get("Labels") or {}).get(resolve.WORKDIR_LABEL)
    return sane_workdir(labelled) or sane_workdir(config.get("WorkingDir")) or "/"


def _is_outdated(engine: Engine, options: resolve.DockerOptions, found: dict[str, Any]) -> bool:
    labels = found["Config"].get("Labels") or {}
    now = images.look(engine, options.image)
    if now is None or options.image != labels.get("ohsandbox.image") or now.id == found["Image"]:
        return False
    with contextlib.suppress(SandboxUnavailable):
        checkpoints.require(engine, str(found["Image"]))
        return False
    return True


def _ours(labels: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key == "ohsandbox" or key.startswith("ohsandbox.")}


def _facts_of(found: dict[str, Any]) -> images.ImageFacts:
    """Return the facts of an image that was removed, as far as the container's own description has them."""
    config = found["Config"]
    return images.ImageFacts(
        id=str(found["Image"]), digest=None, user=str(config.get("User") or ""), env=list(config.get("Env") or []),
        workdir=config.get("WorkingDir"), platform=f"{found.get('Platform', '?')}/?", size_bytes=0,
    )  # fmt: skip


# --- access beyond itself of a container that we did not create ---

SOCKETS = ("docker.sock", "containerd.sock", "podman.sock", "crio.sock", "dockershim.sock", "buildkitd.sock")
"""Write access to one of these is root access to the engine's machine."""
_SOCKET_PLACES = ("/run", "/var/run", "/var", "/")
"""Directories that contain these sockets on most machines."""
_NAMESPACES = {"NetworkMode": "network", "PidMode": "processes", "IpcMode": "shared memory"}
_UNCONFINED = ("seccomp=unconfined", "apparmor=unconfined", "label=disable", "label:disable", "systempaths=unconfined")


def exposures(found: Mapping[str, Any]) -> list[str]:
    """Describe each access beyond the container, the worst first; empty for an isolated container."""
    host: Mapping[str, Any] = found.get("HostConfig") or {}
    return [*_rights(host), *_namespaces(host), *_paths(found), *_engines(found)]


def _resolved(engine: Engine, mounts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mounts, with volumes backed by a host directory (`--opt o=bind`) as bind mounts of it."""
    resolved = []
    for mount in mounts:
        options: Mapping[str, str] = {}
        if mount.get("Type") == "volume" and mount.get("Name"):
            with contextlib.suppress(SandboxUnavailable), engine_errors(f"looking at volume {mount['Name']!r}"):
                options = engine.api.inspect_volume(mount["Name"]).get("Options") or {}
        device = str(options.get("device") or "")
        resolved.append(mount | {"Type": "bind", "Source": device} if device.startswith("/") else mount)
    return resolved


def _rights(host: Mapping[str, Any]) -> Iterator[str]:
    if host.get("Privileged"):
        yield "it is privileged"
    if added := host.get("CapAdd"):
        yield f"added capabilities ({', '.join(map(str, added))})"
    devices = [str(one.get("PathOnHost")) for one in host.get("Devices") or []]
    if devices or host.get("DeviceRequests") or host.get("DeviceCgroupRules"):
        yield f"devices of the machine ({', '.join(devices) or 'by request or rule'})"
    yield from (one for one in host.get("SecurityOpt") or [] if one in _UNCONFINED)


def _namespaces(host: Mapping[str, Any]) -> Iterator[str]:
    for field, what in _NAMESPACES.items():
        mode = str(host.get(field) or "")
        if mode == "host":
            yield f"the machine's {what}"
        elif mode.startswith("container:"):
            yield f"another container's {what}"


def _paths(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the bound paths, except those that lie in another bound path of the same kind."""
    binds = [one for one in found.get("Mounts") or [] if one.get("Type") == "bind"]
    pairs = {PurePosixPath(str(one.get("Destination"))): PurePosixPath(str(one.get("Source"))) for one in binds}
    for target, source in sorted(pairs.items()):
        if any(above in target.parents and source.is_relative_to(pairs[above]) for above in pairs):
            continue
        if source.name in SOCKETS:
            yield f"the engine's socket {source}"
        elif str(source) in _SOCKET_PLACES:
            yield f"{source} of the machine, with the engine's socket"
        else:
            yield f"{source} of the machine, as {target}"


def _engines(found: Mapping[str, Any]) -> Iterator[str]:
    for entry in (found.get("Config") or {}).get("Env") or []:
        name, _, value = str(entry).partition("=")
        if name in {"DOCKER_HOST", "CONTAINER_HOST"} and value:
            yield f"an engine, by its variable {name}"
