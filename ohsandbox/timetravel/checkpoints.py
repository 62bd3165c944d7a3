"""Checkpoints of a conversation: `CheckpointIndex` lists those in its log, `CheckpointRecorder` takes new ones."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from ohsandbox import events
from ohsandbox.errors import LogWriteError, OhsandboxError, UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.persistence import stream_events
from ohsandbox.persistence.layout import SNAPSHOTS_NAME
from ohsandbox.timetravel.snapshots.store import SnapshotStore
from ohsandbox.timetravel.snapshots.workspaces import Workspaces
from ohsandbox.timetravel.tool_state import ToolStateSnapshots
from ohsandbox.tools import hint_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ohsandbox.events import EventBody, SDKEvent
    from ohsandbox.runtime.base import Runtime

_RUNNING = ConversationStatus.RUNNING.value

COPIED_FROM = "copied_from"
"""Field of a checkpoint event: the directory of this machine whose copy the agent works on."""


def writes(call: Mapping[str, Any]) -> bool:
    """Whether a tool call, given the data of its event, may change files in the sandbox."""
    return hint_of(str(call.get("name", "")), call).writes


class CheckpointRange(NamedTuple):
    """A checkpoint, and the events after which the files were as in it."""

    seq: int
    """The sequence number of the checkpoint event."""
    first: int
    last: int | None
    """The last event of the range; None means the end of the log."""
    data: dict[str, Any]

    def covers(self, seq: int) -> bool:
        """Whether the files after event seq are those of the checkpoint."""
        return self.first <= seq and (self.last is None or seq <= self.last)


class CheckpointIndex:
    """The checkpoints of a log, and the calls between them that may have written files.

    Changes by background programs and by people are not tracked: a checkpoint has the files at the time when it was
    taken.
    """

    def __init__(self) -> None:
        self.kept: list[CheckpointRange] = []
        self.last_seq = -1
        """The sequence number of the newest event."""
        self.written = False
        """Whether files may have been written since the last checkpoint."""
        self.is_known = False
        """Whether the last checkpoint has the files as they are now."""
        self._quiet_since = 0
        self._said_after: int | None = None
        self._writing: set[str] = set()
        self._held: set[str] = set()
        self._released: set[str] = set()

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Return the checkpoints of a stored conversation.

        Raises:
            UsageError: its log is missing or cannot be read.
        """
        files = cls()
        stream_events(directory, files.add)
        return files

    def at(self, seq: int) -> CheckpointRange | None:
        """Return the checkpoint with the files after event seq; None if they were not kept."""
        return next((checkpoint for checkpoint in reversed(self.kept) if checkpoint.covers(seq)), None)

    def add(self, event: SDKEvent) -> None:
        """Update the index with the next event."""
        data, self.last_seq = event.data, event.seq
        if event.type == "checkpoint":
            self.kept.append(CheckpointRange(event.seq, min(self._quiet_since, event.seq), None, data))
            self.is_known, self.written = True, False
            return
        if self._released:  # calls that a person has allowed: a checkpoint may be taken before they run
            self._begin(self._released, event.seq)
            self._released = set()
        if event.type == "tool_call" and writes(data):
            call = {data["tool_call_id"]}
            if "held" in data:
                self._held |= call
            else:
                self._begin(call, event.seq)
        elif event.type == "tool_result" and data["tool_call_id"] in self._writing:
            self._writing.discard(data["tool_call_id"])
            self._quiet_since = event.seq
        elif event.type == "status_update" and data["status"] == _RUNNING:
            if self._writing:  # calls of an interrupted run: none of them runs any more
                self._writing.clear()
                self._quiet_since = event.seq if self._said_after is None else self._said_after
            self._released, self._held = self._held, set()
        if event.type == "user_message" and self._said_after is None:
            self._said_after = max(event.seq - 1, 0)  # undo goes back to the event before the user's message
        elif event.type in {"tool_call", "tool_result", "assistant_message"}:
            self._said_after = None

    def _begin(self, calls: set[str], seq: int) -> None:
        self._writing |= calls
        self.written = True
        if self.is_known:
            self.is_known = False
            self.kept = [
                checkpoint if checkpoint.last is not None else checkpoint._replace(last=seq - 1)
                for checkpoint in self.kept
            ]


def find_checkpoint(directory: Path, at: int) -> CheckpointRange:
    """Return the checkpoint with the files of a conversation after event `at`.

    Raises:
        UsageError: there is no such event, or its files were not kept; the message names events with kept files.
    """
    files = CheckpointIndex.of(directory)
    if files.last_seq < 0:
        raise UsageError(f"Conversation {directory.name!r} has no events to go back to. Run a task in it first.")
    if not 0 <= at <= files.last_seq:
        message = f"Invalid event {at} of conversation {directory.name!r}: its last is {files.last_seq}."
        raise UsageError(f"{message} Take that or an earlier one.")
    checkpoint = files.at(at)
    if checkpoint is None:
        ranges = [
            f"{checkpoint.first}-{'' if checkpoint.last is None else checkpoint.last}"
            for checkpoint in files.kept[-10:]
        ]
        places = (
            "No files are kept: checkpoints are off (in Python, Conversation(checkpoints=True) turns them on), or this "
            "kind of sandbox keeps none."
        )
        places = f"They were kept for events {', '.join(ranges)}." if ranges else places
        raise UsageError(f"The files after event {at} of {directory.name!r} were not kept. {places}")
    return checkpoint


class CheckpointLog(Protocol):
    """The parts of a conversation's log that a recorder uses."""

    directory: Path
    """The conversation's directory."""
    files: CheckpointIndex
    """The checkpoints that the log holds."""

    @property
    def is_open(self) -> bool:
        """Whether events can be stored."""

    def emit(self, body: EventBody) -> SDKEvent:
        """Store an event and pass it to the listeners.

        Raises:
            LogWriteError: the event could not be stored.
        """


class CheckpointRecorder:
    """Takes checkpoints during one run. If taking one fails, a notice reports it and the run continues."""

    def __init__(self, log: CheckpointLog, runtime: Runtime | None, *, enabled: bool) -> None:
        """Create a recorder; it takes no checkpoints if the runtime does not keep any."""
        self._log = log
        self._runtime = runtime
        self._enabled = enabled and runtime is not None and runtime.keeps_checkpoints
        is_new = runtime is not None and runtime.resumed is not None and runtime.resumed.how == "new"
        self._looked = runtime is None or not (runtime.host_workspace or is_new)
        """Whether the log's record of the files still holds: a bound workspace may have changed since the last run."""
        self._begun = self._given_up = False

    @cached_property
    def _snapshots(self) -> SnapshotStore:
        return SnapshotStore(self._log.directory / SNAPSHOTS_NAME)

    @cached_property
    def _tools(self) -> ToolStateSnapshots:
        return ToolStateSnapshots(self._log.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.after_run()

    def before(self, body: EventBody) -> None:
        """Take a checkpoint before a call that may write; called with each event before it is stored."""
        if body.type == "tool_call" and writes(body.data) and "held" not in body.data:
            self.before_write()

    def before_write(self) -> None:
        """Take a checkpoint, once per run, unless the last one still has the files."""
        was_begun, self._begun = self._begun, True
        if self._enabled and not was_begun and not (self._looked and self._log.files.is_known):
            self._try("before the first change of a turn")

    def after_run(self) -> None:
        """Take a checkpoint of the run's result: the sandbox may be gone when it is needed."""
        if self._enabled and self._log.files.written and self._log.is_open:
            self._try("after a turn")

    def take(self, label: str) -> None:
        """Take a checkpoint now.

        Raises:
            OhsandboxError: there is no sandbox yet, or the files cannot be kept.
        """
        if self._runtime is None:
            raise UsageError("The conversation has no sandbox yet, so nothing can be kept. Send a message first.")
        bound = Workspaces.bound(self._runtime.host_workspaces)
        workspace = None if bound is None else bound.record() | {"snapshot": self._snapshots.take(bound)}
        checkpoint = self._runtime.checkpoint(label, owner=self._log.directory)
        image = self._runtime.describe().get("image")
        extra_fields = self._tools.keep() | self._copied_from()
        self._log.emit(
            events.checkpoint(
                id=checkpoint.id,
                label=label,
                workspace=workspace,
                size_bytes=checkpoint.size_bytes,
                image=image,
                **extra_fields,
            )
        )
        self._looked = True

    def _copied_from(self) -> dict[str, str]:
        """Return the field for the copied directory, from the runtime or else from the last checkpoint."""
        if self._runtime is None or self._runtime.host_workspace is not None:
            return {}
        if (copied := self._runtime.copied_workspace) is not None:
            return {COPIED_FROM: str(copied)}
        checkpoints = self._log.files.kept
        return (
            {COPIED_FROM: checkpoints[-1].data[COPIED_FROM]}
            if checkpoints and COPIED_FROM in checkpoints[-1].data
            else {}
        )

    def _try(self, label: str) -> None:
        if self._given_up:
            return
        try:
            self.take(label)
        except LogWriteError:
            raise
        except OhsandboxError as error:
            self._given_up = True  # no other attempt in this turn: a failing one may take long
            message = f"The files could not be kept, so this cannot be undone: {error}"
            self._log.emit(events.notice(code="CheckpointFailed", message=message))


def keep_now(log: CheckpointLog, runtime: Runtime | None) -> int:
    """Take a checkpoint if the log is open and the files may have changed; return the seq of the last event.

    Raises:
        OhsandboxError: the files cannot be kept.
    """
    if log.is_open and not log.files.is_known:
        CheckpointRecorder(log, runtime, enabled=True).take("for a fork")
    return stream_events(log.directory, lambda _: None).records - 1
