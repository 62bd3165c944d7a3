"""`DockerRuntime`: a sandbox in a container of a Docker engine."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ohsandbox.errors import SandboxGone, SandboxUnavailable, UsageError
from ohsandbox.runtime.base import Runtime
from ohsandbox.runtime.docker import checkpoints, gc, images, lease, plan, reattach, selfcheck, setup
from ohsandbox.runtime.docker import container as containers
from ohsandbox.runtime.docker.channel import DockerChannel
from ohsandbox.runtime.docker.engine import Engine, connect
from ohsandbox.runtime.docker.exec import Exec, Start
from ohsandbox.runtime.docker.spec import PRIVATE_DIR
from ohsandbox.runtime.resumed import Resumed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.channel import Channel
    from ohsandbox.runtime.checkpoint import Checkpoint
    from ohsandbox.runtime.docker.container import Container
    from ohsandbox.runtime.docker.spec import Limits, Network, Profile

log = logging.getLogger(__name__)


class DockerRuntime(Runtime):
    """A sandbox in a container: any image with a POSIX shell at /bin/sh, nothing installed in it.

    Making one only checks its arguments; `start` (or `with`) makes the container, `close` removes it.

    Args:
        image: its name; pulled when it is not here.
        env: variables for every process, above the image's own.
        user: name or id for every process; default: the image's user, or with `workspace` the calling user.
        workdir: where processes start; made when missing. Default: the image's, or /workspace.
        workspace: a directory of this machine, bound read-write at /workspace; files made there belong to you.
        network: "none", or "open" for the engine's default bridge.
        profile: "contained" or "mapped"; follows from workspace.
        limits: memory, processors, processes, disk.
        name: of the container; default: ohsandbox- and a random word.
        keep: `close` and `gc` leave the container.
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
        network: Network = "none",
        profile: Profile | None = None,
        limits: Limits | None = None,
        name: str | None = None,
        keep: bool = False,
        attach: str | None = None,
        ca_bundle: str | os.PathLike[str] | None = None,
        progress: Callable[[images.PullProgress], None] | None = None,
        runtime: str = "",
        conversation: str | None = None,
        checkpoint: str | None = None,
    ) -> None:
        super().__init__()
        self.state_dir = PRIVATE_DIR
        self._options = plan.options(
            image=image, env=dict(env or {}), user=None if user is None else str(user), workdir=workdir,
            workspace=None if workspace is None else os.fspath(workspace), network=network, profile=profile,
            limits=limits, name=name, keep=keep, attach=attach,
            ca_bundle=None if ca_bundle is None else os.fspath(ca_bundle), runtime=runtime, conversation=conversation,
            checkpoint=checkpoint,
        )  # fmt: skip
        self.ends_processes = not (keep or attach)
        self._progress = progress
        self._life = threading.Lock()
        self._engine: Engine | None = None
        self._container: Container | None = None
        self._lease: lease.Lease | None = None
        self._plan: plan.Plan | None = None
        self._facts: images.ImageFacts | None = None
        self._unchecked = self._left = False
        self._user = ""
        self._workdir = ""
        self._exec_env: dict[str, str] = {}
        self._unset: tuple[str, ...] = ()
        self.started_at: datetime | None = None

    # --- facts ---

    @property
    def id(self) -> str:
        """The container's id; empty before `start`."""
        return self._container.id if self._container else ""

    @property
    def name(self) -> str:
        """The container's name; empty before `start`, unless it was given."""
        return self._container.name if self._container else self._options.name or ""

    @property
    def workdir(self) -> str:
        """Where processes start, as a path in the sandbox."""
        return self._workdir

    @property
    def keeps_checkpoints(self) -> bool:
        """True, but for a container that was joined: it may be anything."""
        return not self._options.attach

    @property
    def host_workspace(self) -> Path | None:
        """The directory that is bound at /workspace."""
        return Path(self._options.workspace) if self._options.workspace else None

    def describe(self) -> dict[str, str]:
        """What a system prompt or a log may say of the sandbox, name to value."""
        return plan.describe(self._options, self._plan, self._facts, user=self._user, workdir=self._workdir)

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

    def resume(self, checkpoints: Sequence[str] = ()) -> Resumed:
        """Go on in the container that the conversation left, or as `start`; see `Runtime.resume`."""
        if self._options.attach:
            return super().resume(checkpoints)
        self._begin(lambda: self._adopt(checkpoints))
        return self.resumed or Resumed("same", (), self.name)

    def _begin(self, get: Callable[[], Container]) -> None:
        with self._life:
            if self._container is None:
                self._engine = connect()
                try:
                    self._container = get()
                except BaseException:
                    self._engine.close()
                    raise
                self.started_at = datetime.now(UTC)

    def _make(self, checkpoint: str | None = None) -> Container:
        engine, options = self._the_engine(), self._options
        if gc.orphans_here(engine):
            gc.gc(engine)
        self._facts = self._begin_from(engine, checkpoint or options.checkpoint)
        name = options.name or f"ohsandbox-{secrets.token_hex(4)}"
        self._lease = lease.take(
            container=name, engine=engine.address.url, image=options.image, conversation=options.conversation,
            keep=options.keep,
        )  # fmt: skip
        made: Container | None = None
        try:
            self._plan = plan.plan(options, self._facts, engine, name=name, labels=self._labels(self._lease))
            self._user, self._workdir = self._plan.user, self._plan.spec.workdir
            made = containers.create(engine, self._plan.spec)
            (self._prepare_again if checkpoint or options.checkpoint else self._prepare)(made)
        except BaseException:
            if made is not None:
                made.remove()
            self._lease.release()
            raise
        self._unchecked = True
        return made

    def _begin_from(self, engine: Engine, checkpoint: str | None) -> images.ImageFacts:
        if checkpoint is not None:
            return checkpoints.facts(engine, checkpoint)
        return images.ensure(engine, self._options.image, progress=self._progress)

    def _labels(self, held: lease.Lease) -> dict[str, str]:
        marks = {
            "ohsandbox": "1",
            lease.LEASE_LABEL: held.id,
            "ohsandbox.created": f"{held.record.created_at:.0f}",
        }
        return marks | ({"ohsandbox.conversation": self._options.conversation} if self._options.conversation else {})

    def _join(self) -> Container:
        """The running container named by attach=, ours or anybody's."""
        joined = reattach.join(self._the_engine(), self._options)
        self._user, self._workdir, self.state_dir = joined.user, joined.workdir, joined.state_dir
        self._exec_env, self._unset = joined.exec_env, joined.unset
        self.private_processes = False
        if self._options.ca_bundle:
            self._copy_ca_bundle(joined.container)
        return joined.container

    def _adopt(self, checkpoints: Sequence[str]) -> Container:
        """The container that the conversation left, or a new one: from a checkpoint where one is there."""
        engine = self._the_engine()
        adopted = reattach.adopt(engine, self._options)
        if adopted is None:
            checkpoint = reattach.last_checkpoint(engine, checkpoints)
            made = self._make(checkpoint)
            self.resumed = Resumed("new" if checkpoint is None else "checkpoint", (), made.name)
            return made
        self._options, self._lease = adopted.options, adopted.lease
        self._plan, self._facts = adopted.plan, adopted.facts
        self._user, self._workdir = self._plan.user, self._plan.spec.workdir
        try:
            reattach.end_processes(
                self._opener(adopted.container), lambda argv: self._open(adopted.container, argv, workdir="/")
            )
        except BaseException:
            self._lease.leave()
            raise
        self._unchecked = True
        self.resumed = Resumed("same", tuple(adopted.notes), adopted.container.name)
        return adopted.container

    def _prepare(self, made: Container) -> None:
        """What the create call cannot say; each part costs one exec, so only where it is needed."""
        assert self._plan is not None  # noqa: S101 - set by _make
        if self._plan.identity is not None:
            setup.make_mapped_home(self._opener(made), self._plan.identity)
        elif not self._plan.as_root:
            setup.own_workdir(self._opener(made), self._workdir, self._user)
        if self._options.ca_bundle:
            self._copy_ca_bundle(made)

    def _prepare_again(self, made: Container) -> None:
        """The same for a container made from a checkpoint."""
        setup.open_private_dir(self._opener(made))
        self._prepare(made)

    def _copy_ca_bundle(self, target: Container) -> None:
        bundle = Path(str(self._options.ca_bundle)).expanduser().read_bytes()
        setup.write_file(self._opener(target), plan.CA_PATH, bundle)

    def _close(self) -> None:
        """Remove the container, unless it is kept or was joined. Twice, and from another thread, is fine.

        An engine that is gone is only logged: the lease file stays, and `gc` removes the container later.
        """
        with self._life:
            gone, held, engine = self._container, self._lease, self._engine
            self._container = self._lease = self._engine = None
        if gone is not None and not self._options.attach:
            self._dispose(gone, held)
        if engine is not None:
            engine.close()

    def _dispose(self, gone: Container, held: lease.Lease | None) -> None:
        keep = self._options.keep or self._left
        try:
            if not keep:
                gone.remove()
        except SandboxUnavailable as error:
            log.warning("sandbox %s is left behind; `ohsandbox gc` removes it: %s", gone.name, error)
            if held is not None:
                held.abandon()
            return
        if held is not None:
            held.leave() if keep else held.release()

    def hold(self) -> None:
        """See `Runtime.hold`: `gc` leaves the container for three days from now, should this process die."""
        if self._lease is not None and self._options.conversation:
            self._lease.hold()

    def leave(self, *, at_once: bool = False) -> None:
        """See `Runtime.leave`: what we started is ended, the container stays."""
        self._left, self.ends_processes = True, False
        self.hold()
        if at_once and self._lease is not None:
            self._container = None
            self._lease.leave()
        else:
            self.close()

    def is_alive(self) -> bool:
        """The container runs, and is the one that was started."""
        return self._container is not None and self._container.loss() is None

    def checkpoint(self, label: str = "", *, owner: Path | None = None) -> Checkpoint:
        """See `Runtime.checkpoint`; a bind-mounted workspace is no part of it."""
        conversation = self._options.conversation
        return checkpoints.take(self._the_container(), label=label, conversation=conversation, owner=owner)

    def fork(self, checkpoint: str, *, conversation: str, workspace: Path | None = None) -> DockerRuntime:
        """A runtime like this one, not started, that begins with the checkpoint's files, in a workspace of its own.

        Raises:
            UsageError: workspace cannot be bound, or only one of the two has one.
        """
        if (workspace is None) != (self._options.workspace is None):
            raise UsageError("A fork has a workspace where the original has one. Remedy: pass workspace=DIR, or none.")
        made = DockerRuntime(self._options.image)
        made._options = plan.options(
            **dict(self._options) | {
                "checkpoint": checkpoint, "conversation": conversation, "name": None, "keep": False,
                "workspace": None if workspace is None else os.fspath(workspace),
            }
        )  # fmt: skip
        made._progress = self._progress
        return made

    def _restore(self, checkpoint: str) -> None:
        with self._life:
            before = self._the_container()
            if self._plan is None:
                raise UsageError(f"Container {before.name!r} was joined, so it is not ours to replace.")
            self._container = checkpoints.restore(before, self._plan.spec, checkpoint, prepare=self._prepare_again)
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
        target = self._the_container()
        check, self._unchecked = self._unchecked and user is None, self._unchecked and user is not None
        try:
            channel = self._open(target, argv, tty=tty, env=env, user=user, workdir=workdir, check=check)
        except SandboxUnavailable:
            if check and self._facts and (fault := containers.ended_at_once(target, self._facts.platform)):
                raise fault from None
            raise
        if check:
            self._judge(channel, target)
        return channel

    def _open(
        self,
        target: Container,
        argv: Sequence[str],
        *,
        tty: bool = False,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        workdir: str | None = None,
        check: bool = False,
    ) -> DockerChannel:
        start = Start(
            argv,
            tty=tty,
            env={**self._exec_env, **(env or {})},
            user=self._user if user is None else str(user),
            workdir=str(Path(self._workdir or "/") / (workdir or "")),
            unset=self._unset,
            check=check,
        )
        return DockerChannel(Exec(target.engine, target.id, start, loss=target.loss))

    def _judge(self, channel: DockerChannel, target: Container) -> None:
        """Refuse a sandbox that is not what was asked for."""
        assert self._plan is not None  # noqa: S101 - only made sandboxes are checked
        if (wrong := selfcheck.verdict(channel.facts, self._plan)) is not None:
            channel.close()
            raise SandboxUnavailable(
                f"Sandbox {target.name!r} is not as strict as asked: {wrong}. Remedy: `ohsandbox doctor`."
            )
        threading.Thread(target=target.note_start, name="ohsandbox-note", daemon=True).start()

    def _opener(self, target: Container) -> setup.Opener:
        """How set-up steps run: as root, in the root directory."""
        return lambda argv: self._open(target, argv, user="0", workdir="/")

    # --- what the base class asks ---

    def _loss(self) -> SandboxUnavailable | None:
        """What became of the container; None while it runs as before."""
        return self._container.loss() if self._container else _closed()

    def _revive(self) -> str:
        """Start a container that ended, its files kept; returns a sentence for the model.

        Raises:
            SandboxPaused, SandboxGone, EngineUnavailable: it cannot be.
        """
        target = self._the_container()
        notice = target.revive()
        self._unchecked = self._plan is not None
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
        self._the_container().kill()
        return self._revive()

    def _the_container(self) -> Container:
        if self._container is None:
            raise _closed()
        return self._container

    def _the_engine(self) -> Engine:
        if self._engine is None:
            raise _closed()
        return self._engine


def _closed() -> SandboxGone:
    return SandboxGone("The sandbox is not started, or closed. Remedy: call start(), or use it in a `with` block.")
