"""`RunResult`: the outcome of a run."""

from __future__ import annotations

import posixpath
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ohsandbox.events import (
    AssistantMessageEvent,
    CheckpointEvent,
    ConversationStatus,
    ToolCallEvent,
    ToolResultEvent,
)
from ohsandbox.llm import Usage
from ohsandbox.persistence.reading import LogFollower
from ohsandbox.tools import arguments_of, hint_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ohsandbox.events import SDKEvent
    from ohsandbox.persistence.log import LogPosition


class RunResult:
    """The outcome of a run: its status, and its events from the user's message on.

    It is equal to its status: `conversation.run("Go.") == ConversationStatus.IDLE`. All attributes except status and
    error are read from the log on disk at first use; they hold for the time when the run (or the wait) ended.

    Raises:
        UsageError: the log was deleted or cut before an attribute was read.
        LogCorruptError: it was damaged.
    """

    def __init__(
        self,
        directory: Path,
        status: ConversationStatus,
        error: BaseException | None,
        *,
        since: LogPosition,
        until: LogPosition,
        workdir: str,
    ) -> None:
        """Read nothing yet. directory is the conversation's; relative paths in the sandbox start at workdir."""
        self.status = status
        """The status after the run; RUNNING if the wait timed out before its end."""
        self.error = error
        """The error that ended the run with ERROR."""
        self._directory = directory
        self._since = since
        self._until = until
        self._workdir = workdir

    @cached_property
    def events(self) -> tuple[SDKEvent, ...]:
        """The events of the run, in order, from the user's message to the status after it."""
        if self._since.seq >= self._until.seq:
            return ()
        with LogFollower(self._directory, offset=self._since.offset, seq=self._since.seq) as log:
            return tuple(event for event in log.new() if event.seq < self._until.seq)

    @cached_property
    def answer(self) -> str | None:
        """The agent's last text: an answer, the message of `finish`, or a question of `ask_human`; None without any."""
        return next((words for event in reversed(self.events) if (words := answer_in(event)) is not None), None)

    @cached_property
    def usage(self) -> Usage:
        """The tokens of the run's requests to the model, including those of sub-agents and of tools."""
        used = [event.data.get("usage") or {} for event in self.events]
        return Usage(**{name: sum(usage.get(name) or 0 for usage in used) for name in Usage.model_fields})

    @cached_property
    def cost_usd(self) -> float | None:
        """Cost of these requests in US dollars; None if no answer had a price."""
        prices = [price for event in self.events if (price := event.data.get("cost_usd")) is not None]
        return sum(prices) if prices else None

    @cached_property
    def changed_files(self) -> tuple[str, ...]:
        """Files that the run changed, as absolute paths in the sandbox, according to the log.

        These are the files that successful calls of editing tools named, in order. With a bound workspace and
        checkpoints, they include all files that differ between the run's first and last checkpoint, also those that
        commands and sub-agents changed. Otherwise changes by commands are missing: see `ohsandbox diff`.
        """
        from ohsandbox.timetravel.workspace_diff import changed_between  # noqa: PLC0415 - most runs are never asked

        bound = [event.data.workspace for event in self.events if isinstance(event, CheckpointEvent)]
        recorded = [workspace for workspace in bound if workspace]
        committed = changed_between(self._directory, recorded[0], recorded[-1]) if recorded else []
        paths = [*self._edited(), *committed]
        return tuple(dict.fromkeys(posixpath.normpath(posixpath.join(self._workdir, path)) for path in paths))

    def _edited(self) -> Iterator[str]:
        calls = {event.data.tool_call_id: event.data for event in self.events if isinstance(event, ToolCallEvent)}
        for event in self.events:
            if isinstance(event, ToolResultEvent) and event.data.result.status == "ok":
                call: Mapping[str, Any] = calls.get(event.data.tool_call_id, {})
                hint = hint_of(event.data.name, call)
                path = arguments_of(call).get(hint.subject)
                if hint.kind == "edit" and isinstance(path, str):
                    yield path

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ConversationStatus):
            return self.status is other
        return self is other

    def __hash__(self) -> int:
        return hash(self.status)

    def __repr__(self) -> str:
        return f"RunResult({self.status}, log={str(self._directory)!r}, events {self._since.seq} to {self._until.seq})"


def answer_in(event: SDKEvent) -> str | None:
    """Return the text with which an event addresses the user, as an answer does; None for other events."""
    if isinstance(event, AssistantMessageEvent):
        return event.data.content
    if not isinstance(event, ToolCallEvent) or not (hint := hint_of(event.data.name, event.data)).answers:
        return None
    words = arguments_of(event.data).get(hint.subject)
    return words if isinstance(words, str) and words.strip() else event.data.thought
