"""Going back in a conversation: fork, undo, redo, and diff."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ohsandbox.arguments import expect
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus, SDKEvent
from ohsandbox.timetravel.checkpoints import CheckpointIndex, find_checkpoint, keep_now
from ohsandbox.timetravel.snapshots.workspaces import Workspaces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.timetravel.fork import Fork


class TimeTravel(ABC):
    """The methods that go back. Those that return another conversation do not start it, and leave this one as it is."""

    _log: ConversationLog

    @property
    @abstractmethod
    def runtime(self) -> Runtime | None: ...  # noqa: D102

    @abstractmethod
    def status(self) -> ConversationStatus: ...  # noqa: D102

    @abstractmethod
    def _sibling(self, conversation_id: str, runtime: Runtime | None) -> Self:
        """Return a conversation with this one's agent and settings."""

    def fork(self, at: int | SDKEvent | None = None, *, workspace: Path | str | None = None) -> Self:
        """Return a new conversation with this one's events up to `at` and the files at that event; it is not started.

        It has an id, a log and a sandbox of its own. This conversation is not changed.

        Args:
            at: an event or its seq; None is now, for which a checkpoint is taken.
            workspace: a new or empty directory for the files of a bound workspace. If there are several, each gets a
                directory in it, named like the last part of its path in the sandbox.

        Raises:
            UsageError: the files at that event were not kept, a run is active (if at is None), or workspace does not
                fit.
            SandboxUnavailable: the engine is unavailable, or has lost the checkpoint.
        """
        from ohsandbox.timetravel.fork import fork_into  # noqa: PLC0415 - a run that never goes back loads none of it

        if at is None:
            self._check_idle("Name an event (at=), or stop it first.")
        else:
            expect("at", _seq_of(at), int, optional=False)
            self._check_begun()
        seq = keep_now(self._log, self.runtime) if at is None else _seq_of(at)
        self._check_same_workspaces(seq)
        forked = fork_into(self._log.directory, seq, workspace=None if workspace is None else Path(workspace))
        workspace_copy = None if forked.workspace is None else forked.workspace.for_runtime()
        return self._sibling(forked.id, self._forked_runtime(forked, workspace_copy))

    def undo(self, turns: int = 1) -> Self:
        """Undo the last turns; return a new conversation without them, not started.

        In a bound workspace the agent's changes in these turns are reverted; later changes by others stay. A file that
        both have changed stays as it is, and a notice in the new conversation names it. The new conversation has a
        sandbox of its own; close this one first if they must not share a workspace.

        Raises:
            UsageError: there are fewer turns, their files were not kept, or a run is active.
            SandboxUnavailable: the engine is unavailable, or has lost the checkpoint.
        """
        from ohsandbox.timetravel import undo as undoing  # noqa: PLC0415 - a run that never goes back loads none of it

        expect("turns", turns, int, optional=False)
        self._check_idle("Stop it first.")
        forked, _ = undoing.undo(undoing.plan_undo(self._log.directory, turns))
        stays = None if self.runtime is None else self.runtime.host_workspaces or None
        return self._sibling(forked.id, self._forked_runtime(forked, stays))

    def redo(self) -> Self:
        """Restore the undone changes in a bound workspace; return the conversation before the `undo`, not started.

        Starting it makes its sandbox from its last checkpoint; the workspaces are bound as here.

        Raises:
            ConversationOpenError: a process has that conversation open.
            UsageError: `undo` did not make this one, that one was deleted, or a run is active.
            SandboxUnavailable: the engine is unavailable, or has lost the checkpoint.
        """
        from ohsandbox.timetravel import undo as undoing  # noqa: PLC0415 - a run that never goes back loads none of it

        self._check_idle("Stop it first.")
        plan = undoing.plan_redo(self._log.directory)
        older, _ = undoing.redo(plan)
        checkpoints = CheckpointIndex.of(older).kept
        runtime = self.runtime
        if runtime is not None and checkpoints:
            runtime = runtime.fork(
                str(checkpoints[-1].data["id"]), conversation=older.name, workspace=runtime.host_workspaces or None
            )
        return self._sibling(older.name, runtime)

    def diff(self, since: int | SDKEvent | None = None, until: int | SDKEvent | None = None) -> bytes:
        """Return the changes in the workspace as a patch for `git apply`; empty if there are none.

        Args:
            since: an event or its seq, whose files were kept; None is the first checkpoint.
            until: as since; None is now, or for files in a container the last checkpoint.

        Raises:
            UsageError: the files at one of them were not kept, or git is not installed.
            SandboxUnavailable: the engine that has the files is unavailable.
        """
        from ohsandbox.timetravel.snapshots.patch import patch_of  # noqa: PLC0415 - a run that never goes back loads none of it
        from ohsandbox.timetravel.workspace_diff import diff_workspace  # noqa: PLC0415 - a run that never goes back loads none of it

        self._check_begun()
        first, last = (None if event is None else _seq_of(event) for event in (since, until))
        with diff_workspace(self._log.directory, first, last) as work:
            return b"".join(part.text for part in patch_of(work.changes, work.store.content))

    def _check_idle(self, remedy: str) -> None:
        if self.status() is ConversationStatus.RUNNING:
            raise UsageError(f"The conversation runs, so its files change. {remedy}")
        self._check_begun()

    def _check_begun(self) -> None:
        if not self._log.directory.is_dir():
            raise UsageError("The conversation has not begun, so there is nothing to go back to. Run a task first.")

    def _check_same_workspaces(self, seq: int) -> None:
        """Check that the workspaces at the event have the places of the runtime's; raise UsageError if not."""
        recorded = Workspaces.recorded(find_checkpoint(self._log.directory, max(seq, 0)).data.get("workspace"))
        now = None if self.runtime is None else Workspaces.bound(self.runtime.host_workspaces)
        if recorded is not None and now is not None and recorded.places != now.places:
            raise UsageError(f"The workspaces were {recorded} then, and are {now} now. Fork it with those of then.")

    def _forked_runtime(self, forked: Fork, workspace: Path | Mapping[str, Path] | None) -> Runtime | None:
        if self.runtime is None:
            return None
        return self.runtime.fork(str(forked.kept.data["id"]), conversation=forked.id, workspace=workspace)


def _seq_of(event: int | SDKEvent) -> int:
    return event.seq if isinstance(event, SDKEvent) else event
