"""`CheckpointIndex`: for which events of a log the files are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.events import ConversationStatus

if TYPE_CHECKING:
    from ohsandbox.events import SDKEvent

READ_ONLY = frozenset(
    {"file_read", "glob", "grep", "think", "finish", "web_read", "request_condensation", "task_tracker", "ask_human"}
)
"""Tools that change no file of the sandbox, by name: a log must be readable without making its tools."""

_RUNNING = ConversationStatus.RUNNING.value


class CheckpointRange(NamedTuple):
    """A checkpoint, and the events after which the files were as it has them."""

    seq: int
    """Of the checkpoint event."""
    first: int
    last: int | None
    """None: up to the end of the log."""
    data: dict[str, Any]

    def covers(self, seq: int) -> bool:
        """Whether the files after event seq are these."""
        return self.first <= seq and (self.last is None or seq <= self.last)


class CheckpointIndex:
    """Follows a log: calls that may write, and checkpoints between them.

    What programs in the background and people write is not seen: a checkpoint has what was there when it was made.
    """

    def __init__(self) -> None:
        self.kept: list[CheckpointRange] = []
        self.written = False
        """Something may have been written since the last checkpoint."""
        self._is_known = False
        self._quiet_since = 0
        self._said_after: int | None = None
        self._writing: set[str] = set()
        self._held: set[str] = set()
        self._released: set[str] = set()

    @property
    def is_known(self) -> bool:
        """The last checkpoint has the files as they are."""
        return self._is_known

    def at(self, seq: int) -> CheckpointRange | None:
        """The checkpoint with the files as they were after event seq; None where they were not kept."""
        return next((kept for kept in reversed(self.kept) if kept.covers(seq)), None)

    def add(self, event: SDKEvent) -> None:
        """Take in the next event."""
        data = event.data
        if event.type == "checkpoint":
            self.kept.append(CheckpointRange(event.seq, min(self._quiet_since, event.seq), None, data))
            self._is_known, self.written = True, False
            return
        if self._released:  # calls that a person has allowed: a checkpoint may come between that and their running
            self._begin(self._released, event.seq)
            self._released = set()
        if event.type == "tool_call" and data["name"] not in READ_ONLY:
            call = {data["tool_call_id"]}
            if "held" in data:
                self._held |= call
            else:
                self._begin(call, event.seq)
        elif event.type == "tool_result" and data["tool_call_id"] in self._writing:
            self._writing.discard(data["tool_call_id"])
            self._quiet_since = event.seq
        elif event.type == "status_update" and data["status"] == _RUNNING:
            if self._writing:  # of a run that was cut off: nothing of it is at work any more
                self._writing.clear()
                self._quiet_since = event.seq if self._said_after is None else self._said_after
            self._released, self._held = self._held, set()

        self._listen(event)

    def _listen(self, event: SDKEvent) -> None:
        """Note where the person began to speak: to undo a turn is to go back to there."""
        if event.type == "user_message" and self._said_after is None:
            self._said_after = max(event.seq - 1, 0)
        elif event.type in {"tool_call", "tool_result", "assistant_message"}:
            self._said_after = None

    def _begin(self, calls: set[str], seq: int) -> None:
        self._writing |= calls
        self.written = True
        if self._is_known:
            self._is_known = False
            self.kept = [kept if kept.last is not None else kept._replace(last=seq - 1) for kept in self.kept]
