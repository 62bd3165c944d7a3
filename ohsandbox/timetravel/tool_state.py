"""`ToolStateSnapshots`: snapshots of the state that a conversation's tools keep on this machine, for forks.

A checkpoint includes this state. Within the range of a checkpoint only tools that do not write (`checkpoints.writes`)
can have run, so the state holds for the whole range. Of these tools only the task list keeps state, and each state of
it is in the log.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import ToolError, UsageError
from ohsandbox.persistence.layout import TOOL_SNAPSHOTS_NAME, TOOLS_NAME
from ohsandbox.private_files import make_private_dir
from ohsandbox.state import ConversationState
from ohsandbox.strict_json import is_object, load_json
from ohsandbox.timetravel.snapshots.manifest import Manifest, changes_between
from ohsandbox.timetravel.snapshots.store import SnapshotStore
from ohsandbox.tools.task_tracker import TOOL_NAME as TASK_TRACKER
from ohsandbox.tools.task_tracker import make_task_tracker_tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ohsandbox.events import SDKEvent

_FIELD = "tools"
"""Field of a checkpoint event: the snapshot's name; null if the tools had no state; missing if it is unknown."""


class ToolStateSnapshots:
    """The tools' state of one conversation, given the conversation's directory."""

    def __init__(self, directory: Path) -> None:
        self._tools = directory / TOOLS_NAME
        self._kept = SnapshotStore(directory / TOOL_SNAPSHOTS_NAME)

    def keep(self) -> dict[str, str | None]:
        """Store the tools' state; return the field for the checkpoint event, or {} if the state cannot be stored.

        A failure is not an error, since the files matter more: a fork then reports that the state is unknown.
        """
        try:
            return {_FIELD: self._kept.take(self._tools) if self._tools.is_dir() else None}
        except UsageError:
            return {}

    def share_with(self, target: Path, checkpoints: Iterable[Mapping[str, Any]]) -> None:
        """Copy the snapshots that these checkpoints name to a fork; lost ones are skipped."""
        for name in sorted({str(data[_FIELD]) for data in checkpoints if data.get(_FIELD)}):
            with contextlib.suppress(UsageError):
                self._kept.copy_to(target / TOOL_SNAPSHOTS_NAME, [name])

    def put_into(self, target: Path, checkpoint: Mapping[str, Any], events: Iterable[SDKEvent]) -> bool:
        """Write the tools' state at a checkpoint, and the task list of the events, to a fork.

        Returns False if that state is unknown although the tools have state now: in the fork they start without any.

        Raises:
            UsageError: the state cannot be written.
        """
        tools = target / TOOLS_NAME
        is_whole = _FIELD in checkpoint and self._put(tools, checkpoint[_FIELD])
        if not is_whole:
            shutil.rmtree(tools, ignore_errors=True)
        _put_task_list(target, events)
        return is_whole or not self._had_more_than_tasks()

    def _put(self, tools: Path, name: str | None) -> bool:
        if name is None:
            return True
        try:
            tree = self._kept.load(name)
        except UsageError:  # the oldest snapshots have been removed
            return False
        from ohsandbox.timetravel.snapshots.restore import write_changes  # noqa: PLC0415 - few conversations go back

        make_private_dir(tools)
        return not tree.left_out and not write_changes(
            tools, changes_between(Manifest(0, {}, {}), tree), self._kept, git=False
        )

    def _had_more_than_tasks(self) -> bool:
        return self._tools.is_dir() and any(path.name != TASK_TRACKER for path in self._tools.iterdir())


def _put_task_list(directory: Path, events: Iterable[SDKEvent]) -> None:
    """Set a conversation's task list to that of its events, by calling the tool.

    Raises:
        UsageError: the task list cannot be written.
    """
    plan = _last_plan(events)
    if plan is None:
        shutil.rmtree(directory / TOOLS_NAME / TASK_TRACKER, ignore_errors=True)
        return
    state = ConversationState(conversation_id=directory.name, directory=directory / TOOLS_NAME)
    tool = make_task_tracker_tool(conv_state=state)
    try:
        tool(tool.action_from_arguments(plan))
    except ToolError as error:
        raise UsageError(str(error)) from error


def _last_plan(events: Iterable[SDKEvent]) -> dict[str, Any] | None:
    """Return the arguments of the last call that changed the task list; None if there was none."""
    calls: dict[str, dict[str, Any]] = {}
    plan = None
    for event in events:
        data = event.data
        if event.type == "tool_call" and data["name"] == TASK_TRACKER:
            if is_object(data["arguments"]):  # a call with others is refused, and changes nothing
                calls[data["tool_call_id"]] = load_json(data["arguments"])
        elif event.type == "tool_result" and data["tool_call_id"] in calls:
            arguments = calls.pop(data["tool_call_id"])
            if data["result"]["status"] == "ok" and arguments.get("command") == "plan":
                plan = arguments
    return plan
