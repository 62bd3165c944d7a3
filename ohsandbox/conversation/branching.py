"""The part of a conversation's public face by which it goes back: `fork`."""

from __future__ import annotations

from abc import ABC
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ohsandbox.conversation.checkpointing import Checkpointing
from ohsandbox.conversation.fork import empty_directory, find_files, fork, put_workspace
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus, SDKEvent
from ohsandbox.persistence import stream_events

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.agent import Agent
    from ohsandbox.conversation.limits import Limits
    from ohsandbox.conversation.trail import Trail
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.settings import Settings


class Branching(ABC):
    """Forks of a conversation."""

    agent: Agent
    directory: Path
    limits: Limits
    runtime: Runtime | None
    user_id: str | None
    _settings: Settings | None
    _status: ConversationStatus
    _trail: Trail

    def fork(self, at: int | SDKEvent | None = None, *, workspace: Path | str | None = None) -> Self:
        """A new conversation with the events of this one up to `at`, and the files as they were then; not started.

        It has an id, a log and a sandbox of its own. This one stays as it is.

        Args:
            at: an event or its seq; None is now, which needs no checkpoint of before.
            workspace: an empty directory, or one to be made, for the files of a bound workspace.

        Raises:
            UsageError: the files of then were not kept, the conversation runs (at None), or workspace does not fit.
            SandboxUnavailable: the engine that has the files does not serve.
        """
        seq = self._now() if at is None else at.seq if isinstance(at, SDKEvent) else at
        bound = find_files(self.directory, max(seq, 0)).data.get("workspace")
        if (bound is None) != (workspace is None):
            raise UsageError(
                "The files lie in a directory of this machine: pass workspace=DIR, an empty one for the fork."
                if workspace is None
                else "The files lie in the container: leave workspace out."
            )
        place = None if workspace is None else empty_directory(Path(workspace))
        forked = fork(self.directory, seq, workspace=place)
        if place is not None and (refused := put_workspace(forked, place)):
            raise UsageError(f"{len(refused)} files cannot be put into {str(place)!r}: {refused[0].why}.")
        return self._like_this(forked.id, str(forked.kept.data["id"]), place)

    def _like_this(self, conversation_id: str, checkpoint: str, workspace: Path | None) -> Self:
        runtime = self.runtime
        if runtime is not None:
            runtime = runtime.fork(checkpoint, conversation=conversation_id, workspace=workspace)
        make: Callable[..., Self] = type(self)
        options: dict[str, Any] = {"settings": self._settings, "limits": self.limits, "user_id": self.user_id}
        return make(
            self.agent, runtime, self.directory.parent, conversation_id=conversation_id, checkpoints=True, **options
        )

    def _now(self) -> int:
        """The last event, its files kept."""
        if self._status is ConversationStatus.RUNNING:
            raise UsageError("The conversation runs, so its files change. Name an event (at=), or stop it first.")
        if self._trail.is_open and not self._trail.files.is_known:
            Checkpointing(self._trail, self.runtime, enabled=True).take("for a fork")
        return stream_events(self.directory, lambda _: None).records - 1
