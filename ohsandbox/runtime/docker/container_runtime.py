"""`ContainerRuntime`: a runtime whose backend is a container, from its first process to its end."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ohsandbox.errors import SandboxGone, SandboxUnavailable, UnknownUserError, UsageError
from ohsandbox.runtime.base import Runtime
from ohsandbox.runtime.docker import provision
from ohsandbox.runtime.docker.channel import ProcessRequest
from ohsandbox.runtime.docker.config import selfcheck
from ohsandbox.runtime.docker.config.container_config import CONNECTOR_UID, PRIVATE_DIR
from ohsandbox.runtime.docker.container import start_failure
from ohsandbox.runtime.docker.engine.connection import connect

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ohsandbox.runtime.channel import Channel
    from ohsandbox.runtime.docker.channel import DockerChannel
    from ohsandbox.runtime.docker.config.container_config import ContainerConfig
    from ohsandbox.runtime.docker.config.options import DockerOptions
    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.monitoring.monitors import SandboxMonitors
    from ohsandbox.runtime.docker.network.container_network import ContainerNetwork
    from ohsandbox.runtime.docker.network.network_pool import NetworkPool
    from ohsandbox.runtime.docker.sandbox import Sandbox
    from ohsandbox.runtime.process.worker import CallResult, Exchange, WorkerCall
    from ohsandbox.secrets import Secrets

T = TypeVar("T")

END_ALL = (
    b"ohs_i=0;while kill -KILL -1 2>/dev/null;ohs_n=0;for ohs_p in /proc/[0-9]*;do ohs_n=$((ohs_n+1));done;"
    b"[ $ohs_n -gt 3 ]&&[ $ohs_i -lt 2000 ];do ohs_i=$((ohs_i+1));done;:"
)
"""Ends all processes and waits until they are gone, without a fork; PID 1 with its `sleep`, and this shell, remain. On
a busy machine the 500 processes of a fork bomb counted against the limit for some time after their end, so that no
process could start."""
_ROOT = {"0", "root"}


class ContainerRuntime(Runtime):
    """A container, created or joined by `_begin`; processes start in it once the first one has been checked.

    A subclass decides which container it is: it sets the options, the network and the monitors.
    """

    _options: DockerOptions
    _network: ContainerNetwork
    _monitors: SandboxMonitors
    state_dir = PRIVATE_DIR
    connector_owner = "0"
    connector_user = CONNECTOR_UID
    _sandbox: Sandbox | None = None
    _known: Sandbox | None = None
    """The same sandbox, kept after `close` for descriptions."""
    _unchecked = False
    """Whether the sandbox is new or was restarted, so that no process of it has been checked yet."""
    _left = False
    _unenforced: tuple[str, ...] = ()
    _networks: NetworkPool | None = None

    def __init__(self) -> None:
        super().__init__()
        self.start_cancel = threading.Event()
        self._life = threading.Lock()
        self._checking = threading.RLock()

    @property
    def id(self) -> str:
        """The container's id; empty before `start`."""
        return self._sandbox.container.id if self._sandbox else ""

    @property
    def name(self) -> str:
        """The container's name, also after `close`; empty before `start` unless given."""
        return self._known.container.name if self._known else self._options.name or ""

    @property
    def scratch_dir(self) -> str:
        """A directory on disk: the state directory is in memory, and empty after a restart."""
        return "/tmp"  # noqa: S108 - in the container

    @property
    def workdir(self) -> str:
        """Working directory of processes, as a path in the sandbox."""
        return self._known.workdir if self._known else ""

    def is_alive(self) -> bool:
        """Whether the container runs and has not been restarted."""
        return self._sandbox is not None and self._sandbox.container.loss() is None

    def _require_sandbox(self) -> Sandbox:
        if (ours := self._sandbox) is None:
            raise _closed()
        return ours

    # --- from its beginning to its end ---

    def _begin(self, get: Callable[[Engine], Sandbox]) -> None:
        with self._life:
            if self._sandbox is not None:
                return
            engine = connect(while_starting=self._prepare_while_starting, on_reconnect=self.add_notice)
            try:
                container = get(engine)
                if container.options.bound != self._options.bound:
                    self._leave_watch()
                    self._watch_bound(container.options)
            except BaseException:
                self._monitors.stop()
                engine.close()
                self._leave_watch()
                raise
            self.state_dir = container.state_dir
            self._unchecked = container.config is not None
            self._use(container)

    def _watch_own(self) -> None:
        self._watch_bound(self._options)

    def _watch_bound(self, options: DockerOptions) -> None:
        """Record what is in bound directories; what the start itself changes there is no change of the sandbox's."""
        workspaces = [Path(one.source) for one in options.workspaces if not one.read_only]
        mounts = [
            path for path in map(Path, options.writable) if not any(path.is_relative_to(one) for one in workspaces)
        ]
        read_only = [Path(one.source) for one in options.bound if one.read_only and Path(one.source).is_dir()]
        self.watch(*workspaces, mounts=mounts, read_only=read_only)

    def _prepare_while_starting(self) -> None:
        if self._sandbox is not None:  # it starts again
            return
        self._network.prepare()
        if self.while_starting is not None:
            self.while_starting()

    def _use(self, sandbox: Sandbox) -> None:
        """Use this sandbox from now on, with the network that its options name."""
        self._options = sandbox.options
        self._sandbox = self._known = sandbox._replace(exec_env=self._network.environment(sandbox.exec_env))
        if sandbox.pod is not None:
            self.ports_beside = sandbox.pod.ports
        self._network.open(sandbox.container.name)
        if not self._unchecked:
            self._network.listen()
        self._network.install_credentials(sandbox)

    def _restore(self, checkpoint: str) -> None:
        with self._life:
            before = self._require_sandbox()
            if before.config is not None:
                self._monitors.stop()
            try:
                self._sandbox = self._known = restored = provision.restore(
                    before, checkpoint, before_services=self._monitors.begin_disk
                )
                self._network.install_credentials(restored)
            except BaseException:
                self._monitors.stop()
                raise
            finally:  # a sandbox that stayed as it was must be monitored again, too
                self._unchecked = before.config is not None

    def _close(self) -> None:
        """Remove the container, unless it is kept or attached; it may be called twice, and from another thread.

        If the engine is gone, the failure is only logged: the lease file stays, and `gc` removes the container later.
        """
        self._monitors.stop()
        self._network.close()
        with self._life:
            gone, self._sandbox = self._sandbox, None
        if gone is None:
            return
        if not self._options.attach:
            provision.dispose(gone._replace(options=self._options), is_left=self._left, networks=self._networks)
        gone.container.engine.close()

    def _decide_keep(self, *, keep: bool) -> None:
        if self._options.attach and not keep:
            raise UsageError(
                f"Container {self.name!r} was joined, so it is not ours to remove.",
                remedy=f"Run `docker rm -f {self.name}`.",
            )
        if self._options.attach:
            return
        with self._life:
            if (ours := self._sandbox) is None or keep == self._options.keep:
                return
            if ours.lease is not None:  # first: `gc` must heed it if we are killed
                ours.lease.rewrite(keep=keep)
            self._options = self._options.model_copy(update={"keep": keep})
            self.ends_processes = not keep

    def hold(self) -> None:
        """See `Runtime.hold`: if this process dies, `gc` keeps the container for three days from now."""
        if (ours := self._sandbox) is not None and ours.lease is not None and self._options.conversation:
            ours.lease.hold()

    def hand_over(self, conversation: str) -> None:
        """See `Runtime.hand_over`: the lease names the new conversation; the container's label keeps the first."""
        super().hand_over(conversation)
        with self._life:
            ours = self._require_sandbox()
            if ours.lease is not None:
                ours.lease.rewrite(conversation=conversation)
            self._options = self._options.model_copy(update={"conversation": conversation})
            self._network.record_as(conversation)

    def leave(self, *, at_once: bool = False) -> None:
        """See `Runtime.leave`: the container remains. Our own processes are ended; with a bound workspace, all are."""
        self._left, self.ends_processes = True, False
        self.hold()
        if at_once and (ours := self._sandbox) is not None and ours.lease is not None:
            self._monitors.stop()
            self._network.close()
            self._sandbox = None
            ours.lease.leave()  # its container still runs, so that nothing of the guard's can be removed
        else:
            self.close()

    # --- processes ---

    def open_channel(
        self,
        argv: Sequence[str],
        *,
        tty: bool = False,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        workdir: str | None = None,
    ) -> Channel:
        """See `Backend.open_channel`; a relative workdir is below the sandbox's.

        Raises:
            UsageError: an argument contains a NUL or is over 128 KiB.
            SandboxUnavailable: the sandbox is paused, stopped or gone, or less strict than requested.
        """
        self._wait_for_network()
        name = None if user is None else str(user)
        request = ProcessRequest(argv, tty, env or {}, name, workdir)
        with self._checking:  # no second process starts before the first has been checked and has created its workdir
            if self._unchecked and user is None:
                return self._open_checked(request._replace(check=True))
            if self._unchecked:
                self.open_channel(["/bin/sh", "-c", ":"]).close()
        return self._open(request)

    def _open(self, request: ProcessRequest) -> DockerChannel:
        try:
            opened = self._require_sandbox().open(request)
        except UnknownUserError as error:
            if request.user is not None or not self._generation:
                raise
            # the sandbox's own user existed before the restart: its files are not mounted (`with_recovery`)
            raise SandboxUnavailable(f"The process could not start: {error}") from error
        config = self._require_sandbox().config
        forgets_rules = config is not None and config.network == "open" and not config.network_owner
        # a container started from outside gets its interface without rules; this process has run nothing yet
        if forgets_rules and (loss := self._loss()) is not None:
            opened.close()
            raise loss
        return opened

    def _open_checked(self, request: ProcessRequest) -> DockerChannel:
        target, self._unchecked = self._require_sandbox(), False
        try:
            channel = self._open(request)
        except BaseException as error:
            self._unchecked = True
            ended = isinstance(error, SandboxUnavailable) and self._loss_soon() is not None
            if ended and target.facts and (fault := start_failure(target.container, target.facts.platform)):
                raise fault from None
            raise
        if target.config is not None:
            self._accept(channel, target.config, target.container.found)
        self._network.listen()
        return channel

    def _accept(self, channel: DockerChannel, made: ContainerConfig, found: Mapping[str, Any]) -> None:
        """Check the sandbox by its first process's facts; after a refusal, the next attempt checks it again."""
        try:
            selfcheck.refuse_weaker(channel.facts, made, found)
            self._monitors.begin(self._require_sandbox(), channel.facts, keep=self._options.keep)
        except BaseException:
            channel.close()
            self._unchecked = True
            raise
        self._unenforced = tuple(selfcheck.unenforced(channel.facts, made))

    # --- processes find their network from the first moment ---

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        self._check_before_network()
        with self._network.starting():
            yield
        self._wait_for_network()

    def with_recovery(self, attempt: Callable[[], T], failing: type[SandboxUnavailable]) -> T:
        """See `Backend.with_recovery`; the connector, which is retried repeatedly, never restarts a sandbox."""
        return attempt() if self._network.is_connecting else super().with_recovery(attempt, failing)

    def _begin_call(self, call: WorkerCall) -> Exchange | None:
        is_late = call.is_program and not self._network.is_ready
        return None if is_late else super()._begin_call(call)

    def _call_once(self, call: WorkerCall, begun: Exchange | None = None) -> CallResult:
        if call.is_program:
            self._wait_for_network()
            return super()._call_once(call, begun)
        with self._network.starting():  # a process of our own, for example to read a file
            return super()._call_once(call, begun)

    def _worker_wait_s(self, call: WorkerCall) -> float:
        return self._network.worker_wait_s(call)

    def _open_connector(self) -> Channel:
        with self._network.starting(connector=True):
            self._network.write_files()
            return super()._open_connector()

    def _wait_for_network(self) -> None:
        self._check_before_network()
        self._network.wait()

    def _check_before_network(self) -> None:
        """Before a program starts in a new sandbox, make its first process a worker of ours, followed by the connector.

        The engine takes twice as long if two processes start at once, and access to files needs no connector.
        """
        if self._unchecked and self._network.is_awaited:
            self.snippet(b":")

    def _keep_rules(self) -> None:
        self._options = self._options.model_copy(update={"allow": self._network.rules})

    def connect_proxy(self) -> socket.socket | None:
        """See `Backend.connect_proxy`."""
        return self._network.connect_proxy()

    def prepare_browser(self) -> None:
        """See `Backend.prepare_browser`."""
        self._network.prepare_browser()

    def give_secrets(self, secrets: Secrets) -> None:
        """See `Backend.give_secrets`.

        Raises:
            UsageError: a secret is a credential, which stays outside.
        """
        self._network.check_outside(secrets.environment())
        super().give_secrets(secrets)

    # --- called by monitors, and on reconnection to the engine ---

    def add_notice(self, notice: str) -> None:
        """Add a notice to the next result."""
        self._notices.append(notice)

    def end_processes(self) -> None:
        """Kill all processes of the sandbox but PID 1 and one shell of ours; its services are killed and restarted."""
        target = self._require_sandbox()
        if target.pod is not None:
            target.pod.kill()
        if not self._ends_all_from_inside(target):
            target.end_processes()
        self._network.restart()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which the sandbox and its services are paused, as far as the engine can.

        Raises:
            SandboxPaused: others here, such as a checkpoint, have them paused.
        """
        target = self._require_sandbox()
        services = contextlib.nullcontext() if target.pod is None else target.pod.paused(waits=False)
        with target.container.paused(waits=False), services:
            yield

    def _ends_all_from_inside(self, target: Sandbox) -> bool:
        """Kill them by a worker's call, in 0.2 ms; return whether that worked. kill(2) with -1 spares the caller."""
        if target.config is None or not target.config.capabilities:
            return False  # root lacks CAP_KILL
        try:
            return self.snippet(END_ALL, user="root").status == "0"
        except SandboxUnavailable:
            return False

    def _worker_user(self, user: str | int | None) -> str | int | None:
        return None if str(user) in _ROOT and self._require_sandbox().user in {"", *_ROOT} else user

    # --- recovery ---

    def _loss(self) -> SandboxUnavailable | None:
        return self._sandbox.container.loss() if self._sandbox else _closed()

    def _loss_soon(self) -> SandboxUnavailable | None:
        return self._sandbox.container.loss_soon() if self._sandbox else _closed()

    def _revive(self) -> str:
        target = self._require_sandbox()
        notice = provision.revive(target)
        self._unchecked = target.config is not None
        if target.config is not None and target.config.hardening == "strict":
            with contextlib.suppress(SandboxUnavailable):  # the next call reports why no process starts
                self._network.install_credentials(target)
        return " ".join([notice, *self._revive_services(target)])

    def _revive_services(self, target: Sandbox) -> list[str]:
        if target.pod is None:
            return []
        self._monitors.stop()
        self._monitors.begin_disk(target)
        return target.pod.restart_ended(listening=target.listening_ports)

    def _restart(self) -> str:
        if self._options.attach:
            raise SandboxUnavailable(
                f"Container {self.name!r} cannot start a process any more, and it is not ours to restart.",
                remedy=f"Run `docker restart {self.name}`.",
            )
        self._require_sandbox().container.kill()
        self._revive()
        return (
            "The sandbox could start no process any more and was restarted: files are kept; processes, variables and "
            "/run are lost."
        )


def _closed() -> SandboxGone:
    return SandboxGone("The sandbox is not started, or closed.", remedy="Call start(), or use it in a `with` block.")
