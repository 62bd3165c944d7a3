"""`Branching`: how an open conversation makes a fork of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus, SDKEvent
from ohsandbox.persistence import stream_events
from ohsandbox.timetravel.checkpoints import CheckpointRecorder
from ohsandbox.timetravel.fork import fork_into

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.conversation.environment import Environment
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.conversation.standing import Standing
    from ohsandbox.runtime.base import Runtime


class Branch(NamedTuple):
    """A fork that is on disk, and its sandbox, which is not started."""

    id: str
    runtime: Runtime | None
    """None where the conversation has none, yet."""


class Branching:
    """Forks of one conversation."""

    def __init__(self, log: ConversationLog, standing: Standing, environment: Environment) -> None:
        self._log = log
        self._standing = standing
        self._environment = environment

    def branch(self, at: int | SDKEvent | None, *, workspace: Path | None) -> Branch:
        """Fork it; arguments and errors are those of `Conversation.fork`."""
        seq = self._now() if at is None else at.seq if isinstance(at, SDKEvent) else at
        forked = fork_into(self._log.directory, seq, workspace=workspace)
        runtime = self._environment.runtime
        if runtime is not None:
            checkpoint = str(forked.kept.data["id"])
            runtime = runtime.fork(checkpoint, conversation=forked.id, workspace=forked.workspace)
        return Branch(forked.id, runtime)

    def _now(self) -> int:
        """The last event, its files kept."""
        if self._standing.status is ConversationStatus.RUNNING:
            raise UsageError("The conversation runs, so its files change. Name an event (at=), or stop it first.")
        if self._log.is_open and not self._log.files.is_known:
            CheckpointRecorder(self._log, self._environment.runtime, enabled=True).take("for a fork")
        return stream_events(self._log.directory, lambda _: None).records - 1
