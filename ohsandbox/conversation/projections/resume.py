"""Resuming: what a log says of the sandbox that the conversation worked in, and what was lost since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox import events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.agent import History
    from ohsandbox.events import EventBody, SDKEvent
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.results import ResumeReport

RESUMED = "Resumed"
"""The code of notices about the sandbox that a resumed conversation gets."""
INTERRUPTED = "Interrupted"
"""The code of the notice about a call that was running when its process ended."""

FINISH = "finish"
"""The tool that ends a task; no request follows its result."""

MAX_CHECKPOINTS = 20
"""Number of newest checkpoints that are tried where the sandbox is gone."""


class ResumeState:
    """The state of the sandbox by the events of the log."""

    def __init__(self) -> None:
        self.workdirs: dict[str, str] = {}
        """Working directory of each shell session, by its name."""
        self.checkpoints: list[str] = []
        """Ids, newest first."""
        self.has_worked = False
        """Whether a tool was called: then the sandbox has something to lose."""
        self.is_finished = False
        """Whether the last call was a successful `finish`, also where the status after it was not stored."""

    def add(self, event: SDKEvent) -> None:
        """Follow the next event."""
        if event.type in {"user_message", "tool_call"}:
            self.is_finished = False
        if event.type == "tool_result":
            self.is_finished = event.data["name"] == FINISH and event.data["result"]["status"] == "ok"
            details = event.data.get("details") or {}
            session, cwd = details.get("session"), details.get("cwd")
            if isinstance(session, str) and isinstance(cwd, str) and cwd.startswith("/"):
                self.workdirs[session] = cwd
        elif event.type == "tool_call":
            self.has_worked = True
        elif event.type == "checkpoint" and isinstance(event.data.get("id"), str):
            self.checkpoints = [event.data["id"], *self.checkpoints[: MAX_CHECKPOINTS - 1]]


def resume_runtime(runtime: Runtime, past: ResumeState) -> None:
    """Start the runtime; resume the earlier sandbox or a checkpoint of it where the conversation has worked before.

    Raises:
        SandboxUnavailable: it cannot be started.
    """
    if past.has_worked or past.checkpoints:
        runtime.resume(past.checkpoints)
    else:
        runtime.start()


def report_losses(runtime: Runtime, past: ResumeState, history: History) -> Iterator[EventBody]:
    """Yield notices of what was lost since the last process, and reopen the shells in their working directories."""
    if not past.has_worked:
        return
    held = {call.tool_call_id for call in history.held.all}
    for tool_call_id, name in history.unanswered.items():
        if tool_call_id not in held:
            message = f"A call of {name} was cut off. Its outcome is unknown; it is not run again by itself."
            yield events.notice(code=INTERRUPTED, message=message, tool_call_id=tool_call_id)
    if runtime.resumed is None or runtime.resumed.how != "new":
        for session, workdir in past.workdirs.items():
            runtime.reopen_session(session, workdir=workdir)
    if runtime.resumed is not None:
        yield from _told(runtime.resumed)


def _told(resumed: ResumeReport) -> Iterator[EventBody]:
    for note in resumed.notes:
        yield events.notice(code=RESUMED, message=note)
    if resumed.how == "same":
        return
    if resumed.how == "new":
        lost = "its files are lost, but for those in a mounted workspace"
    else:
        lost = "its files are those of the last checkpoint, and what changed after it is lost"
    place = f" {resumed.place!r}" if resumed.place else ""
    yield events.notice(
        code=RESUMED,
        message=f"The sandbox of before is gone. In the new one{place} {lost}; installed packages, shells and running "
        "programs as well. Look at what is there before you go on.",
        to_model=True,
    )
