"""`Branching`: how an open conversation makes a fork of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.conversation.checkpointing import Checkpointing
from ohsandbox.conversation.fork import fork_into
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus, SDKEvent
from ohsandbox.persistence import stream_events

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.conversation.hands import Hands
    from ohsandbox.conversation.standing import Standing
    from ohsandbox.conversation.trail import Trail
    from ohsandbox.runtime.base import Runtime


class Branch(NamedTuple):
    """A fork that is on disk, and its sandbox, which is not started."""

    id: str
    runtime: Runtime | None
    """None where the conversation has none, yet."""


class Branching:
    """Forks of one conversation."""

    def __init__(self, trail: Trail, standing: Standing, hands: Hands) -> None:
        self._trail = trail
        self._standing = standing
        self._hands = hands

    def branch(self, at: int | SDKEvent | None, *, workspace: Path | None) -> Branch:
        """Fork it; arguments and errors are those of `Conversation.fork`."""
        seq = self._now() if at is None else at.seq if isinstance(at, SDKEvent) else at
        forked = fork_into(self._trail.directory, seq, workspace=workspace)
        runtime = self._hands.runtime
        if runtime is not None:
            checkpoint = str(forked.kept.data["id"])
            runtime = runtime.fork(checkpoint, conversation=forked.id, workspace=forked.workspace)
        return Branch(forked.id, runtime)

    def _now(self) -> int:
        """The last event, its files kept."""
        if self._standing.status is ConversationStatus.RUNNING:
            raise UsageError("The conversation runs, so its files change. Name an event (at=), or stop it first.")
        if self._trail.is_open and not self._trail.files.is_known:
            Checkpointing(self._trail, self._hands.runtime, enabled=True).take("for a fork")
        return stream_events(self._trail.directory, lambda _: None).records - 1
