"""`Sandbox`: one container, ours or attached, and the settings of all processes in it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import EngineUnavailable, SandboxGone, SandboxPaused, SandboxUnavailable
from ohsandbox.runtime.docker.channel import DockerChannel, ProcessRequest
from ohsandbox.runtime.docker.config.container_config import ALL_GPUS, GIB, PRIVATE_DIR
from ohsandbox.runtime.mount_text import WORKSPACE
from ohsandbox.runtime.port_numbers import LIST_LISTENERS, parse_listeners
from ohsandbox.runtime.workspace import git_layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ohsandbox.runtime.docker.checkpoints.setups import Setup
    from ohsandbox.runtime.docker.config.container_config import ContainerConfig
    from ohsandbox.runtime.docker.config.options import DockerOptions
    from ohsandbox.runtime.docker.container import Container
    from ohsandbox.runtime.docker.images.engine_images import ImageFacts
    from ohsandbox.runtime.docker.mounts.bind_mounts import Bind
    from ohsandbox.runtime.docker.ownership.lease import Lease
    from ohsandbox.runtime.docker.services.pods import Pod

_SCRIPT_TIMEOUT_S = 60.0
END_S = 10.0
"""Time limit in seconds for ending processes; a shell that sends one signal takes 30 ms."""
_END_ALL = f"chmod 1777 {PRIVATE_DIR} 2>/dev/null; kill -KILL -1 2>/dev/null || :"
"""kill(2) with pid -1 spares PID 1 and the calling shell. In a container made from a checkpoint our tmpfs has mode 0755
after each start (see provision.prepare)."""
_MAX_TOLD = 20
_HARDENING = {
    "strict": "strict: of all files only /workspace, the home, /tmp and /var/tmp can be written",
    "trusted": "trusted: sudo and setuid programs work",
}
_GIT_READ_ONLY = "read-only: commits fail"
_GIT_GUARDED = (
    "commits, branches and merges work; config, hooks and info of repositories are read-only ('could not lock config "
    "file'): use `git config --global` or `git -c`. A directory that holds a repository cannot be moved or removed"
)


class Sandbox(NamedTuple):
    """A container, and how processes are started in it. If it is attached, lease, config and facts are None."""

    container: Container
    options: DockerOptions
    """The container's actual options; one created earlier may differ from the options requested now."""
    user: str
    workdir: str
    lease: Lease | None = None
    config: ContainerConfig | None = None
    facts: ImageFacts | None = None
    exec_env: Mapping[str, str] = {}
    """Variables for every process, on top of the container's own."""
    unset: tuple[str, ...] = ()
    state_dir: str = PRIVATE_DIR
    exposed: tuple[str, ...] = ()
    """Access that an attached container has beyond itself."""
    left_out: Mapping[str, str] = {}
    """Files of the copied directory that were left out, with the reason."""
    pod: Pod | None = None
    """The sandbox's services."""
    is_resumed: bool = False
    """Whether it serves a conversation that had a sandbox before."""
    setup: Setup | None = None
    """The setup of a sandbox that was created with a `setup_key`."""

    def open(self, request: ProcessRequest) -> DockerChannel:
        """Start a process with the sandbox's variables; user and working directory default to the sandbox's."""
        user = self.user if request.user is None else request.user
        # where the agent is another user, it may write where the image's variables lead programs
        is_above = user == "0" and self.user not in ("", "0", "root")
        request = request._replace(
            env={**self.exec_env, **request.env},
            user=user,
            workdir=str(Path(self.workdir or "/") / (request.workdir or "")),
            elsewhere=request.workdir is None,
            unset=(*self.unset, *(("LD_LIBRARY_PATH", "BASH_ENV") if is_above else ())),
            system_path=is_above,
        )
        return DockerChannel(self.container, request)

    def listening_ports(self) -> tuple[int, ...]:
        """Return the ports on which the sandbox or one of its services listens."""
        return parse_listeners(self.script(LIST_LISTENERS.decode()).encode())

    def script(self, text: str, *arguments: str, stdin: bytes = b"", user: str | None = "0") -> str:
        """Run a set-up step in the root directory; return its output, or raise SandboxUnavailable if it fails."""
        heard = b""
        with self.open(ProcessRequest(["/bin/sh", "-c", text, "sh", *arguments], user=user, workdir="/")) as channel:
            if stdin:
                with contextlib.suppress(BrokenPipeError):  # its exit code and output tell why it ended
                    channel.write(stdin)
            channel.close_stdin()
            while chunks := channel.read(_SCRIPT_TIMEOUT_S):
                heard += b"".join(chunk.data for chunk in chunks)
            code = channel.wait(_SCRIPT_TIMEOUT_S)
        if code:
            words = " ".join(heard.decode(errors="replace").split())[:200]
            raise SandboxUnavailable(
                f"The sandbox could not be set up (exit code {code}): {words}.", remedy="Try another image."
            )
        return heard.decode("utf-8", "surrogateescape")

    def end_processes(self) -> list[str]:
        """Kill every process of the container except PID 1; return notes for the user, one line each.

        A running container that cannot start a process is restarted; if it still cannot, SandboxUnavailable is raised.
        """
        try:
            self._kill_all()
        except (SandboxGone, SandboxPaused, EngineUnavailable):
            raise
        except SandboxUnavailable:
            self.container.restart()
            self._kill_all()
            name = self.container.name
            return [f"Sandbox {name} could start no process any more and was restarted; its files are kept."]
        return []

    def _kill_all(self) -> None:
        # also as the user: root of a mapped sandbox lacks CAP_KILL; on a terminal, since shells will need one
        for user, tty in (("0", False), (None, True)):
            with self.open(ProcessRequest(["/bin/sh", "-c", _END_ALL], tty, user=user, workdir="/")) as channel:
                try:
                    channel.wait(END_S)
                except TimeoutError as error:
                    raise SandboxUnavailable(f"Its processes could not be ended in {END_S:g} s.") from error

    def describe(self) -> dict[str, str]:
        """Return facts for a system prompt, name to value."""
        asked, config = self.options, self.config
        told = {
            "runtime": "a Docker container",
            "image": asked.attach or asked.image,
            "user": self.user or "root",
            "working directory": self.workdir,
        }
        if self.exposed:
            told["reaches beyond itself"] = ", ".join(self.exposed)
        if config is None:
            return told
        if self.pod is not None:
            told["services"] = self.pod.describe()
        limits = config.limits
        itself = "the sandbox itself is" if self.pod is None else "the sandbox itself and its services are"
        told["network"] = f"none: only {itself} reachable" if config.network == "none" else "open"
        told["limits"] = (
            f"{limits.memory_bytes / GIB:g} GiB of memory, {config.cpus:g} processors, {limits.pids} processes"
        )
        if limits.file_bytes is not None:
            told["limits"] += f", files of at most {limits.file_bytes / GIB:g} GiB"
        if self.facts is not None:
            told |= {"platform": self.facts.platform, "digest": self.facts.digest or self.facts.id}
        told |= _option_facts(config)
        told |= self._describe_binds(config)
        if asked.copy_of:
            without = "" if asked.copies_all else ", without files that git ignores and without secrets"
            told["workspace"] = f"{WORKSPACE} is a copy of a directory of the user's{without}"
        return told

    def _describe_binds(self, config: ContainerConfig) -> dict[str, str]:
        asked, count = self.options, len(self.options.workspaces)
        workspaces, others = config.binds[:count], config.binds[count:]
        told = {}
        if workspaces:
            first = workspaces[0]
            told["workspace"] = f"{first.target} is a directory of the user's machine"
            told["workspace"] += ", read-only" if first.read_only else ""
        if workspaces[1:]:
            told["more workspaces"] = _places(workspaces[1:])
        if others:
            told["mounts"] = f"{_places(others)}: files of the user's machine, which no undo covers"
        return told | _protection(config.binds, _GIT_READ_ONLY if asked.git == "ro" else _GIT_GUARDED)

    def notes(self) -> Iterator[str]:
        """Yield warnings for the user about the workspace's protection, or an attached container's reach."""
        yield from (bind.hard_links for bind in (self.config.binds if self.config else ()) if bind.hard_links)
        if self.config is not None and not self.config.limits.enforced:
            yield "--accept-unenforced: limits on memory, processes, processors and disks may not hold in this sandbox."
        if self.exposed:
            yield f"Container {self.container.name} reaches beyond itself: {', '.join(self.exposed)}."
        elif self.config is not None and self.config.hardening == "trusted":
            yield (
                "--profile trusted: sudo and setuid programs work in the sandbox, and root has the engine's default "
                "capabilities there; a vulnerability of the kernel is easier to reach."
            )
        elif self.config is None or not self.options.writable:
            return
        elif self.options.git == "rw":
            yield "--git rw: the sandbox can change what git, editors and agents run from the workspace."
        else:
            for bind in self.config.binds:
                pointer = git_layout.pointed(bind.source, ".git") if bind.guard and not bind.read_only else None
                if pointer is not None and pointer.startswith("/"):
                    where = "the sandbox" if len(self.config.binds) == 1 else bind.target
                    yield f"git does not work in {where}: .git names {pointer!r}, which is outside of the workspace."


def _option_facts(config: ContainerConfig) -> dict[str, str]:
    """Return the facts in which a container differs from the default."""
    told = {} if config.hardening is None else {"profile": _HARDENING[config.hardening]}
    if config.cache_volume:
        told["package caches"] = "pip, uv, npm, apt and cargo keep what they download for later sandboxes"
    if config.gpus:
        told["GPUs"] = "all" if config.gpus == ALL_GPUS else str(config.gpus)
    return told | ({"OCI runtime": config.runtime} if config.runtime else {})


def _places(binds: Sequence[Bind]) -> str:
    return ", ".join(bind.target + (" (read-only)" if bind.read_only else "") for bind in binds)


def _protection(binds: Sequence[Bind], git: str) -> dict[str, str]:
    """Return, for the model, which files of the binds are protected."""
    mounts = [(f"{bind.target}/" if len(binds) > 1 else "", mount) for bind in binds for mount in bind.guard]
    told = {"git": git} if any(".git" in mount.path.split("/") for _, mount in mounts) else {}
    others = [
        (top + mount.path, bool(mount.source))
        for top, mount in mounts
        if mount.read_only and (mount.source or ".git" not in mount.path.split("/"))
    ]
    for name, hidden in (("read-only files", False), ("hidden sockets", True)):
        if found := [path for path, is_hidden in others if is_hidden is hidden]:
            told[name] = ", ".join(found[:_MAX_TOLD]) + (", ..." if len(found) > _MAX_TOLD else "")
    return told
