"""`Backend`: the methods that a kind of sandbox implements, and the changes in a directory that is bound into it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from ohsandbox.errors import SandboxUnavailable, UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.runtime.workspace.changes import ChangeTracker, WorkspaceReport, merged_reports
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
    """Values, by name, that never enter the sandbox, such as its credentials; its output is masked for them, too."""
    state_dir: str
    """Directory in the sandbox for the FIFOs of sessions; every user of the sandbox may write it."""
    isolated: bool = True
    """Whether commands cannot reach files of this machine, except bound directories."""
    private_processes: bool = True
    """Whether all processes that are visible inside belong to the sandbox."""
    ends_processes: bool = False
    """Whether `_close` ends all processes of the sandbox, so that none has to be killed before it."""
    while_starting: Callable[[], None] | None = None
    """Called in the starting thread while only the engine works: work that it begins in threads costs no time."""
    reports_changes_later: bool = False
    """Whether the owner calls `workspace_changes` after `close`, which therefore keeps the data for it."""
    _trackers: tuple[ChangeTracker, ...] = ()
    resumed: ResumeReport | None = None
    """The report of `resume`; None if it was not called."""

    def __init__(self) -> None:
        self.secrets = Secrets()
        """Variables of all shells and of `run`, set by `give_secrets`."""
        self._added_env: dict[str, str] = {}
        """Variables set by `set_env`."""

    # --- what a backend implements -----------------------------------------------------------------

    @property
    @abstractmethod
    def id(self) -> str:
        """The sandbox's id, as in `ohsandbox ps`."""

    @property
    @abstractmethod
    def workdir(self) -> str:
        """Absolute path of the directory in which shells start and to which relative paths refer."""

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

        env is added to the sandbox's own variables. user None is the sandbox's user; workdir None is `workdir`.

        Raises:
            UnknownUserError: user does not exist in the sandbox.
            WorkdirError: workdir cannot be entered.
            SandboxUnavailable: the sandbox cannot start the process.
        """

    @abstractmethod
    def _close(self) -> None:
        """Release the sandbox, and remove it unless it is to be kept. Called once, after shells and workers ended."""

    @abstractmethod
    def close(self, *, keep: bool | None = None) -> None:
        """Release the sandbox; idempotent."""

    def _decide_keep(self, *, keep: bool) -> None:
        """Decide whether `_close` keeps or removes the sandbox; raise UsageError if that is not possible."""
        if keep:
            raise UsageError(
                f"A {type(self).__name__} has nothing to keep: keep=True is for a DockerRuntime. Leave it out."
            )

    def _loss(self) -> SandboxUnavailable | None:
        """Return the error that says why the sandbox is not usable now; None if it is."""
        return None

    def _revive(self) -> str:
        """Start a dead sandbox again with its files; return what happened, as a sentence, or raise."""
        raise self._loss() or SandboxUnavailable(f"The sandbox {self.id} does not answer")

    def _restart(self) -> str:
        """Kill all processes of the sandbox and start it again with its files; return what happened, or raise."""
        raise SandboxUnavailable(f"The sandbox {self.id} cannot start a process any more. Close it and make a new one.")

    def hold(self) -> None:  # noqa: B027 - most kinds have nothing to do
        """Mark the sandbox as resumable: if this process dies, it stays for one that resumes the conversation."""

    def hand_over(self, conversation: str) -> None:  # noqa: ARG002 - for those that can be resumed
        """Transfer the running sandbox to another conversation; from now on only that one can resume it."""
        self.resumed = None

    def leave(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - for those that can
        """Close, but keep the sandbox for `resume` if the backend can; at_once skips the cleanup inside."""
        self.close()

    @property
    def workspace_notes(self) -> tuple[str, ...]:
        """Warnings about the protection of the bound directory, or about a joined container, one per line."""
        return ()

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether the backend supports `checkpoint`."""
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
        """The directory of this machine whose files were copied into the sandbox at its start; None if none were."""
        return None

    def checkpoint(self, label: str = "", *, owner: Path | None = None) -> Checkpoint:  # noqa: ARG002 - as above
        """Store the sandbox's files as they are now, without processes, tmpfs and bound directories of the host.

        Args:
            label: one line for people.
            owner: a directory; after it is deleted, `gc` removes the checkpoint. None keeps it until it is dropped.

        Raises:
            UsageError: this kind of runtime does not support it.
            SandboxUnavailable: the sandbox is not usable, or its disk is full.
        """
        raise self._without_checkpoints(f"label {label!r}")

    @property
    def has_setup(self) -> bool:
        """Whether the started sandbox began with the files that `keep_setup` stored."""
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
            conversation: the id of the conversation that will own the runtime.
            workspace: replaces this one's `host_workspace`; for several, a directory with one for each, or directories
                by their paths in the sandbox.

        Raises:
            UsageError: this kind of runtime does not support it, or workspace does not fit.
        """
        raise self._without_checkpoints(f"id {checkpoint!r}")

    def _restore(self, checkpoint: str) -> None:
        """Restore the files; all processes end. Raises the errors of `restore`; nothing has changed then."""
        raise self._without_checkpoints(f"id {checkpoint!r}")

    def _without_checkpoints(self, which: str) -> UsageError:
        return UsageError(f"{type(self).__name__} does not support checkpoints ({which}). Use a DockerRuntime.")

    def connect_proxy(self) -> socket.socket | None:
        """Return a connection to the allowlist's proxy, as programs inside use it; None without an allowlist."""
        return None

    def prepare_browser(self) -> None:  # noqa: B027 - most have nothing to do
        """Make browsers in the sandbox use its network; call it before a browser is started."""

    def describe(self) -> dict[str, str]:
        """Return facts for a system prompt, name to value."""
        return {"working directory": self.workdir}

    @property
    def machine(self) -> str:
        """What commands run on, for a person: the first words of `describe` on the runtime, such as "this host"."""
        return self.describe().get("runtime", "").partition(",")[0] or "a machine without isolation"

    def environment(self) -> dict[str, str]:
        """Return the variables that new processes get besides the sandbox's own: by `set_env`, and the secrets."""
        return {**self._added_env, **self.secrets.environment()}

    def keep_outside(self, env: Mapping[str, str] | None) -> None:
        """Check that no variable contains one of the values in `outside_secrets`.

        Raises:
            UsageError: a variable does.
        """
        for name, value in (env or {}).items() if self.outside_secrets else ():
            for credential, secret in self.outside_secrets.items():
                if secret in value:
                    raise UsageError(
                        f"Variable {name!r} has the value of credential {credential!r}, which never enters a sandbox. "
                        "Leave the variable out; programs find a placeholder, and the value is added outside."
                    )

    # --- changes in a bound directory ------------------------------------------------------------------

    def watch(self, *directories: Path, mounts: Sequence[Path] = (), read_only: Sequence[Path] = ()) -> None:
        """Record the contents of directories of this machine, for `workspace_changes`.

        mounts: others of the sandbox, of which only that counts which git on this machine reads or runs.
        read_only: others again, whose repositories may name files in these.

        Raises:
            UsageError: the state directory cannot be written.
        """
        state, every = subdirectory("workspaces"), (*directories, *mounts, *read_only)
        self._trackers = tuple(
            ChangeTracker(one, state, beside=[other for other in every if other != one], only_named=one in mounts)
            for one in (*directories, *mounts)
        )

    def _leave_watch(self) -> None:
        """Undo `watch`."""
        for tracker in self._trackers:
            tracker.leave()

    def workspace_changes(self) -> WorkspaceReport:
        """Return new or changed files in the bound directory that this machine may run or obey by itself, worst first.

        Each change since `start` is reported once. This also works after `close`. If an earlier session on the
        directory was killed before it reported, the first call begins with the changes of that session. Empty if no
        directory is bound. With several directories, paths in the first one are relative to it, and others absolute.
        """
        return merged_reports(
            [tracker.report() for tracker in self._trackers], [tracker.root for tracker in self._trackers]
        )

    def discard_changes(self) -> None:
        """Discard the recorded contents of the bound directory, once its changes are reported; `close` does so."""
        for tracker in self._trackers:
            tracker.end()

    @property
    def watched(self) -> Path | None:
        """The first directory on which `workspace_changes` reports; None if there is none."""
        return self._trackers[0].root if self._trackers else None

    @property
    def previous_was_killed(self) -> bool:
        """Whether an earlier session on the directory was killed before its changes were reported."""
        return any(tracker.previous_was_killed for tracker in self._trackers)
