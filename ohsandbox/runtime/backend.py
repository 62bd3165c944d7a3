"""`Backend`: the methods that a kind of sandbox implements, and the changes in a directory that is bound into it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from ohsandbox.errors import SandboxUnavailable, UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.runtime.workspace.changes import ChangeTracker, WorkspaceReport, merged
from ohsandbox.secrets import Secrets

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.channel import Channel
    from ohsandbox.runtime.results import Checkpoint, ResumeReport


class Backend(ABC):
    """A sandbox in which processes can be started."""

    outside_secrets: Mapping[str, str] = MappingProxyType({})
    """Values by name that never enter the sandbox, such as those of its credentials; its output is masked
    for them, too.
    """
    state_dir: str
    """The directory of the sandbox where sessions keep their FIFOs; every user of the sandbox may write it."""
    isolated: bool = True
    """Commands can reach no files of this machine except a bound workspace."""
    private_processes: bool = True
    """All processes that are visible inside belong to the sandbox."""
    ends_processes: bool = False
    """`_close` ends every process of the sandbox, so none has to be killed before it."""
    while_starting: Callable[[], None] | None = None
    """Called in the starting thread when only the engine works: what it begins in threads costs the start no time."""
    reports_changes_later: bool = False
    """Whether the owner calls `workspace_changes` after `close` and reports them: `close` keeps the data for it."""
    _trackers: tuple[ChangeTracker, ...] = ()
    resumed: ResumeReport | None = None
    """The report of `resume`; None if it was not called."""

    def __init__(self) -> None:
        self.secrets = Secrets()
        """Variables of every shell and every `run`, set by `give_secrets`."""
        self._added_env: dict[str, str] = {}
        """Variables set by `set_env`."""

    # --- what a backend implements -----------------------------------------------------------------

    @property
    @abstractmethod
    def id(self) -> str:
        """The sandbox's id, as `ohsandbox ps` shows it."""

    @property
    @abstractmethod
    def workdir(self) -> str:
        """The absolute path of the directory in which shells start and against which relative paths are resolved."""

    @property
    def scratch_dir(self) -> str:
        """The directory of the sandbox for larger files of ours, such as whole outputs, which end with the sandbox."""
        return self.state_dir

    @abstractmethod
    def start(self) -> Self:
        """Create the sandbox; idempotent.

        Raises:
            SandboxUnavailable: it cannot be created; nothing is left behind.
        """

    @abstractmethod
    def is_alive(self) -> bool:
        """Whether the sandbox is usable now."""

    @abstractmethod
    def open_channel(
        self,
        argv: Sequence[str],
        *,
        tty: bool = False,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        workdir: str | None = None,
    ) -> Channel:
        """Start a process as the leader of its own session and return the channel to it.

        env is added to the sandbox's own. user None is the sandbox's; workdir None is `workdir`.

        Raises:
            UnknownUserError: user does not exist in the sandbox.
            WorkdirError: workdir cannot be entered.
            SandboxUnavailable: the sandbox cannot start it.
        """

    @abstractmethod
    def _close(self) -> None:
        """Release the sandbox and remove it unless it is to be kept. Called once, after shells and workers ended."""

    @abstractmethod
    def close(self, *, keep: bool | None = None) -> None:
        """Release the sandbox; idempotent."""

    def _decide_keep(self, *, keep: bool) -> None:
        """Decide whether `_close` keeps or removes the sandbox; raises UsageError where that is not possible."""
        if keep:
            raise UsageError(
                f"A {type(self).__name__} has nothing to keep: keep=True is for a DockerRuntime. Leave it out"
            )

    def _loss(self) -> SandboxUnavailable | None:
        """Return the error that says why the sandbox is not usable now, or None."""
        return None

    def _revive(self) -> str:
        """Start a dead sandbox again with its files; returns what happened, as a sentence, or raises."""
        raise self._loss() or SandboxUnavailable(f"The sandbox {self.id} does not answer")

    def _restart(self) -> str:
        """Kill every process of the sandbox and start it again, files kept; returns what happened, or raises."""
        raise SandboxUnavailable(f"The sandbox {self.id} cannot start a process any more; close it and make a new one")

    def hold(self) -> None:  # noqa: B027 - most kinds have nothing to do
        """Mark the sandbox as resumable: if this process dies, it stays for a process that resumes the conversation."""

    def hand_over(self, conversation: str) -> None:  # noqa: ARG002 - for those that can be resumed
        """Transfer the running sandbox to another conversation: only that one can resume it from now on."""
        self.resumed = None

    def leave(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - for those that can
        """Close, but keep the sandbox for `resume` where the backend can; at_once skips the cleanup inside it."""
        self.close()

    @property
    def workspace_notes(self) -> tuple[str, ...]:
        """Warnings about the protection of the bound directory or about a joined container, a line each."""
        return ()

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether `checkpoint` is supported."""
        return False

    @property
    def host_workspace(self) -> Path | None:
        """The directory of this machine that the sandbox works in; None if it has its own files."""
        return None

    @property
    def host_workspaces(self) -> Mapping[str, Path]:
        """The directories of this machine that the sandbox works in and may write, by their paths in the sandbox."""
        return {} if self.host_workspace is None else {self.workdir: self.host_workspace}

    @property
    def copied_workspace(self) -> Path | None:
        """The directory of this machine whose files were copied into the sandbox at its start; None without a copy."""
        return None

    def checkpoint(self, label: str = "", *, owner: Path | None = None) -> Checkpoint:  # noqa: ARG002 - as above
        """Store the sandbox's files as they are now, without processes, tmpfs and bound directories of the host.

        Args:
            label: one line for people.
            owner: a directory; once it is gone, `gc` removes the checkpoint. None keeps it until it is dropped.

        Raises:
            UsageError: this kind of runtime cannot.
            SandboxUnavailable: the sandbox is not usable, or its disk is full.
        """
        raise self._without_checkpoints(f"label {label!r}")

    @property
    def has_setup(self) -> bool:
        """Whether the sandbox began, once started, with the files that `keep_setup` stored."""
        return False

    def keep_setup(self, setup_key: str | None) -> str:  # noqa: ARG002 - for those that keep some
        """Store the files for the next sandbox with this `setup_key`; return why they are not stored, or "".

        Raises:
            SandboxUnavailable: the sandbox is not usable, or its disk is full.
            UsageError: the state directory cannot be written.
        """
        return "this kind of sandbox keeps no checkpoints"

    def fork(
        self,
        checkpoint: str,
        *,
        conversation: str,  # noqa: ARG002 - as above
        workspace: Path | Mapping[str, Path] | None = None,  # noqa: ARG002 - as above
    ) -> Runtime:
        """Return a runtime with this one's settings, not started, that begins with the checkpoint's files.

        Args:
            checkpoint: its id.
            conversation: the conversation that owns it.
            workspace: replaces this one's `host_workspace`; of several, a directory that has one for each, or each by
                its place in the sandbox.

        Raises:
            UsageError: this kind of runtime cannot, or workspace does not fit.
        """
        raise self._without_checkpoints(f"id {checkpoint!r}")

    def _restore(self, checkpoint: str) -> None:
        """Restore the files; every process ends. Raises as `restore`; nothing has changed then."""
        raise self._without_checkpoints(f"id {checkpoint!r}")

    def _without_checkpoints(self, which: str) -> UsageError:
        return UsageError(f"{type(self).__name__} does not support checkpoints ({which}). Use a DockerRuntime.")

    def connect_proxy(self) -> socket.socket | None:
        """Open a connection to the allowlist's proxy, as programs inside do; None without an allowlist."""
        return None

    def prepare_browser(self) -> None:  # noqa: B027 - most have nothing to do
        """Let browsers of the sandbox use its network; call it before a browser is started."""

    def describe(self) -> dict[str, str]:
        """Return facts for a system prompt, name to value."""
        return {"working directory": self.workdir}

    def environment(self) -> dict[str, str]:
        """The variables of every new process on top of the sandbox's own: those of `set_env`, and the secrets."""
        return {**self._added_env, **self.secrets.environment()}

    def keep_outside(self, env: Mapping[str, str] | None) -> None:
        """Refuse variables whose value is one of `outside_secrets`, which must not enter the sandbox.

        Raises:
            UsageError: one has such a value.
        """
        for name, value in (env or {}).items() if self.outside_secrets else ():
            for known, secret in self.outside_secrets.items():
                if secret in value:
                    raise UsageError(
                        f"Variable {name!r} has the value of credential {known!r}, which never enters a sandbox. "
                        "Remedy: leave the variable out; programs find a placeholder, and the value is added outside."
                    )

    # --- changes in a bound directory ------------------------------------------------------------------

    def watch(self, *directories: Path) -> None:
        """Record the contents of directories of this machine, for `workspace_changes`.

        Raises:
            UsageError: the state directory cannot be written.
        """
        self._trackers = tuple(ChangeTracker(one, subdirectory("workspaces")) for one in directories)

    def _leave_watch(self) -> None:
        """Undo `watch`."""
        for one in self._trackers:
            one.leave()

    def workspace_changes(self) -> WorkspaceReport:
        """New or changed files in the bound directory that this machine may run or obey on its own, worst first.

        Each change is reported once: since `start`, or since the last call. It works after `close` as well, when
        nothing changes any more. If an earlier session on the directory was killed before it reported, the first call
        begins with that session. Empty if no directory is bound. Of several directories, paths in the first one are
        relative to it, and the others absolute.
        """
        return merged([one.report() for one in self._trackers], [one.root for one in self._trackers])

    def discard_changes(self) -> None:
        """Discard the recorded contents of the bound directory after its changes are reported; `close` does so."""
        for one in self._trackers:
            one.end()

    @property
    def watched(self) -> Path | None:
        """The first directory that `workspace_changes` reports on, or None."""
        return self._trackers[0].root if self._trackers else None

    @property
    def previous_was_killed(self) -> bool:
        """Whether an earlier session on the directory was killed and its changes have not been reported."""
        return any(one.previous_was_killed for one in self._trackers)
