"""`DockerRuntime`: a sandbox in a container of a Docker engine."""

from __future__ import annotations

import logging
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from ohsandbox.errors import (
    EngineUnavailable,
    SandboxGone,
    SandboxPaused,
    SandboxRefused,
    SandboxUnavailable,
    UsageError,
)
from ohsandbox.runtime.base import Runtime
from ohsandbox.runtime.docker import attach, checkpoints, disk, guard, provision, resolve, selfcheck
from ohsandbox.runtime.docker.container import ended_at_once
from ohsandbox.runtime.docker.container_config import PRIVATE_DIR
from ohsandbox.runtime.docker.engine import connect
from ohsandbox.runtime.docker.sandbox import OwnerWatchdog
from ohsandbox.runtime.results import ResumeReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.channel import Channel
    from ohsandbox.runtime.docker.channel import DockerChannel
    from ohsandbox.runtime.docker.container_config import Limits, Network, Profile
    from ohsandbox.runtime.docker.engine import Engine
    from ohsandbox.runtime.docker.guard import Git
    from ohsandbox.runtime.docker.resolve import ResolvedSandbox
    from ohsandbox.runtime.docker.sandbox import Sandbox
    from ohsandbox.runtime.results import Checkpoint, PullProgress

log = logging.getLogger(__name__)


class DockerRuntime(Runtime):
    """A sandbox in a container: any image with a POSIX shell at /bin/sh, nothing installed in it.

    Making one only checks its arguments; `start` (or `with`) makes the container, `close` removes it.

    Args:
        image: its name; pulled when it is not here.
        env: variables for every process, above the image's own; with those at most 4,096, and 512 KiB.
        user: name or id for every process; default: the image's user, or with `workspace` the calling user.
        workdir: where processes start; made when missing. Default: the image's, or /workspace.
        workspace: a directory of this machine, bound read-write at /workspace; files made there belong to you.
        copy: the files of workspace are copied to /workspace instead, and nothing is bound. What git ignores and what
            has the name of a secret stays behind (see `left_out`); "all" takes that along.
        git: what of the workspace is guarded against the sandbox: "guarded" (commits work; configuration, hooks and
            info of its repositories and the files that editors and agents run stay as they are), "ro" (repositories do
            not change at all), "rw" (nothing). Empty `hooks`, `info`, `config.worktree` and a `commondir` are made in
            a repository that lacks them.
        network: "none", or "open" for the engine's default bridge.
        profile: "contained" or "mapped"; follows from workspace.
        limits: memory, processors, processes, disk.
        name: of the container; default: ohsandbox- and a random word.
        keep: `close` and `gc` leave the container, and what runs in it goes on when this process dies.
        attach: name or id of a running container to join instead; never removed, started or changed by us.
        ca_bundle: a PEM file that the usual tools in the sandbox shall trust.
        progress: called while an image is pulled.
        runtime: an OCI runtime of the engine, such as "runsc".
        conversation: an id that `ps` shows, and that `resume` finds the container by.
        checkpoint: the id of one; the sandbox begins with its files instead of the image's.

    Raises:
        UsageError: an argument, or a combination, that cannot be.
    """

    def __init__(
        self,
        image: str = "python:3.12",
        *,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        workdir: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        copy: bool | Literal["all"] = False,
        git: Git = "guarded",
        network: Network = "none",
        profile: Profile | None = None,
        limits: Limits | None = None,
        name: str | None = None,
        keep: bool = False,
        attach: str | None = None,
        ca_bundle: str | os.PathLike[str] | None = None,
        progress: Callable[[PullProgress], None] | None = None,
        runtime: str = "",
        conversation: str | None = None,
        checkpoint: str | None = None,
    ) -> None:
        super().__init__()
        self.state_dir = PRIVATE_DIR
        place = None if workspace is None else os.fspath(workspace)
        if copy and place is None:
            raise UsageError("copy= needs a directory to copy. Remedy: pass workspace=DIR.")
        self._options = resolve.options(
            image=image, env=dict(env or {}), user=None if user is None else str(user), workdir=workdir,
            workspace=None if copy else place, copy_of=place if copy else None, copies_all=copy == "all", git=git,
            network=network, profile=profile,
            limits=limits, name=name, keep=keep, attach=attach,
            ca_bundle=None if ca_bundle is None else os.fspath(ca_bundle), runtime=runtime, conversation=conversation,
            checkpoint=checkpoint,
        )  # fmt: skip
        self.ends_processes = not (keep or attach)
        self._progress = progress
        self._life = threading.Lock()
        self._sandbox: Sandbox | None = None
        self._known: Sandbox | None = None
        """The same, and still after `close`: for what is told of it."""
        self._unchecked = self._left = False
        self._unenforced: tuple[str, ...] = ()
        self._disk: disk.DiskMonitor | None = None
        self._watchdog: OwnerWatchdog | None = None
        self._new = True
        """Nothing has run in the sandbox yet."""
        self.started_at: datetime | None = None

    # --- facts ---

    @property
    def id(self) -> str:
        """The container's id; empty before `start`."""
        return self._sandbox.container.id if self._sandbox else ""

    @property
    def name(self) -> str:
        """The container's name; empty before `start`, unless it was given."""
        return self._sandbox.container.name if self._sandbox else self._options.name or ""

    @property
    def workdir(self) -> str:
        """Where processes start, as a path in the sandbox."""
        return self._known.workdir if self._known else ""

    @property
    def keeps_checkpoints(self) -> bool:
        """True, but for a container that was joined: it may be anything."""
        return not self._options.attach

    @property
    def host_workspace(self) -> Path | None:
        """The directory that is bound at /workspace."""
        return Path(self._options.workspace) if self._options.workspace else None

    @property
    def workspace_notes(self) -> tuple[str, ...]:
        """See `Runtime.workspace_notes`."""
        if self._known is not None and self._known.exposed:
            return (f"Container {self._known.container.name} reaches beyond itself: {', '.join(self._known.exposed)}.",)
        made = self._known.plan if self._known else None
        if self._options.workspace is None or made is None:
            return ()
        return resolve.notes(self._options, made)

    @property
    def copied_workspace(self) -> Path | None:
        """The directory whose files were copied to /workspace."""
        return Path(self._options.copy_of) if self._options.copy_of else None

    @property
    def left_out(self) -> Mapping[str, str]:
        """What of the copied directory stayed behind, and why; known once the container is made."""
        return self._known.left_out if self._known else {}

    def describe(self) -> dict[str, str]:
        """What a system prompt or a log may say of the sandbox, name to value."""
        known = self._known
        made, facts, user = (known.plan, known.facts, known.user) if known else (None, None, "")
        told = resolve.describe(self._options, made, facts, user=user, workdir=self.workdir)
        if known is not None and known.exposed:
            told["reaches beyond itself"] = ", ".join(known.exposed)
        return told | ({"not enforced here": ", ".join(self._unenforced)} if self._unenforced else {})

    # --- life ---

    def start(self) -> Self:
        """Make the container, or join the one to attach to. Twice is fine.

        Raises:
            EngineUnavailable: no engine answers.
            ImageUnavailable: the image cannot be had, or cannot run.
            SandboxUnavailable: the engine failed, or the sandbox is not as strict as asked.
            UsageError: the container to attach to is not there, the name is taken, a limit is refused.
        """
        self._begin(self._join if self._options.attach else self._make)
        return self

    def resume(self, checkpoints: Sequence[str] = ()) -> ResumeReport:
        """Go on in the container that the conversation left, or as `start`; see `Runtime.resume`."""
        if self._options.attach:
            return super().resume(checkpoints)
        self._begin(lambda engine: self._resume(engine, checkpoints))
        return self.resumed or ResumeReport("same", (), self.name)

    def _begin(self, get: Callable[[Engine], Sandbox]) -> None:
        with self._life:
            if self._sandbox is not None:
                return
            engine = connect()
            try:
                if self._options.workspace is not None:
                    self.watch(Path(self._options.workspace))
                begun = get(engine)
                if begun.options.workspace not in {None, self._options.workspace}:
                    self.watch(Path(str(begun.options.workspace)))
            except BaseException:
                engine.close()
                if self._watch is not None:
                    self._watch.leave()
                raise
            self._options, self.state_dir = begun.options, begun.state_dir
            self._unchecked = begun.plan is not None
            self._sandbox = self._known = begun
            self.started_at = datetime.now(UTC)

    def _make(self, engine: Engine) -> Sandbox:
        return provision.make(engine, self._options, progress=self._progress)

    def _join(self, engine: Engine) -> Sandbox:
        self.private_processes = False
        return provision.join(engine, self._options)

    def _resume(self, engine: Engine, checkpoint_ids: Sequence[str]) -> Sandbox:
        begun, self.resumed = provision.resume(engine, self._options, checkpoint_ids, progress=self._progress)
        self._new = False
        return begun

    def _close(self) -> None:
        """Remove the container, unless it is kept or was joined. Twice, and from another thread, is fine.

        An engine that is gone is only logged: the lease file stays, and `gc` removes the container later.
        """
        self._stop_watching()
        with self._life:
            gone, self._sandbox = self._sandbox, None
        if gone is None:
            return
        if not self._options.attach:
            self._dispose(gone)
        gone.container.engine.close()

    def _stop_watching(self) -> None:
        watch, self._disk = self._disk, None
        if watch is not None:
            watch.stop()
        if self._watchdog is not None:
            self._watchdog.leave()

    def _dispose(self, gone: Sandbox) -> None:
        keep, held = self._options.keep or self._left, gone.lease
        try:
            if not keep:
                gone.container.remove()
            elif not self._options.keep and self._options.workspace is not None:
                gone.container.kill()  # nothing goes on changing a person's files
        except SandboxUnavailable as error:
            log.warning("sandbox %s is left behind; `ohsandbox gc` removes it: %s", gone.container.name, error)
            if held is not None:
                held.abandon()
            return
        if held is not None:
            held.leave() if keep else held.release()
        provision.release_workspace(gone.container.engine, gone.options, gone.plan, gone=not keep)

    def hold(self) -> None:
        """See `Runtime.hold`: `gc` leaves the container for three days from now, should this process die."""
        if (ours := self._sandbox) is not None and ours.lease is not None and self._options.conversation:
            ours.lease.hold()

    def leave(self, *, at_once: bool = False) -> None:
        """See `Runtime.leave`: what we started is ended, the container stays; with a workspace all in it is ended."""
        self._left, self.ends_processes = True, False
        self.hold()
        if at_once and (ours := self._sandbox) is not None and ours.lease is not None:
            self._stop_watching()
            self._sandbox = None
            ours.lease.leave()
            provision.release_workspace(ours.container.engine, ours.options, ours.plan, gone=False)
        else:
            self.close()

    def is_alive(self) -> bool:
        """The container runs, and is the one that was started."""
        return self._sandbox is not None and self._sandbox.container.loss() is None

    def checkpoint(self, label: str = "", *, owner: Path | None = None) -> Checkpoint:
        """See `Runtime.checkpoint`; a bind-mounted workspace is no part of it."""
        conversation = self._options.conversation
        container, least = self._the_sandbox().container, self._options.limits.free_bytes

        def room() -> int | None:
            return disk.room(disk.writable_file_systems(container.engine, container.inspect(), {}, None, self), least)

        return checkpoints.take(container, label=label, conversation=conversation, owner=owner, room=room)

    def fork(self, checkpoint: str, *, conversation: str, workspace: Path | None = None) -> DockerRuntime:
        """A runtime like this one, not started, that begins with the checkpoint's files, in a workspace of its own.

        Raises:
            UsageError: workspace cannot be bound, or only one of the two has one.
        """
        if (workspace is None) != (self._options.workspace is None):
            raise UsageError("A fork has a workspace where the original has one. Remedy: pass workspace=DIR, or none.")
        changed = {"checkpoint": checkpoint, "conversation": conversation, "name": None, "keep": False}
        changed["workspace"] = None if workspace is None else os.fspath(workspace)
        asked = dict(self._options) | changed
        if (copy_of := asked.pop("copy_of")) is not None:
            asked["workspace"] = copy_of
        copy: bool | Literal["all"] = "all" if asked.pop("copies_all") else copy_of is not None
        return DockerRuntime(**asked, copy=copy, progress=self._progress)

    def _restore(self, checkpoint: str) -> None:
        with self._life:
            before = self._the_sandbox()
            if before.plan is None:
                raise UsageError(f"Container {before.container.name!r} was joined, so it is not ours to replace.")
            self._stop_watching()
            self._sandbox = self._known = provision.restore(before, before.plan, checkpoint)
            self._unchecked = True

    # --- the narrow waist ---

    def open_channel(
        self,
        argv: Sequence[str],
        *,
        tty: bool = False,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        workdir: str | None = None,
    ) -> Channel:
        """Start a process in the sandbox; relative workdirs are below `workdir`.

        Raises:
            UnknownUserError, WorkdirMissingError, WorkdirNotADirectoryError: as their names say.
            UsageError: an argument holds a NUL or is over 128 KiB.
            SandboxUnavailable: the sandbox is paused, stopped or gone, or less strict than asked.
        """
        target = self._the_sandbox()
        if self._unchecked and user is not None:  # judged by a process of its own user, who makes its working directory
            self.open_channel(["/bin/sh", "-c", ":"]).close()
        check, self._unchecked = self._unchecked, False
        try:
            channel = target.open(argv, tty=tty, env=env, user=user, workdir=workdir, check=check)
        except SandboxUnavailable:
            if check and target.facts and (fault := ended_at_once(target.container, target.facts.platform)):
                raise fault from None
            raise
        if check and target.plan is not None:
            self._accept(channel, target.plan, target.container.found)
        return channel

    def _accept(self, channel: DockerChannel, made: ResolvedSandbox, found: Mapping[str, Any]) -> None:
        """Judge the first process's sandbox; one that is refused is judged again at the next attempt.

        Raises:
            SandboxUnavailable: it is not as strict as asked.
        """
        try:
            selfcheck.refuse_weaker(channel.facts, made, found)
            self._watch_disk(found, channel.facts)
        except BaseException:
            channel.close()
            self._unchecked = True
            raise
        self._unenforced = tuple(selfcheck.unenforced(channel.facts, made.spec))
        if made.spec.workspace is not None and not self._options.keep:
            self._end_with_us()

    def _end_with_us(self) -> None:
        if self._watchdog is not None:
            self._watchdog.leave()
        self._watchdog = OwnerWatchdog(self._the_sandbox())
        self._watchdog.start()

    def _watch_disk(self, found: Mapping[str, Any], facts: Mapping[str, str]) -> None:
        """Keep a floor under the free space of the disks that the sandbox writes to.

        Raises:
            SandboxUnavailable: a new sandbox would begin below it.
        """
        least = self._options.limits.free_bytes
        if self._disk is not None or least == 0:
            return
        where = disk.writable_file_systems(
            self._the_sandbox().container.engine, found, facts, self.host_workspace, self
        )
        if self._new and (short := disk.first_shortage(where, least)) is not None:
            raise SandboxRefused(
                f"{short}. Remedy: free some (`docker system df` shows what the engine holds), "
                "or say what must stay free with Limits(free_bytes=...)."
            )
        self._new = False
        self._disk = disk.DiskMonitor(where, self, least=least)
        self._disk.start()

    # --- what the disk's watch asks ---

    def tell(self, notice: str) -> None:
        """See `disk.MonitoredSandbox`."""
        self._notices.append(notice)

    def end_processes(self) -> None:
        """See `disk.MonitoredSandbox`."""
        attach.end_processes(self._the_sandbox())

    # --- what the base class asks ---

    def _loss(self) -> SandboxUnavailable | None:
        """What became of the container; None while it runs as before."""
        return self._sandbox.container.loss() if self._sandbox else _closed()

    def _revive(self) -> str:
        """Start a container that ended, its files kept; returns a sentence for the model.

        Raises:
            SandboxPaused, SandboxGone, EngineUnavailable: it cannot be.
        """
        target = self._the_sandbox()
        if target.plan is not None and target.options.workspace is not None:
            guard.guard(target.options.workspace, target.options.git)  # what is mounted must be there
        try:
            notice = target.container.revive()
        except (SandboxGone, SandboxPaused, EngineUnavailable):
            raise
        except SandboxUnavailable as error:
            why = str(error).partition(" Remedy:")[0]
            raise SandboxUnavailable(
                f"Sandbox {self.name!r} does not start any more: {why} Its files are kept, but what it starts with was "
                "removed or replaced in them. Remedy: go back with `ohsandbox undo`, or make a new sandbox."
            ) from error
        self._unchecked = target.plan is not None
        return notice

    def _restart(self) -> str:
        """Kill all that runs in the container and start it again, files kept; returns a sentence for the model.

        Raises:
            SandboxUnavailable: it cannot be; a container that was joined is never restarted by us.
        """
        if self._options.attach:
            raise SandboxUnavailable(
                f"Container {self.name!r} cannot start a process any more, and it is not ours to restart. "
                f"Remedy: `docker restart {self.name}`."
            )
        self._the_sandbox().container.kill()
        self._revive()
        return (
            "The sandbox could start no process any more and was restarted: files are kept; processes, variables and "
            "/run are lost."
        )

    def _the_sandbox(self) -> Sandbox:
        if (ours := self._sandbox) is None:
            raise _closed()
        return ours


def _closed() -> SandboxGone:
    return SandboxGone("The sandbox is not started, or closed. Remedy: call start(), or use it in a `with` block.")
