"""`DockerRuntime`: a sandbox in a container of a Docker engine."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeVar, get_args

from ohsandbox.arguments import suggests_names, wrong
from ohsandbox.errors import (
    UsageError,
)
from ohsandbox.runtime.aio import waited
from ohsandbox.runtime.docker import provision
from ohsandbox.runtime.docker.checkpoints import checkpoint_images
from ohsandbox.runtime.docker.config import options
from ohsandbox.runtime.docker.config.container_config import CONNECTOR_DIR
from ohsandbox.runtime.docker.container_runtime import ContainerRuntime
from ohsandbox.runtime.docker.monitoring import disk
from ohsandbox.runtime.docker.monitoring.monitors import SandboxMonitors
from ohsandbox.runtime.docker.mounts.bind_mounts import moved
from ohsandbox.runtime.docker.network import container_network
from ohsandbox.runtime.docker.network.container_network import ContainerNetwork
from ohsandbox.runtime.mount_text import Mount
from ohsandbox.runtime.process.invocation import check_call
from ohsandbox.runtime.results import ResumeReport
from ohsandbox.runtime.runtime_settings import NetworkMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.network.audit import NetworkDecision
    from ohsandbox.runtime.build_options import Build
    from ohsandbox.runtime.docker.config.container_config import SandboxLimits
    from ohsandbox.runtime.docker.config.options import Profile
    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.mounts.guard_mounts import Git, HardLinks
    from ohsandbox.runtime.docker.network.network_pool import NetworkPool
    from ohsandbox.runtime.docker.sandbox import Sandbox
    from ohsandbox.runtime.results import Checkpoint, PullProgress, ResourceUsage
    from ohsandbox.runtime.service_options import Service

T = TypeVar("T")
log = logging.getLogger(__name__)

Workspace = str | os.PathLike[str] | Mount
"""A directory of this machine; a text may end in ":ro"."""


class DockerRuntime(ContainerRuntime):
    """A sandbox in a container: any image with a POSIX shell at /bin/sh, nothing installed in it.

    The constructor only checks its arguments; `start` (or `with`) creates the container, `close` removes it.

    Args:
        image: the image's name; it is pulled if missing. Default: python:3.12.
        env: variables for every process, in addition to the image's; together at most 4,096 and 512 KiB.
        user: name or id for every process; default: the image's user, or with `workspace` the calling user.
        workdir: working directory of processes; created if missing. Default: the image's, or /workspace.
        workspace: a directory of this machine, bound read-write at /workspace; files created there belong to you.
            "DIR:ro" is bound read-only. Of several, all but the first are at /workspaces/NAME; a `Mount` names its own
            place.
        same_path: workspaces have the same path in the sandbox as on this machine.
        mounts: other directories, or read-only files, of this machine, each as "SOURCE:TARGET", "SOURCE:TARGET:ro" or a
            `Mount`. They are checked and guarded like workspaces; reports of changes, diff and undo leave them out.
        copy: copy the files of workspace to /workspace instead of binding it. Files that git ignores and files named
            like secrets are left out (see `left_out`); "all" includes them.
        git: protection of the workspace against the sandbox: "guarded" (commits work; configuration, hooks and info of
            its repositories, and the files that editors and agents run, are read-only; the default), "ro" (repositories
            are read-only), "rw" (none). Empty `hooks`, `info`, `config.worktree` and a `commondir` are created in a
            repository that lacks them.
        hard_links: files in bound directories that can be written and that have other names outside of them, as uv and
            pnpm link them to their caches. "separate" (the default) replaces each by a copy of its own before the
            start, so that the sandbox changes nothing outside; "keep" leaves them as they are.
        network: "none" (the default); "allowlist" for only the hosts of allow; or "open" for the public addresses of
            IPv4 and those of allow.
        allow: with the allowlist, which it implies, hosts that may be reached over HTTPS and HTTP: "host", "*.host"
            (all below it), "host:port", or "packages", the package registries of the caller's own tools; see `allow`.
            With the network open, further addresses or ranges (10.0.0.0/8, 192.168.1.5:8080), including this machine's.
        credentials: keys that stay outside the sandbox: "HOST=env:NAME" (with ",header:NAME" or ",basic:USER" instead
            of a bearer token), or a word such as "github" or "anthropic". They are added to requests to that host
            outside, and the host is allowed; the sandbox has a placeholder.
        expose_host: ports of this machine's loopback that the sandbox reaches at 127.0.0.1:PORT from its start on; see
            `expose_host()`.
        profile: "strict": the root file system is read-only (/tmp, /workspace and the home are a tmpfs each), no
            process is root or has a capability. "trusted": setuid programs such as sudo work, and root has the engine's
            default capabilities; not with a bound workspace. "contained" and "mapped" follow from workspace.
        limits: memory, processors, processes, disk.
        name: the container's name; default: ohsandbox- and a random word.
        keep: `close` and `gc` leave the container, and its processes keep running when this process dies; an argument
            of `close` overrides it.
        attach: name or id of a running container to join instead; it is never removed, started or changed. It excludes
            options of a new container: image, build, workspace, copy, network, limits, name, labels, ...
        ca_bundle: a PEM file that common tools in the sandbox trust.
        progress: called while an image is pulled or built, or hard-linked files of a workspace are copied.
        runtime: an OCI runtime of the engine, such as "runsc".
        cache: "project" keeps downloads of pip, uv, npm, apt and cargo for other sandboxes of this workspace, image and
            user; another word names a cache that sandboxes share. They must trust each other: files that one leaves
            there run in the next.
        platform: the image's platform, such as "linux/arm64"; default: the engine's.
        gpus: a number of NVIDIA GPUs, or "all"; the engine needs NVIDIA's Container Toolkit.
        conversation: an id that `ps` shows, and by which `resume` finds the container.
        checkpoint: id of a checkpoint; the sandbox starts with its files instead of the image's.
        labels: the container's labels, by which `list_sandboxes` finds it; names that begin with `ohsandbox` are ours.
        build: a directory with a Dockerfile, or a `Build`, instead of image: the engine builds it at the start, with
            network and outside of the limits, unless an image with the same content exists.
        services: further containers in the sandbox's network, such as databases: they are ready before the first
            process and removed with the sandbox.
        setup_key: a text that identifies everything on which your setup depends in addition to the image and these
            arguments, such as its commands and a hash of the files that they read. A sandbox starts with the files that
            `keep_setup` kept for this key, user, image and workspace (`has_setup`); they are used for two weeks.

    Raises:
        UsageError: an argument or a combination of arguments is invalid.
    """

    @suggests_names
    def __init__(
        self,
        image: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        workdir: str | None = None,
        workspace: Workspace | Sequence[Workspace] | None = None,
        same_path: bool = False,
        mounts: Sequence[str | Mount] = (),
        copy: bool | Literal["all"] = False,
        git: Git | None = None,
        hard_links: HardLinks | None = None,
        network: NetworkMode | None = None,
        allow: Sequence[str] | None = None,
        credentials: Sequence[str] = (),
        expose_host: Sequence[int] = (),
        profile: Profile | None = None,
        limits: SandboxLimits | None = None,
        name: str | None = None,
        keep: bool | None = None,
        attach: str | None = None,
        ca_bundle: str | os.PathLike[str] | None = None,
        progress: Callable[[PullProgress], None] | None = None,
        runtime: str = "",
        cache: str | None = None,
        platform: str | None = None,
        gpus: int | Literal["all"] | None = None,
        conversation: str | None = None,
        checkpoint: str | None = None,
        labels: Mapping[str, str] | None = None,
        build: Build | str | os.PathLike[str] | None = None,
        services: Sequence[Service] = (),
        setup_key: str | None = None,
    ) -> None:
        super().__init__()
        check_call(env=env, user=user or None)  # "" means the image's user, for example of a container that was resumed
        if progress is not None and not callable(progress):
            raise wrong("progress", progress, "Give a function that takes a PullProgress.")
        self._network = ContainerNetwork(
            self, lambda: self._options, credentials=credentials, ca_bundle=ca_bundle, given=env or {}
        )
        self._on_connection = self._network.record_connection
        self.outside_secrets = self._network.secrets_outside
        self.give_secrets(self.secrets)
        self._options = options.from_arguments(
            image=image, env=env, user=user, workdir=workdir, workspace=workspace, same_path=same_path, mounts=mounts,
            copy=copy, git=git, hard_links=hard_links, network=network,
            allow=self._network.with_credential_hosts(allow), credentials=[*credentials], expose_host=expose_host,
            profile=profile, limits=limits, name=name, keep=keep, attach=attach, ca_bundle=ca_bundle,
            runtime=runtime, cache=cache, platform=platform, gpus=gpus, conversation=conversation,
            checkpoint=checkpoint, labels=labels, build=build, services=tuple(services), setup_key=setup_key,
        )  # fmt: skip
        self.ends_processes = not (keep or attach)
        self.private_processes = not attach
        self.connector_dir = None if attach else CONNECTOR_DIR
        self._progress = progress
        self._monitors = SandboxMonitors(self)

    # --- facts ---

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether checkpoints are possible: not for an attached container, nor if all files are on a tmpfs."""
        only_tmpfs = self._options.profile == "strict" and self._options.workspace is None
        return not (self._options.attach or only_tmpfs)

    @property
    def has_setup(self) -> bool:
        """Whether the sandbox started with files that `keep_setup` kept under its `setup_key`; known after `start`."""
        setup = self._known.setup if self._known else None
        return setup is not None and setup.checkpoint is not None

    @property
    def host_workspace(self) -> Path | None:
        """The first directory that is bound read-write as a workspace."""
        return next(iter(self.host_workspaces.values()), None)

    @property
    def host_workspaces(self) -> Mapping[str, Path]:
        """The directories bound read-write as workspaces, by their paths in the sandbox."""
        return {one.target: Path(one.source) for one in self._options.workspaces if not one.read_only}

    @property
    def workspace_notes(self) -> tuple[str, ...]:
        """See `Runtime.workspace_notes`."""
        return tuple(self._known.notes()) if self._known else ()

    @property
    def copied_workspace(self) -> Path | None:
        """The directory whose files were copied to /workspace."""
        return Path(self._options.copy_of) if self._options.copy_of else None

    @property
    def left_out(self) -> Mapping[str, str]:
        """Files of the copied directory that were left out, and the reason; known once the container is created."""
        return self._known.left_out if self._known else {}

    def describe(self) -> dict[str, str]:
        """Return facts of the sandbox for a system prompt or a log, name to value."""
        if (known := self._known) is None:
            image = self._options.attach or self._options.image
            return {"runtime": "a Docker container", "image": image, "user": "root", "working directory": ""}
        told = known.describe()
        if "network" in told and (listed := self._network.describe()) is not None:
            told["network"] = listed
        return told | ({"not enforced here": ", ".join(self._unenforced)} if self._unenforced else {})

    # --- life cycle ---

    def start(self) -> Self:
        """Create the container, or join the one to attach to; calling it again does nothing.

        Raises:
            EngineUnavailable: no engine answers.
            ImageUnavailable: the image cannot be pulled or cannot run.
            SandboxUnavailable: the engine failed, or the sandbox is less strict than requested.
            UsageError: the container to attach to does not exist, the name is taken, a limit is refused.
        """

        def join_or_make(engine: Engine) -> Sandbox:
            if self._options.attach:
                from ohsandbox.runtime.docker import attach  # noqa: PLC0415 - most sandboxes are new

                return attach.join(engine, self._options)
            return provision.create(
                engine, self._options, progress=self._progress, cancel=self.start_cancel, networks=self._networks,
                on_bound=self._watch_own, before_services=self._monitors.begin_disk,
            )  # fmt: skip

        self._begin(join_or_make)
        self._expose_ports()
        return self

    def share_networks(self, networks: NetworkPool) -> None:
        """Join a namespace of the pool at `start`; only for a sandbox that `close` removes, and with empty allow."""
        self._networks = networks

    def resume(self, checkpoints: Sequence[str] = ()) -> ResumeReport:
        """See `Runtime.resume`; an attached container is joined."""
        if self._options.attach:
            return super().resume(checkpoints)

        def find_or_make(engine: Engine) -> Sandbox:
            from ohsandbox.runtime.docker import resume  # noqa: PLC0415 - most sandboxes are new

            begun, self.resumed = resume.resume(
                engine, self._options, checkpoints, progress=self._progress, on_bound=self._watch_own,
                before_services=self._monitors.begin_disk,
            )  # fmt: skip
            return begun._replace(is_resumed=True)

        self._begin(find_or_make)
        self._expose_ports()
        return self.resumed or ResumeReport("same", (), self.name)

    def _expose_ports(self) -> None:
        """Expose the ports of this machine that the options name; if one fails, close the sandbox."""
        try:
            for port in {*self._options.expose_host} - {*(self._ports.listening if self._options.expose_host else ())}:
                self.expose_host(port)
        except BaseException:
            self.close()
            raise

    def checkpoint(self, label: str = "", *, owner: Path | None = None) -> Checkpoint:
        """See `Runtime.checkpoint`; a bound workspace is not part of it."""
        if self._options.profile == "strict" and self._options.workspace is None:
            raise UsageError("profile='strict' keeps files in memory, and no checkpoint does. Bind a directory.")
        conversation, ours = self._options.conversation, self._require_sandbox()
        room = partial(disk.room_bytes, ours.container, self, self._options.limits.free_bytes)
        return checkpoint_images.commit_container(
            ours.container, label=label, conversation=conversation, owner=owner, room=room, pod=ours.pod
        )

    def keep_setup(self, setup_key: str | None) -> str:
        """Keep the files for the next sandbox with this `setup_key`; call it right after the setup.

        Compute setup_key again for this call: it shows whether a file changed while the setup read it.

        Returns "", or the reason why the files are not kept: the key has changed, a process of the setup still runs,
        the setup changed too much of the bound workspace, or this sandbox has no key or started with earlier files.

        Raises:
            SandboxUnavailable: the sandbox is not usable, or its disk is full.
            UsageError: the state directory cannot be written.
        """
        from ohsandbox.runtime.docker.checkpoints import setups  # noqa: PLC0415 - few sandboxes have a setup

        return setups.keep(self._require_sandbox(), setup_key, lambda owner: self.checkpoint("setup", owner=owner))

    def fork(
        self, checkpoint: str, *, conversation: str, workspace: Path | Mapping[str, Path] | None = None
    ) -> DockerRuntime:
        """Return an unstarted runtime like this one, with the checkpoint's files and a workspace of its own.

        Raises:
            UsageError: workspace cannot be bound, or only one of the two runtimes has one.
        """
        if (workspace is None) != (self.host_workspace is None):
            raise UsageError(
                "A fork has a workspace if, and only if, the original has one. Pass workspace=DIR, or none."
            )
        asked = dict(self._options) | {
            "checkpoint": checkpoint, "conversation": conversation, "name": None, "keep": None,
            "profile": self._options.hardening,
            "git": self._options.git if self._options.writable else None,
        }  # fmt: skip
        asked["workspace"] = moved(asked.pop("workspaces"), workspace)
        if (copy_of := asked.pop("copy_of")) is not None:
            asked["workspace"] = copy_of
        if self._options.build is not None:
            del asked["image"]
        if self._options.network != "allowlist":
            del asked["credentials"]
        copy: bool | Literal["all"] = "all" if asked.pop("copies_all") else copy_of is not None
        return DockerRuntime(**asked, copy=copy, progress=self._progress)

    def resource_usage(self) -> ResourceUsage:
        """Return the resources that the sandbox has used since its start, as counted by the kernel; takes about 1 ms.

        A shell in the sandbox reads them, so a process that is root in it could forge them.

        Raises:
            SandboxUnavailable: the sandbox is gone.
        """
        from ohsandbox.runtime.docker.monitoring import usage  # noqa: PLC0415 - only needed when somebody asks for the usage

        return usage.parse_usage(self.snippet(usage.READ).stdout)

    # --- the network: see `ContainerNetwork` ---

    @property
    def adds_credentials(self) -> bool:
        """Whether the next allowlist of `set_network` adds the credentials."""
        return self._network.adds_credentials

    @adds_credentials.setter
    def adds_credentials(self, value: bool) -> None:
        self._network.adds_credentials = value

    @property
    def allowed(self) -> tuple[str, ...]:
        """The rules of the allowlist, as they are displayed; empty with another network."""
        return self._network.rules

    def allow(self, *rules: str) -> None:
        """Add rules to the allowlist, at once: "host", "*.host", "host:port", "private:host" or "packages".

        Raises:
            UsageError: a rule is invalid, or the network has no allowlist; nothing has changed.
        """
        self._network.allow(*rules)
        self._keep_rules()

    def disallow(self, *rules: str) -> None:
        """Remove rules from the allowlist, at once; connections that no other rule allows end.

        Raises:
            UsageError: a rule is not on it, or the network has no allowlist; nothing has changed.
        """
        self._network.disallow(*rules)
        self._keep_rules()

    def network_decisions(self) -> tuple[NetworkDecision, ...]:
        """Return the last 1,000 decisions about connections of the sandbox, the oldest first.

        Earlier ones are summed up by host, in at most 1,000 sums with a `count` over 1.

        Connections through `forward` and `expose_host` are included once they have ended, even without an allowlist.
        """
        return self._network.decisions()

    def on_network_decision(self, listener: Callable[[NetworkDecision], object]) -> Callable[[], None]:
        """Call listener with each decision, in the proxy's thread; it must return at once.

        Returns a function that removes the listener. It may be called at any time, even before the sandbox is started.
        """
        return self._network.on_decision(listener)

    def set_network(self, network: NetworkMode, *, allow: Sequence[str] | None = None) -> None:
        """Change the network of the running container, or its list of hosts; allow is the whole list.

        Open connections end with their network. Nothing is restarted: new processes get the variables of the new
        network, and open sessions get them with their next command.

        Raises:
            UsageError: network is not one of the three modes, a rule is invalid, or the container is attached.
            SandboxRefused: the sandbox's interfaces did not change, as under gVisor, which sets up its network only
                once.
            SandboxUnavailable: the engine refuses the change, as Podman does, or the sandbox is gone.
        """
        if network not in get_args(NetworkMode):
            raise wrong("network", network, 'Use "none", "allowlist" or "open".')
        if self._options.attach:
            raise UsageError(
                f"Container {self.name!r} was joined, so its owner changes its network. Use a sandbox of your own."
            )
        listed = self._network.with_credential_hosts(allow) if network == "allowlist" else allow
        rules = options.checked_rules(network, listed or ())
        with self._life:
            target, before = self._require_sandbox(), self._options.network
            led = target.exec_env
            if network == before == "allowlist":
                self._network.replace(rules)
                self._keep_rules()
            if network == before and (network != "open" or rules == self._options.allow):
                return
            self.snippet(b":")  # the check of a new sandbox expects the network with which it was created
            if "open" in {network, before}:
                container_network.change(
                    target.container, network, rules, lambda: self.snippet(container_network.LIST_INTERFACES).stdout
                )
            self._network.close()
            changed = self._options.model_copy(update={"network": network, "allow": rules})
            config = target.config.model_copy(update={"network": network}) if target.config else None
            self._use(target._replace(options=changed, config=config))
        if (leads := self._require_sandbox().exec_env) != led:
            self._lead_processes(self._network.variables_now(leads))

    aset_network = waited(set_network)
    aresource_usage = waited(resource_usage)

    # --- called by the base class ---
