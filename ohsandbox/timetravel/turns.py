"""Turns of a conversation: each begins with a message of a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox import events
from ohsandbox.errors import UsageError
from ohsandbox.persistence import stream_events

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.events import SDKEvent

_FROM_US = "[From ohsandbox, not the user:"
"""Beginning of a message that no person wrote; it does not begin a turn."""

_RUNNING = events.ConversationStatus.RUNNING.value


def is_turn(event: SDKEvent) -> bool:
    """Whether a person wrote this message to the agent; if no run is active, it begins a turn."""
    if event.type != "user_message":
        return False
    content = str(event.data["content"])
    return not content.startswith(_FROM_US) and content.strip() != events.EXIT


class Turns:
    """Finds the messages with which turns begin.

    One that a person sends during a run begins a turn only if the run is interrupted before the agent has read it.
    """

    def __init__(self) -> None:
        self._is_running = False
        self._unheard: SDKEvent | None = None

    def begun_by(self, event: SDKEvent) -> SDKEvent | None:
        """Take the next event; return the message that thereby has begun a turn, or None."""
        message = None
        if event.type == "status_update":
            was_running, self._is_running = self._is_running, event.data["status"] == _RUNNING
            if was_running and self._is_running:  # that run was interrupted: the next one reads the message
                message = self._unheard
        elif is_turn(event):
            if not self._is_running:
                return event
            self._unheard = self._unheard or event
            return None
        if event.type in {"status_update", "assistant_message", "tool_call", "tool_result"}:
            self._unheard = None
        return message


def seq_before_turns(directory: Path, turns: int) -> int:
    """Return the seq of the event before the last `turns` turns; -1 if there is none.

    Raises:
        UsageError: there are fewer turns, or turns is below 1.
    """
    turn_seqs: list[int] = []
    counted = Turns()

    def note(event: SDKEvent) -> None:
        if (message := counted.begun_by(event)) is not None:
            turn_seqs.append(message.seq)

    stream_events(directory, note)
    if not turn_seqs:
        raise UsageError(f"Conversation {directory.name!r} has no turn to undo. Run a task in it first.")
    if not 1 <= turns <= len(turn_seqs):
        raise UsageError(
            f"{turns} turns cannot be undone in {directory.name!r}: it has {len(turn_seqs)}. Ask for fewer."
        )
    return turn_seqs[-turns] - 1
