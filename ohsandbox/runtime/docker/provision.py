"""Creating a sandbox from an image or a checkpoint, setting it up, and restoring a checkpoint in it."""

from __future__ import annotations

import contextlib
import logging
import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ohsandbox.errors import (
    EngineUnavailable,
    OhsandboxError,
    SandboxGone,
    SandboxPaused,
    SandboxRefused,
    SandboxUnavailable,
    ToolError,
    UsageError,
)
from ohsandbox.private_files import read_regular
from ohsandbox.runtime.docker import container as containers
from ohsandbox.runtime.docker.channel import ProcessRequest
from ohsandbox.runtime.docker.checkpoints import checkpoint_images
from ohsandbox.runtime.docker.config.container_config import MAPPED_HOME, PRIVATE_DIR
from ohsandbox.runtime.docker.config.options import CA_FILE_VARIABLES, CA_PATH
from ohsandbox.runtime.docker.config.resolve import resolve_config
from ohsandbox.runtime.docker.container import EgressRules
from ohsandbox.runtime.docker.images import engine_images
from ohsandbox.runtime.docker.labels import CONVERSATION_LABEL, LABEL, LEASE_LABEL, WORKSPACE_LABEL
from ohsandbox.runtime.docker.mounts import bind_mounts, caches, guard_mounts
from ohsandbox.runtime.docker.mounts.caches import CACHE_DIR
from ohsandbox.runtime.docker.mounts.mount_policy import is_root
from ohsandbox.runtime.docker.network import open_network
from ohsandbox.runtime.docker.ownership import lease
from ohsandbox.runtime.docker.sandbox import Sandbox
from ohsandbox.runtime.docker.services import service_inventory
from ohsandbox.runtime.files import transfer
from ohsandbox.runtime.mount_text import WORKSPACE

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.docker.channel import DockerChannel
    from ohsandbox.runtime.docker.checkpoints.setups import Setup
    from ohsandbox.runtime.docker.config.container_config import ContainerConfig
    from ohsandbox.runtime.docker.config.options import DockerOptions
    from ohsandbox.runtime.docker.container import Container
    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.network.network_pool import NetworkPool
    from ohsandbox.runtime.docker.services.service_images import ServiceImage
    from ohsandbox.runtime.results import PullProgress

    Progress = Callable[[PullProgress], None]

log = logging.getLogger(__name__)

_MAPPED_HOME = """
uid=$1 gid=$2 name=$3 home=$4
known=
while IFS=: read -r n x u rest; do
    [ "$u" = "$uid" ] && known=1
    [ "$n" = "$name" ] && [ "$u" != "$uid" ] && name=sandbox$uid
done </etc/passwd
[ "$known" ] || printf '%s:x:%s:%s::%s:/bin/sh\\n' "$name" "$uid" "$gid" "$home" >>/etc/passwd
known=
while IFS=: read -r n x g rest; do [ "$g" = "$gid" ] && known=1; done </etc/group
[ "$known" ] || printf '%s:x:%s:\\n' "$name" "$gid" >>/etc/group
mkdir -p "$home" && chmod 1777 "$home" || exit
"""
"""Adds a passwd and group entry, so that `whoami` works, and a home directory that the user can write. Root without
capabilities can still write files of uid 0. Mode 1777, since this root cannot chown."""
_LOOK = """
cat /proc/self/mountinfo 2>/dev/null || while read -r n; do printf '%s\\n' "$n"; done </proc/self/mountinfo
echo
command -v ls >/dev/null || exit 0
for n; do ls -di "$n" 2>/dev/null || echo ?; done
"""
"""Prints the mounts, an empty line, and the inode of each argument. Uses cat, which takes 5 ms: a shell reads byte by
byte, 0.3 s for 900 mounts."""
_OWN_WORKDIR = """
workdir=$1 user=$2 home=$3 uid=${2%%:*}
[ -e "$workdir" ] || mkdir -p "$workdir"
[ "$(ls -A "$workdir")" ] || chown "$user" "$workdir"
case $uid in *[!0-9]*) exit 0 ;; esac
while IFS=: read -r n x u rest; do [ "$u" = "$uid" ] && exit 0; done </etc/passwd
printf 'sandbox:x:%s:0::%s:/bin/sh\\n' "$uid" "$home" >>/etc/passwd
mkdir -p "$home" && chown "$user" "$home"
"""
"""Creates the working directory and gives it to the user; one that is not empty belongs to the image and keeps its
owner. A bare id without a passwd entry would have HOME=/ and no name."""
PRIVATE_DIR_FOR_ALL = f"chmod 1777 {PRIVATE_DIR}"
"""runc gives a tmpfs the mode of the directory below it, which has mode 0755 in a committed image (engine 20.10)."""
_WRITE_FILE = 'mkdir -p "${1%/*}" && cat >"$1" && chmod 644 "$1"'
"""Writes a file from standard input, since the archive API is not used on running containers."""
_WRITE_CA_BUNDLE = (
    'mkdir -p "${1%/*}" && cat >"$1" && echo "ca_certificate = $1" >"$1.wgetrc" && '
    'echo "Acquire::https::CaInfo \\"$1\\";" >"$1.apt" && chmod 644 "$1" "$1.wgetrc" "$1.apt"'
)
_GIT_CONFIG = b"""[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
"""


def create(
    engine: Engine,
    options: DockerOptions,
    *,
    progress: Progress | None = None,
    checkpoint: str | None = None,
    cancel: threading.Event | None = None,
    networks: NetworkPool | None = None,
    on_bound: Callable[[], None] = lambda: None,
    before_services: Callable[[Sandbox], None] = lambda _: None,
) -> Sandbox:
    """Create, start and set up a container; on any failure it is removed.

    on_bound is called when the bound directories are prepared, before anything of the sandbox runs; before_services
    with the sandbox before its services start.

    checkpoint is the id of a checkpoint to start from, instead of the image or checkpoint of options. Setting cancel
    stops a pull or build. networks is the pool with the namespace to join; None: the sandbox gets its own.

    Raises:
        ImageUnavailable: the image cannot be pulled or cannot run, or the checkpoint does not exist.
        UsageError: the name is taken, a limit is refused, or the workspace cannot be bound on this engine.
        CallCancelledError: cancel was set before the image was available.
    """
    _remove_orphans(engine)
    checkpoint = checkpoint or options.checkpoint
    options, facts, setup = _image(engine, options, checkpoint, progress=progress, cancel=cancel)
    if setup is not None and setup.checkpoint is not None:
        checkpoint, facts = setup.checkpoint, checkpoint_images.facts(engine, setup.checkpoint)
    beside = _service_images(engine, options, checkpoint, progress=progress, cancel=cancel)
    name = options.name or f"ohsandbox-{secrets.token_hex(4)}"
    has_own_network = networks is None and (options.network == "open" or bool(beside))
    held = lease.acquire(
        container=name, engine=engine.address.url, image=options.image, conversation=options.conversation,
        keep=options.keep, workspaces=options.writable,
        network_owner=open_network.owner_name(name) if has_own_network else None,
        services=tuple(beside),
    )  # fmt: skip
    container: Container | None = None
    network = _JoinedNetwork(engine, held, networks)
    try:
        owner, egress = network.make(options)
        binds = binds_now(options, progress)
        on_bound()
        config = _config(engine, options, facts, held, binds, network_owner=owner)
        container = containers.create(engine, config, egress=egress, image_id=facts.id)
        made = Sandbox(container, options, config.user, config.workdir, held, config, facts)
        prepare(made, from_checkpoint=checkpoint is not None)
        if options.copy_of is not None and checkpoint is None:
            made = copy_in(made, Path(options.copy_of), everything=options.copies_all)
        made = _with_services(made, beside, before_services, progress=progress, cancel=cancel)
        made = made._replace(setup=None if setup is None else setup.begun())
    except BaseException:
        if container is not None:
            container.force_remove()
        network.undo()
        held.release()
        release_workspace(engine, options)
        raise
    return made


def _image(
    engine: Engine,
    options: DockerOptions,
    checkpoint: str | None,
    *,
    progress: Progress | None,
    cancel: threading.Event | None,
) -> tuple[DockerOptions, engine_images.ImageFacts, Setup | None]:
    """Return the options with the name of the image in use, the facts of image or checkpoint, and the image's setup."""
    if checkpoint is not None:
        facts = checkpoint_images.facts(engine, checkpoint)
        return options.model_copy(update={"image": facts.checkpoint_of or options.image}), facts, None
    if options.build is not None:
        from ohsandbox.runtime.docker.images import build  # noqa: PLC0415 - most images exist

        name = build.ensure(engine, options.build, progress=progress, cancel=cancel)
        options = options.model_copy(update={"image": name})
    facts = engine_images.ensure(engine, options.image, platform=options.platform, progress=progress, cancel=cancel)
    # a checkpoint lacks what a setup writes into a service's database or into other directories of this machine
    has_setup = options.setup_key is not None and not options.services and {*options.writable} <= {options.workspace}
    if not has_setup:
        return options, facts, None
    from ohsandbox.runtime.docker.checkpoints import setups  # noqa: PLC0415 - few sandboxes have a setup

    return options, facts, setups.find(engine, options, facts)


def _remove_orphans(engine: Engine) -> None:
    """Remove what processes that were killed have left on this engine."""
    if lease.orphans_here(engine):
        from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory  # noqa: PLC0415 - rarely needed

        DockerInventory(engine).collect_garbage(keep_networks=True)


def _service_images(
    engine: Engine,
    options: DockerOptions,
    checkpoint: str | None,
    *,
    progress: Progress | None,
    cancel: threading.Event | None,
) -> Mapping[str, ServiceImage]:
    """Return the images of the services by name."""
    if not options.services:
        return {}
    from ohsandbox.runtime.docker.services.service_images import find_images  # noqa: PLC0415 - few sandboxes have services

    return find_images(engine, options.services, checkpoint=checkpoint, progress=progress, cancel=cancel)


def _config(
    engine: Engine,
    options: DockerOptions,
    facts: engine_images.ImageFacts,
    held: lease.Lease,
    binds: tuple[bind_mounts.Bind, ...],
    *,
    network_owner: str,
) -> ContainerConfig:
    """Return the configuration of a new container, with our labels."""
    labels = {LABEL: "1", LEASE_LABEL: held.id}
    if options.writable:
        labels[WORKSPACE_LABEL] = " ".join(map(lease.workspace_digest, options.writable))
    if options.conversation:
        labels[CONVERSATION_LABEL] = options.conversation
    name = held.record.container
    config = resolve_config(options, facts, engine, name=name, labels=labels, binds=binds)
    return caches.attach(engine, options, config.model_copy(update={"network_owner": network_owner}))


def _with_services(
    made: Sandbox,
    beside: Mapping[str, ServiceImage],
    before_start: Callable[[Sandbox], None],
    *,
    progress: Progress | None,
    cancel: threading.Event | None,
) -> Sandbox:
    """Start the services of a new sandbox from the images in beside; return the sandbox with them."""
    if not beside or made.config is None or made.lease is None:
        return made
    engine, owner = made.container.engine, made.config.network_owner
    from ohsandbox.runtime.docker.services.pods import Pod  # noqa: PLC0415 - few sandboxes have services

    pod = Pod(engine, made.lease.id, sandbox=made.container.name, owner=owner)
    made = made._replace(pod=pod)
    before_start(made)
    pod.start(beside, made.options, listening=made.listening_ports, progress=progress, cancel=cancel)
    return made


class _JoinedNetwork:
    """The network namespace that a new sandbox joins: that of its own owner, or of one from a pool."""

    def __init__(self, engine: Engine, held: lease.Lease, networks: NetworkPool | None) -> None:
        self._engine, self._held, self._networks, self._owner = engine, held, networks, ""

    def make(self, options: DockerOptions) -> tuple[str, EgressRules]:
        """Return the owner's id, connected if the network is open, and its rules; "" if it joins no namespace."""
        name = self._held.record.network_owner
        allow = options.allow if options.network == "open" else ()
        if self._networks is not None:
            self._owner = self._networks.acquire(self._engine)
        elif name is not None:
            self._owner = open_network.make_owner(
                self._engine, name=name, lease_id=self._held.id, hosts=self._held.record.services
            )
            if allow:
                open_network.set_rules(self._engine, self._owner, allow)
        before_joining = None if self._networks is None else partial(self._networks.open, self._owner)
        if options.network == "open":
            if before_joining is not None:
                before_joining()
            open_network.connect(self._engine, self._owner, allow)
        return self._owner, EgressRules(allow, "" if self._owner else None, before_joining)

    def undo(self) -> None:
        """Return the owner to its pool, or remove it."""
        if self._networks is None:
            _release_network(self._engine, self._held)
        elif self._owner:
            self._networks.give_back(self._engine, self._owner)


def _release_network(engine: Engine, held: lease.Lease) -> None:
    """Remove the services of a sandbox that is gone, and the container that owns its network."""
    service_inventory.remove(engine, held.record)
    if held.record.network_owner is not None:
        open_network.remove_owner(engine, held.record.network_owner, held.id)


def binds_now(options: DockerOptions, progress: Progress | None = None) -> tuple[bind_mounts.Bind, ...]:
    """Return the binds, with nested mounts for their present contents; creates missing mount sources.

    Files that have names outside of the binds are separated from them, if the options say so.
    """
    return bind_mounts.binds_of(
        options.bound, options.git, options.hard_links, free_bytes=options.limits.free_bytes, progress=progress
    )


def release_workspace(engine: Engine, options: DockerOptions, config: ContainerConfig | None = None) -> None:
    """Remove what the guard created on this machine where no sandbox uses it any more.

    config holds the guarded paths; None searches the whole workspace. Files that cannot be removed remain; they are
    harmless, and their contents state their purpose.
    """
    if options.git != "guarded" or not options.writable:
        return
    from ohsandbox.runtime.docker.mounts import guard  # noqa: PLC0415 - only a bound directory is guarded
    from ohsandbox.runtime.docker.ownership import tree_uses  # noqa: PLC0415 - only a bound directory has uses

    guarded = {} if config is None else {bind.source: [mount.path for mount in bind.guard] for bind in config.binds}
    with contextlib.suppress(OhsandboxError):
        uses = tree_uses.find(engine)
        for directory in options.writable:
            guard.release(directory, guarded.get(directory), uses=uses)


def prepare(made: Sandbox, *, from_checkpoint: bool) -> None:
    """Set up what the create call cannot express; each part costs one exec, so it runs only if needed."""
    if from_checkpoint:
        made.script(PRIVATE_DIR_FOR_ALL)
    config = made.config
    if config is not None and config.identity is not None:
        uid, gid, name, _ = config.identity
        arguments = str(uid), str(gid), name, MAPPED_HOME
        home = "" if config.hardening == "strict" else _MAPPED_HOME  # strict: the home is a tmpfs and /etc is read-only
        look_at_binds(made, f"{home}\nshift {len(arguments)}\n", *arguments)
    elif config is not None:
        # strict: only existing directories can be written
        if config.hardening != "strict" and not is_root(config.user):
            made.script(_OWN_WORKDIR, made.workdir, made.user, MAPPED_HOME)
        look_at_binds(made)
    copy_ca_bundle(made)
    if config is not None and config.cache_volume:
        _set_up_cache(made)
    if made.options.platform is not None:
        _verify_platform(made, made.options.platform)


_MACHINES = {"386": 3, "arm": 40, "ppc64le": 21, "s390x": 22, "amd64": 62, "arm64": 183, "riscv64": 243, "loong64": 258}
"""e_machine of an ELF file (elf(5)), by Go's name of the architecture."""


def _verify_platform(made: Sandbox, platform: str) -> None:
    """Refuse a sandbox whose shell is a program for another processor.

    Raises:
        SandboxRefused: the shell is for another processor, or cannot be read.
    """
    head = made.script("dd if=/proc/self/exe bs=20 count=1 2>/dev/null").encode("utf-8", "surrogateescape")
    order: Literal["big", "little"] = "big" if head[5:6] == b"\x02" else "little"
    machine = int.from_bytes(head[18:20], order) if head.startswith(b"\x7fELF") else None
    if machine is None or machine != _MACHINES.get(platform.split("/")[1], machine):
        raise SandboxRefused(
            f"Sandbox {made.container.name!r} is not for {platform}: its programs are for ELF machine {machine}. "
            "Name an image of that platform."
        )


def look_at_binds(made: Sandbox, before: str = "", *arguments: str) -> None:
    """Check from inside that the vetted binds are mounted, and guarded as planned.

    before is a script that runs first in the same process; it must consume the arguments.

    Raises:
        SandboxUnavailable: a bind or a guard is missing or differs.
    """
    binds = () if made.config is None else made.config.binds
    if not (binds or before):
        return
    mountinfo, _, inodes = made.script(before + _LOOK, *arguments, *(bind.target for bind in binds)).partition("\n\n")
    if made.config is None or made.config.own_kernel:  # gVisor and Kata have their own mount table and inodes
        return
    for bind in binds:
        guard_mounts.verify_mounts(bind.guard, mountinfo, target=bind.target, read_only=bind.read_only)
    if made.container.engine.has_our_kernel():
        bind_mounts.verify_identity(binds, inodes)


def _set_up_cache(made: Sandbox) -> None:
    """Create the directories of package tools in the cache's volume, and configure apt and cargo to use theirs."""
    home = MAPPED_HOME if made.config is not None and made.config.identity is not None else ""
    bundle = CA_PATH if made.options.ca_bundle else ""
    made.script(caches.SET_UP, CACHE_DIR, CA_FILE_VARIABLES["APT_CONFIG"], bundle, home, caches.SHARE_APT)


def copy_ca_bundle(target: Sandbox) -> None:
    """Copy the caller's CA bundle, if any, to where the variables of `DockerOptions.ca_environment` point."""
    if target.options.ca_bundle:
        bundle = read_regular(Path(target.options.ca_bundle).expanduser(), follow=True)
        target.script(_WRITE_CA_BUNDLE, CA_PATH, stdin=bundle)


def copy_in(made: Sandbox, source: Path, *, everything: bool) -> Sandbox:
    """Copy a directory's files to /workspace, with its repository's history and without its configuration."""

    def open_plain(argv: Sequence[str]) -> DockerChannel:
        return made.open(ProcessRequest(argv, workdir="/"))  # no terminal, which would change the bytes

    from ohsandbox.runtime.workspace import copy_selection  # noqa: PLC0415 - few sandboxes have a copy

    chosen = copy_selection.select_files(source, everything=everything)
    try:
        special = transfer.upload(open_plain, source, WORKSPACE, transfer.TransferLimits(), only=chosen.paths)
    except ToolError as error:
        raise UsageError(
            f"The workspace {str(source)!r} cannot be copied: {error} Name another, or leave --copy out."
        ) from error
    if chosen.has_git:
        made.script(_WRITE_FILE, f"{WORKSPACE}/.git/config", stdin=_GIT_CONFIG, user=None)
    return made._replace(left_out=chosen.left_out | dict.fromkeys(special, "neither file, directory nor symlink"))


def restore(sandbox: Sandbox, checkpoint: str, *, before_services: Callable[[Sandbox], None]) -> Sandbox:
    """Return the same sandbox in a new container of the same name with the checkpoint's files.

    before_services is called with the sandbox, and its new services before they start.

    Raises:
        UsageError: the container is an attached one.
        SandboxUnavailable: the checkpoint does not exist or the engine failed; nothing has changed.
    """
    before = sandbox.container
    if sandbox.config is None:
        raise UsageError(
            f"Container {before.name!r} was joined, so it is not ours to replace. Its owner can restore it."
        )
    config = sandbox.config.model_copy(update={"binds": binds_now(sandbox.options)})
    anew = sandbox._replace(config=config)

    def prepare_again(container: Container) -> None:
        if config.network == "open" and not config.network_owner:
            container.join_open_network(before.egress.allow)
        prepare(anew._replace(container=container), from_checkpoint=True)

    def restored() -> Container:
        return checkpoint_images.restore(before, config, checkpoint, prepare=prepare_again)

    if sandbox.pod is None:
        return anew._replace(container=restored())
    listening = sandbox.listening_ports
    with sandbox.pod.replaced(
        checkpoint, sandbox.options, listening=listening,
        before_start=lambda new: before_services(sandbox._replace(pod=new)),
    ) as pod:  # fmt: skip
        return anew._replace(container=restored(), pod=pod)


def revive(sandbox: Sandbox) -> str:
    """Start a container that is not running again with its files; return what happened, as a sentence.

    Raises:
        SandboxUnavailable: it is gone or paused, or does not start any more.
        UsageError, SandboxRefused: a directory or file that was bound cannot be bound any more.
    """
    if sandbox.config is not None:
        binds_now(sandbox.options)  # creates missing mount sources before the start
    container = sandbox.container
    try:
        notice = container.revive()
    except (SandboxGone, SandboxPaused, EngineUnavailable):
        raise
    except SandboxUnavailable as error:
        raise SandboxUnavailable(
            f"Sandbox {container.name!r} does not start any more: {error.fact} Its files are kept, but a program that "
            "its start needs was removed or replaced. Go back with `ohsandbox undo`, or make a new sandbox."
        ) from error
    if sandbox.config is not None:
        with contextlib.suppress(SandboxUnavailable):  # the next call reports why no process starts
            sandbox.script(PRIVATE_DIR_FOR_ALL)
            if sandbox.config.hardening == "strict":
                copy_ca_bundle(sandbox)
    return notice


def dispose(gone: Sandbox, *, is_left: bool, networks: NetworkPool | None) -> None:
    """Remove the container of a runtime that is closed, unless its options keep it, or it is left for `resume`.

    If the engine is gone, the failure is only logged: the lease file stays, and `gc` removes the container later.
    """
    options, engine, held = gone.options, gone.container.engine, gone.lease
    stays = options.keep or is_left
    try:
        if not stays:
            if networks is None or gone.config is None:
                gone.container.force_remove()
            else:
                networks.give_back(engine, gone.config.network_owner, gone.container.force_remove)
            if held is not None:
                _release_network(engine, held)
        elif not options.keep and options.writable:
            gone.container.kill()  # ends processes that could still change the user's files
    except SandboxUnavailable as error:
        log.warning("sandbox %s is left behind; `ohsandbox gc` removes it: %s", gone.container.name, error)
        if held is not None:
            held.abandon()
        return
    if held is not None:
        held.leave() if stays else held.release()
    release_workspace(engine, options, gone.config)
