"""Going back in a conversation: fork, undo, redo, and what changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ohsandbox.arguments import expect
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus, SDKEvent
from ohsandbox.timetravel import undo as undoing
from ohsandbox.timetravel.checkpoints import CheckpointIndex, keep_now
from ohsandbox.timetravel.fork import find_checkpoint, fork_into
from ohsandbox.timetravel.snapshots.patch import patch_of
from ohsandbox.timetravel.snapshots.workspaces import Workspaces
from ohsandbox.timetravel.workspace_diff import diff_workspace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.timetravel.fork import Fork


class TimeTravel(ABC):
    """The methods of a conversation that go back. What they return is new, not started, and this one stays as it is."""

    directory: Path
    _log: ConversationLog

    @property
    @abstractmethod
    def runtime(self) -> Runtime | None: ...  # noqa: D102

    @abstractmethod
    def status(self) -> ConversationStatus: ...  # noqa: D102

    @abstractmethod
    def _sibling(self, conversation_id: str, runtime: Runtime | None) -> Self:
        """A conversation with this one's agent and settings."""

    def fork(self, at: int | SDKEvent | None = None, *, workspace: Path | str | None = None) -> Self:
        """A new conversation with the events of this one up to `at`, and the files as they were then; not started.

        It has an id, a log and a sandbox of its own. This one stays as it is.

        Args:
            at: an event or its seq; None is now, which needs no checkpoint of before.
            workspace: an empty directory, or one to be made, for the files of a bound workspace; of several that can be
                written it gets a directory for each, by the last name of its place in the sandbox.

        Raises:
            UsageError: the files at that event were not kept, the conversation runs (at None), or workspace does not
                fit.
            SandboxUnavailable: the engine that has the files does not serve.
        """
        if at is None:
            self._check_idle("Name an event (at=), or stop it first.")
        seq = keep_now(self._log, self.runtime) if at is None else _seq_of(at)
        expect("at", seq, int, optional=False)
        self._check_same_workspaces(seq)
        forked = fork_into(self.directory, seq, workspace=None if workspace is None else Path(workspace))
        place = None if forked.workspace is None else forked.workspace.for_runtime()
        return self._sibling(forked.id, self._forked_runtime(forked, place))

    def undo(self, turns: int = 1) -> Self:
        """A new conversation without the last turns, and their changes taken back from a bound workspace; not started.

        What others have changed in the workspace since then stays; a file that both changed is left as it is, and a
        notice in the new conversation says so. The new one has a sandbox of its own; close this one first if they must
        not share a workspace.

        Raises:
            UsageError: there were fewer turns, their files were not kept, or the conversation runs.
            SandboxUnavailable: the engine that has the files does not serve.
        """
        expect("turns", turns, int, optional=False)
        self._check_idle("Stop it first.")
        forked, _ = undoing.undo(undoing.plan_undo(self.directory, turns))
        stays = None if self.runtime is None else self.runtime.host_workspaces or None
        return self._sibling(forked.id, self._forked_runtime(forked, stays))

    def redo(self) -> Self:
        """The conversation that this one is an `undo` of, with the changes brought back to a bound workspace.

        Its sandbox is made when it is started, from its last checkpoint; a workspace is bound as here.

        Raises:
            ConversationOpenError: a process has that conversation open.
            UsageError: this one was not made by `undo`, that one is gone, or the conversation runs.
            SandboxUnavailable: the engine that has the files does not serve.
        """
        self._check_idle("Stop it first.")
        plan = undoing.plan_redo(self.directory)
        older, _ = undoing.redo(plan)
        kept = CheckpointIndex.of(older).kept
        runtime = self.runtime
        if runtime is not None and kept:
            runtime = runtime.fork(
                str(kept[-1].data["id"]), conversation=older.name, workspace=runtime.host_workspaces or None
            )
        return self._sibling(older.name, runtime)

    def diff(self, since: int | SDKEvent | None = None, until: int | SDKEvent | None = None) -> bytes:
        """What changed in the workspace, as a patch for `git apply`; empty where nothing did.

        Args:
            since: an event or its seq, whose files were kept; None is the beginning.
            until: as since; None is now. Of files in a container, now is after the last turn.

        Raises:
            UsageError: the files at one of them were not kept, or git is not installed.
            SandboxUnavailable: the engine that has them does not serve.
        """
        first, last = (None if event is None else _seq_of(event) for event in (since, until))
        with diff_workspace(self.directory, first, last) as work:
            return b"".join(part.text for part in patch_of(work.changes, work.store.content))

    def _check_idle(self, remedy: str) -> None:
        if self.status() is ConversationStatus.RUNNING:
            raise UsageError(f"The conversation runs, so its files change. {remedy}")

    def _check_same_workspaces(self, seq: int) -> None:
        """Before anything is written: what was kept fits the places of the runtime's workspaces."""
        kept = Workspaces.recorded(find_checkpoint(self.directory, max(seq, 0)).data.get("workspace"))
        now = None if self.runtime is None else Workspaces.bound(self.runtime.host_workspaces)
        if kept is not None and now is not None and kept.places != now.places:
            raise UsageError(f"The workspaces were {kept} then, and are {now} now. Fork it with those of then.")

    def _forked_runtime(self, forked: Fork, workspace: Path | Mapping[str, Path] | None) -> Runtime | None:
        if self.runtime is None:
            return None
        return self.runtime.fork(str(forked.kept.data["id"]), conversation=forked.id, workspace=workspace)


def _seq_of(event: int | SDKEvent) -> int:
    return event.seq if isinstance(event, SDKEvent) else event
