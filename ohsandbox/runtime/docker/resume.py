"""Resuming a conversation's earlier container as it was created."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.docker import provision
from ohsandbox.runtime.docker.checkpoints import checkpoint_images
from ohsandbox.runtime.docker.config.container_config import ALL_GPUS, CAPABILITIES
from ohsandbox.runtime.docker.config.options import workdir_of
from ohsandbox.runtime.docker.config.resolve import resolve_config
from ohsandbox.runtime.docker.container import Container, EgressRules, how_it_ended
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.engine.own_container import as_we_name
from ohsandbox.runtime.docker.images import engine_images
from ohsandbox.runtime.docker.inventory.docker_inventory import own_record
from ohsandbox.runtime.docker.labels import (
    BINDS_LABEL,
    GIT_LABEL,
    IMAGE_LABEL,
    LABELS_LABEL,
    LEASE_LABEL,
    USER_LABEL,
)
from ohsandbox.runtime.docker.mounts import bind_mounts, caches
from ohsandbox.runtime.docker.mounts.guard_mounts import GuardMount
from ohsandbox.runtime.docker.network import open_network
from ohsandbox.runtime.docker.ownership import lease
from ohsandbox.runtime.docker.sandbox import Sandbox
from ohsandbox.runtime.docker.services.pods import Pod
from ohsandbox.runtime.mount_text import WORKSPACE, Mount
from ohsandbox.runtime.results import ResumeReport
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.docker.config.options import DockerOptions
    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.mounts.bind_mounts import Bind
    from ohsandbox.runtime.docker.ownership.lease import Lease
    from ohsandbox.runtime.docker.provision import Progress
    from ohsandbox.runtime.runtime_settings import NetworkMode

_LIVE_NETWORK = {"", None, "runc", "io.containerd.runc.v2"}
"""OCI runtimes whose processes see it when an interface is replaced; gVisor copies the interfaces at its start."""
_STOPPED = {137, 143}
"""Exit codes of PID 1 after SIGKILL (`DockerRuntime.leave`) and after SIGTERM (monitors.OwnerWatchdog)."""


def resume(
    engine: Engine,
    options: DockerOptions,
    checkpoint_ids: Sequence[str],
    *,
    progress: Progress | None = None,
    on_bound: Callable[[], None] = lambda: None,
    before_services: Callable[[Sandbox], None] = lambda _: None,
) -> tuple[Sandbox, ResumeReport]:
    """Resume the conversation's container, or create one from the newest existing checkpoint.

    on_bound and before_services are called as by `provision.create`.

    Raises:
        SandboxUnavailable: another process uses it, or it cannot be started.
        UsageError: its directory cannot be bound any more; otherwise as `provision.create`.
    """
    found = None if options.conversation is None else _find(engine, options.conversation)
    if found is None:
        checkpoint = _first_existing(engine, checkpoint_ids)
        made = provision.create(
            engine,
            options,
            progress=progress,
            checkpoint=checkpoint,
            on_bound=on_bound,
            before_services=before_services,
        )
        if checkpoint is None:
            return made, ResumeReport("new", (), made.container.name)
        return made, ResumeReport("checkpoint", _other_image(options, made), made.container.name)
    name = str(found["Name"]).lstrip("/")
    held = lease.adopt(str(found["Config"]["Labels"][LEASE_LABEL]))
    if held is None:
        raise SandboxUnavailable(f"Another process uses sandbox {name!r}. End it, or wait until it ends.")
    try:
        adopted, notes = _resume_container(engine, options, found, held, on_bound=on_bound, progress=progress)
        _mount_anew(adopted)
        notes += adopted.end_processes()
        adopted, told = _with_services(adopted, options, before_services)
        notes += told
    except BaseException:
        held.leave()
        raise
    return adopted, ResumeReport("same", tuple(notes), name)


def _other_image(asked: DockerOptions, made: Sandbox) -> tuple[str, ...]:
    """Return a note if the checkpoint is of another image than the one asked for; a build's name is its contents'."""
    if asked.build is not None or made.options.image == asked.image:
        return ()
    name, image = made.container.name, made.options.image
    return (
        f"Sandbox {name} goes on from a checkpoint of image {image}, and {asked.image} was asked for; it is not used.",
    )


def _with_services(
    adopted: Sandbox, asked: DockerOptions, before_start: Callable[[Sandbox], None]
) -> tuple[Sandbox, list[str]]:
    """Return the sandbox with the services that it was created with, all running; and notes."""
    name, held, config = adopted.container.name, adopted.lease, adopted.config
    if held is None or config is None or not (held.record.services or asked.services):
        return adopted, []
    notes = []
    if missing := {one.name for one in asked.services} - {*held.record.services}:
        notes.append(
            f"Sandbox {name} was created without service {', '.join(sorted(missing))}, and does not get it now. "
            f"To change it, remove the sandbox and its files: docker rm -f {name}"
        )
    pod = Pod.find(adopted.container.engine, held.record, owner=config.network_owner)
    if gone := {*held.record.services} - pod.running.keys():
        notes.append(f"Service {', '.join(sorted(gone))} of sandbox {name} was removed from outside, with its files.")
    before_start(adopted._replace(pod=pod, is_resumed=True))
    notes += pod.restart_ended(listening=adopted.listening_ports)
    real = adopted.options.model_copy(update={"services": tuple(one.service for one in pod.running.values())})
    return adopted._replace(pod=pod, options=real), notes


def _find(engine: Engine, conversation: str) -> dict[str, Any] | None:
    """Return the conversation's newest container whose lease is in this state directory."""
    with engine_errors("looking for the conversation's sandbox"):  # the label may name an earlier conversation
        listed = engine.api.containers(all=True, filters={"label": [LEASE_LABEL]})
        ours = [one for one in listed if (record := own_record(one)) and record.conversation == conversation]
        newest = max(ours, key=lambda one: int(one.get("Created", 0)), default=None)
        return None if newest is None else as_we_name(dict(engine.api.inspect_container(newest["Id"])), engine)


def _first_existing(engine: Engine, checkpoint_ids: Sequence[str]) -> str | None:
    for checkpoint in checkpoint_ids:
        with contextlib.suppress(SandboxUnavailable):
            return checkpoint_images.require(engine, checkpoint)
    return None


def _resume_container(
    engine: Engine,
    options: DockerOptions,
    found: dict[str, Any],
    held: Lease,
    *,
    on_bound: Callable[[], None],
    progress: Progress | None,
) -> tuple[Sandbox, list[str]]:
    """Make the container run; return it with notes on what was done and how it differs from the requested options."""
    egress = EgressRules(options.allow if options.network == "open" else ())
    container = Container(engine, str(found["Id"]), name=str(found["Name"]).lstrip("/"), egress=egress)
    owner = open_network.owner_of(found)
    labels = dict(found["Config"].get("Labels") or {})
    with engine_errors("asking the engine for its OCI runtime"):
        default_runtime = "" if options.runtime else str(engine.api.info().get("DefaultRuntime") or "")
    real = _created_options(options, found, labels, default_runtime)
    if owner:
        is_open = open_network.is_open(engine, owner)
        real = real.model_copy(update={"network": "open" if is_open else _closed(options)})
    real = real.model_copy(update={"allow": egress.allow}) if real.network == "open" else real
    if options.build is not None:  # a built image has another name for each content
        options = options.model_copy(update={"image": real.image})
    # older versions accepted more directories, and the contents may have changed
    bind_mounts.vetted(real.workspaces, real.mounts)
    image, platform = str(found["Image"]), f"{found.get('Platform', '?')}/?"
    facts = engine_images.inspect(engine, image) or engine_images.facts_of(found["Config"], image, platform)
    ours = {key: value for key, value in labels.items() if key == "ohsandbox" or key.startswith("ohsandbox.")}
    now = provision.binds_now(real, progress)  # mount sources must exist when the container starts
    on_bound()
    config = resolve_config(real, facts, engine, name=container.name, labels=ours, binds=_binds_of(now, found))
    volume = caches.volume_of(found)
    config = config.model_copy(
        update={
            "workdir": workdir_of(found["Config"]), "network_owner": owner, "cache_volume": volume,
            "labels": {name: labels.get(name, "") for name in config.labels},
        }
    )  # fmt: skip
    afresh = bool(real.writable) and not held.record.keep
    afresh |= bool(owner) and not open_network.is_running(engine, owner)
    afresh |= bool(owner) and real.network == "open" and found["HostConfig"].get("Runtime") not in _LIVE_NETWORK
    notes = [*_ensure_running(container, found["State"], afresh=afresh), *_differences(options, real, container.name)]
    if _is_outdated(engine, options, found):
        notes.append(f"Image {options.image} is another one now; sandbox {container.name} stays on the one it had.")
    container.note_start()
    if real.network == "open":
        container.join_open_network(egress.allow)  # an earlier process may have allowed more
    adopted = Sandbox(container, real, config.user, config.workdir, held, config, facts, exec_env=options.env)
    if config.hardening == "strict":
        provision.copy_ca_bundle(adopted)  # each start gives the container a new tmpfs
    return adopted, notes


def _created_options(
    options: DockerOptions, found: dict[str, Any], labels: dict[str, str], default_runtime: str
) -> DockerOptions:
    """Return the options with the values that the container was created with."""
    host = found["HostConfig"]
    joined = {*((found.get("NetworkSettings") or {}).get("Networks") or {})} or {host.get("NetworkMode")}
    workspaces, others = _mounts(found, labels)
    sizes = [one.get("Hard") for one in host.get("Ulimits") or [] if one.get("Name") == "fsize"]
    limits = {
        "memory_bytes": host.get("Memory"),
        "pids": host.get("PidsLimit"),
        "cpus": (host.get("NanoCpus") or 0) / 1_000_000_000,
    }
    kept = {key: value for key, value in limits.items() if value}
    kept |= {"file_bytes": sizes[0] if sizes else None, "cpuset": host.get("CpusetCpus") or None}
    names = str(labels.get(LABELS_LABEL) or "").split()
    return options.model_copy(
        update={
            "labels": {name: labels[name] for name in names if name in labels},
            "image": labels.get(IMAGE_LABEL) or options.image,
            "user": labels.get(USER_LABEL) or options.user,
            "network": "open" if joined - {"none"} else _closed(options),
            "workspaces": workspaces,
            "mounts": others,
            "git": labels.get(GIT_LABEL) or "rw",
            "limits": options.limits.model_copy(update=kept),
            "profile": _profile_of(host),
            "cache": (options.cache or caches.PROJECT) if caches.volume_of(found) else None,
            "gpus": _gpus_of(host),
            "runtime": runtime if (runtime := str(host.get("Runtime") or "")) != default_runtime else "",
        }
    )


def _profile_of(host: Mapping[str, Any]) -> str | None:
    """Return the profile with which a container was created; None is the default one."""
    if host.get("ReadonlyRootfs"):
        return "strict"
    return "trusted" if len(host.get("CapAdd") or []) > len(CAPABILITIES) else None


def _gpus_of(host: Mapping[str, Any]) -> int | str | None:
    count = next((one.get("Count") for one in host.get("DeviceRequests") or []), None)
    return "all" if count == ALL_GPUS else count or None


def _closed(options: DockerOptions) -> NetworkMode:
    """Return the network mode of a container without an interface; an allowlist exists only in our process."""
    return "none" if options.network == "open" else options.network


def _binds(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the bind mounts of a container by their paths in it."""
    return {str(one.get("Destination")): one for one in found.get("Mounts") or [] if one.get("Type") == "bind"}


def _mounts(found: dict[str, Any], labels: dict[str, str]) -> tuple[tuple[Mount, ...], tuple[Mount, ...]]:
    """Return the workspaces and the mounts that the container was created with, without those nested in them."""
    binds = _binds(found)
    try:
        places = load_json(labels.get(BINDS_LABEL) or json.dumps({"workspaces": [WORKSPACE]}))
        workspaces, others = ([str(one) for one in places.get(name, [])] for name in ("workspaces", "mounts"))
    except (ValueError, AttributeError, TypeError):
        workspaces, others = [WORKSPACE], []

    def made(targets: Sequence[str]) -> tuple[Mount, ...]:
        there = [(target, binds[target]) for target in targets if target in binds]
        return tuple(
            Mount(source=str(one.get("Source")), target=target, read_only=not one.get("RW", True))
            for target, one in there
        )

    return made(workspaces), made(others)


def _binds_of(now: Sequence[Bind], found: dict[str, Any]) -> tuple[Bind, ...]:
    """Return the binds as they are now, with the nested mounts with which the container was created."""
    return tuple(bind._replace(guard=_guard_of(found, bind)) for bind in now)


def _guard_of(found: dict[str, Any], outer: Bind) -> tuple[GuardMount, ...]:
    """Return the nested mounts of a bind with which the container was created."""
    nested = []
    for target, bind in sorted(_binds(found).items()):
        path, source = target.removeprefix(f"{outer.target}/"), str(bind.get("Source"))
        if path != target:
            own = "" if source == f"{outer.source}/{path}" else source
            nested.append(GuardMount(path, read_only=not bind.get("RW", True), source=own))
    return tuple(nested)


def _ensure_running(container: Container, state: dict[str, Any], *, afresh: bool) -> list[str]:
    """Make the container run. afresh: kill its processes first, since its last owner's end may be stopping them."""
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


def _differences(asked: DockerOptions, real: DockerOptions, name: str) -> list[str]:
    """Return a line for each requested option whose value differs in the container; some options are not compared."""
    pairs = [
        ("image", asked.image, real.image),
        ("network", asked.network, real.network),
        ("workspace", _named(asked.workspaces), _named(real.workspaces)),
        ("mounts", _named(asked.mounts), _named(real.mounts)),
        ("--git", asked.git if real.writable else real.git, real.git),
        ("user", asked.user or real.user, real.user),
        ("memory", f"{asked.limits.memory_bytes >> 20} MiB", f"{real.limits.memory_bytes >> 20} MiB"),
        ("processors", asked.limits.cpus or real.limits.cpus, real.limits.cpus),
        ("cpuset", asked.limits.cpuset or real.limits.cpuset or "any", real.limits.cpuset or "any"),
        ("processes", asked.limits.pids, real.limits.pids),
        ("profile", asked.hardening or real.hardening or "usual", real.hardening or "usual"),
        ("GPUs", asked.gpus or real.gpus or 0, real.gpus or 0),
        ("OCI runtime", asked.runtime or real.runtime or "the engine's", real.runtime or "the engine's"),
        ("file size", asked.limits.file_bytes or "any", real.limits.file_bytes or "any"),
    ]
    remedy = f"To change it, remove the sandbox and its files: docker rm -f {name}"
    return [
        f"Sandbox {name} has {what} {had}, and {wanted} was asked for; it is not changed. {remedy}"
        for what, wanted, had in pairs
        if wanted != had
    ]


def _named(mounted: Sequence[Mount]) -> str:
    if len(mounted) == 1 and mounted[0].target == WORKSPACE and not mounted[0].read_only:
        return mounted[0].source
    return ", ".join(map(str, mounted)) or "none"


def _is_outdated(engine: Engine, options: DockerOptions, found: dict[str, Any]) -> bool:
    """Whether the image's name now means another image; a container made from a checkpoint is never outdated."""
    labels = found["Config"].get("Labels") or {}
    now = engine_images.inspect(engine, options.image)
    if now is None or options.image != labels.get(IMAGE_LABEL) or now.id == found["Image"]:
        return False
    return _first_existing(engine, [str(found["Image"])]) is None


def _mount_anew(found: Sandbox) -> None:
    """Restart a container whose workspace has lost a mount: unlinking a file on the host removes its mount."""
    try:
        provision.look_at_binds(found)
    except SandboxUnavailable:
        found.container.restart()
        found.script(provision.PRIVATE_DIR_FOR_ALL)
        provision.look_at_binds(found)
