"""Going on with a conversation after the process that ran it has ended, however it ended."""

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
"""The code of notices about what became of the sandbox meanwhile."""
INTERRUPTED = "Interrupted"
"""The code of the notice about a call that a process took with it."""

FINISH = "finish"
"""The tool that ends a task; nobody answers its result."""

MAX_CHECKPOINTS = 20
"""Of the newest so many are tried where the sandbox is gone."""


class ResumeState:
    """What a log says of the sandbox that its conversation worked in."""

    def __init__(self) -> None:
        self.workdirs: dict[str, str] = {}
        """Where each shell session last stood."""
        self.checkpoints: list[str] = []
        """Ids, newest first."""
        self.has_worked = False
        """Something was called: there is something to lose."""
        self.is_finished = False
        """The last thing that happened is a `finish`, whether or not the status after it came to be stored."""

    def add(self, event: SDKEvent) -> None:
        """Take in the next event."""
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
    """Start the runtime, in what the conversation left where it has worked before.

    Raises:
        SandboxUnavailable: it cannot be started.
    """
    if past.has_worked or past.checkpoints:
        runtime.resume(past.checkpoints)
    else:
        runtime.start()


def report_losses(runtime: Runtime, past: ResumeState, history: History) -> Iterator[EventBody]:
    """What the person and the model are to know before the conversation goes on, and put its shells in their places."""
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
