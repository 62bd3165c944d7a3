"""Every error that ohsandbox raises, and who is told of it.

    OhsandboxError
    ├── ToolError                     told to the model; the loop goes on
    │   ├── UnknownToolError          (LookupError)
    │   ├── ToolArgumentsError        (ValueError)
    │   └── SandboxFileError          (OSError, and the builtin of its errno: FileNotFoundError, ...)
    ├── UsageError                    (ValueError) a wrong argument, setting or file; exit code 2
    │   ├── UnknownUserError          (LookupError) the sandbox has no such user
    │   ├── WorkdirError              (FileNotFoundError or NotADirectoryError)
    │   ├── ProgramNotFoundError      (FileNotFoundError) a program of this machine
    │   └── UnknownSessionError       (LookupError)
    ├── CallCancelledError            an upload or download whose caller set `cancel`
    ├── ConversationOpenError         another process has it; exit code 3
    ├── LogCorruptError               the event log was damaged in the middle; exit code 1
    ├── LogWriteError                 (OSError) an event could not be made durable; exit code 1
    ├── LimitReachedError             iterations, time, tokens or cost; exit code 1
    ├── SandboxUnavailable            the sandbox or its engine cannot serve; exit code 4
    │   ├── EngineUnavailable         (ConnectionError) no engine answers
    │   ├── ImageUnavailable          the image cannot be had, or cannot run
    │   ├── SandboxPaused
    │   └── SandboxGone               removed, or dead and past revival
    └── ModelError                    the model or its provider; exit code 5

`ToolError` is the one branch that a model is told of. Everything else ends the run.
A non-zero exit code of a command is a result, never an error.
"""

from __future__ import annotations

import errno
from typing import ClassVar

__all__ = [
    "CallCancelledError",
    "ConversationOpenError",
    "EngineUnavailable",
    "ImageUnavailable",
    "LimitReachedError",
    "LogCorruptError",
    "LogWriteError",
    "ModelError",
    "OhsandboxError",
    "ProgramNotFoundError",
    "SandboxFileError",
    "SandboxFileNotFoundError",
    "SandboxGone",
    "SandboxIsADirectoryError",
    "SandboxNotADirectoryError",
    "SandboxPaused",
    "SandboxPermissionError",
    "SandboxRefused",
    "SandboxUnavailable",
    "ToolArgumentsError",
    "ToolError",
    "UnknownSessionError",
    "UnknownToolError",
    "UnknownUserError",
    "UsageError",
    "WorkdirError",
    "WorkdirMissingError",
    "WorkdirNotADirectoryError",
]


class OhsandboxError(Exception):
    """Root of the tree. `str(error)` is one line of sentences: the fact with its value, then the remedy.

    The remedy is the last sentence, in the imperative. It is part of the message, or a parameter of its own where other
    code needs the fact without it, as a message that quotes this error does.
    """

    exit_code: ClassVar[int] = 1
    remedy: str = ""

    def __init__(self, *args: object, remedy: str = "") -> None:
        super().__init__(*args)
        if remedy:
            self.remedy = remedy

    @property
    def fact(self) -> str:
        """The message without `remedy`."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.fact} {self.remedy}" if self.remedy else self.fact


# --- told to the model ------------------------------------------------------------------------


class ToolError(OhsandboxError):
    """A tool could not do what it was asked; the model reads the message and may try again."""


class UnknownToolError(ToolError, LookupError):
    """The model called a tool that does not exist."""


class ToolArgumentsError(ToolError, ValueError):
    """The arguments of a tool call are malformed; nothing ran."""


class SandboxFileError(ToolError, OSError):
    """A file of the sandbox could not be read or written: `errno`, `strerror` and `filename` are set.

    `file_error` makes the right subclass, which is also the builtin that its errno stands for.
    """

    @property
    def fact(self) -> str:
        """Errno, reason and path."""
        return f"{super().fact}."

    @property
    def message(self) -> str:
        """Path, reason and remedy, as a model reads them: without the errno."""
        return f"{self.filename}: {self.strerror}. {self.remedy}".rstrip()


class SandboxFileNotFoundError(SandboxFileError, FileNotFoundError):
    """ENOENT."""


class SandboxPermissionError(SandboxFileError, PermissionError):
    """EACCES or EPERM."""


class SandboxIsADirectoryError(SandboxFileError, IsADirectoryError):
    """EISDIR."""


class SandboxNotADirectoryError(SandboxFileError, NotADirectoryError):
    """ENOTDIR."""


_FILE_ERRORS: dict[int, type[SandboxFileError]] = {
    errno.ENOENT: SandboxFileNotFoundError,
    errno.EACCES: SandboxPermissionError,
    errno.EPERM: SandboxPermissionError,
    errno.EISDIR: SandboxIsADirectoryError,
    errno.ENOTDIR: SandboxNotADirectoryError,
}


def file_error(number: int, reason: str, path: str, remedy: str = "") -> SandboxFileError:
    """Return the error for `errno` number on path; also an instance of the builtin that Python maps the errno to.

    The reason is a clause without a full stop, as those of `os.strerror`.
    """
    return _FILE_ERRORS.get(number, SandboxFileError)(number, reason, path, remedy=remedy)


# --- ends the run -----------------------------------------------------------------------------


class UsageError(OhsandboxError, ValueError):
    """A wrong argument, setting or input file."""

    exit_code = 2


class UnknownUserError(UsageError, LookupError):
    """The sandbox has no user of that name."""


class WorkdirError(UsageError, OSError):
    """The requested working directory cannot be entered; always one of the two subclasses.

    `errno`, `strerror` and `filename` are set.
    """

    def __init__(self, number: int, reason: str, path: str, *, remedy: str = "") -> None:
        OSError.__init__(self, number, reason, path)
        self.remedy = remedy

    @property
    def fact(self) -> str:
        """Reason and path."""
        return f"{self.strerror}: {self.filename!r}."


class WorkdirMissingError(WorkdirError, FileNotFoundError):
    """The directory does not exist in the sandbox."""


class WorkdirNotADirectoryError(WorkdirError, NotADirectoryError):
    """The path exists and is not a directory."""


class ProgramNotFoundError(UsageError, FileNotFoundError):
    """A program of this machine is needed, and is in no directory that programs are taken from."""


class UnknownSessionError(UsageError, LookupError):
    """No shell session of that name is open."""


class CallCancelledError(OhsandboxError):
    """An upload or download was ended by its caller. Part of it may be left at the target."""


class ConversationOpenError(OhsandboxError):
    """The conversation is open in another process."""

    exit_code = 3


class LogCorruptError(OhsandboxError):
    """The event log is damaged before its last record."""


class LogWriteError(OhsandboxError, OSError):
    """An event could not be made durable; the log ends on the last whole record and takes no more."""


class LimitReachedError(OhsandboxError):
    """A limit of the conversation was reached; `code` says which (MaxIterations, MaxTime, MaxTokens, MaxCost).

    With the code AnswerCut the limit is one of the provider: its last answer is not whole.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class SandboxUnavailable(OhsandboxError):  # noqa: N818 - the name is public
    """The sandbox or its engine cannot serve. Never the result of a command."""

    exit_code = 4


class EngineUnavailable(SandboxUnavailable, ConnectionError):  # noqa: N818 - as its parent
    """No Docker engine answers where it was looked for."""


class ImageUnavailable(SandboxUnavailable):
    """The image is not here and cannot be pulled, or cannot run as a sandbox."""


class SandboxRefused(SandboxUnavailable):
    """The sandbox is less strict than requested, or the machine is full; starting it again would not help."""


class SandboxPaused(SandboxUnavailable):
    """The container is paused."""


class SandboxGone(SandboxUnavailable):
    """The container was removed, or died and could not be started again."""


class ModelError(OhsandboxError):
    """The model or its provider still failed after the retries; the message names the setting to check."""

    exit_code = 5
