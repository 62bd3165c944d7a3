"""What an error makes of a run."""

from __future__ import annotations

from ohsandbox import events
from ohsandbox.errors import LimitReachedError, OhsandboxError
from ohsandbox.events import ConversationStatus, EventBody


def status_after(error: BaseException, *, canceled: bool) -> tuple[ConversationStatus, BaseException | None]:
    """The status, and the error where it is one: what a stop brought about is none."""
    from ohsandbox.llm import ModelCanceledError  # noqa: PLC0415 - the model's package is loaded by now

    if isinstance(error, KeyboardInterrupt) or (canceled and isinstance(error, ModelCanceledError)):
        return ConversationStatus.CANCELED, None
    return ConversationStatus.ERROR, error


def error_event(error: BaseException) -> EventBody:
    """The event that tells of it."""
    if not isinstance(error, OhsandboxError):
        return events.error(code=type(error).__name__, message=f"{type(error).__name__}: {error}")
    code = error.code if isinstance(error, LimitReachedError) else type(error).__name__
    return events.error(code=code, message=str(error), exit_code=error.exit_code)
