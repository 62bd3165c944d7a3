"""A sandbox that starts while this process still imports what works in it."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Self

from ohsandbox.cli.sandbox.runtime import make_runtime
from ohsandbox.cli.settings.model import is_offline
from ohsandbox.errors import OhsandboxError
from ohsandbox.paths import check_apart, conversations_dir, new_id
from ohsandbox.tool_flags import ToolFlags

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ohsandbox.cli.options.per_command import RunOptions
    from ohsandbox.cli.options.shared import SandboxOptions
    from ohsandbox.runtime.results import PullProgress
    from ohsandbox.settings import Settings

_ASKED_S = 0.2
"""At most so long nothing else is done: until the engine is asked to start the container each import here delays that,
as threads take turns; from then on it works alone, for some 0.25 s."""
_PROGRESS_S = 0.1
"""Interval, in seconds, at which the progress of a pull is shown."""


class EarlyStart:
    """A `with` block that starts the sandbox of a new conversation; an unclaimed sandbox is removed at the end."""

    def __init__(self, options: SandboxOptions) -> None:
        """Store the options, already completed from the settings; the engine is not contacted yet."""
        self.began = time.monotonic()
        self.options = options
        self.conversation_id = new_id()
        self.runtime = make_runtime(options, self.conversation_id, progress=self._note)
        self._progress: PullProgress | None = None
        self._error: BaseException | None = None
        self._is_asked = threading.Event()
        self._is_taken = False
        self._thread = threading.Thread(target=self._start, name="ohsandbox-early-start", daemon=True)

    def __enter__(self) -> Self:
        self.runtime.while_starting = self._is_asked.set
        self._thread.start()
        self._is_asked.wait(_ASKED_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_taken:
            return
        if self.runtime.start_cancel is not None:
            self.runtime.start_cancel.set()
        self._thread.join()
        self.runtime.close()

    def finish(self, show: Callable[[PullProgress], None]) -> None:
        """Wait until the first process of the sandbox runs; the caller must close the sandbox from then on.

        show is called in this thread with the progress of a pull.

        Raises:
            OhsandboxError: as `Runtime.start`.
        """
        while self._thread.is_alive():
            self._thread.join(_PROGRESS_S)
            if self._progress is not None and self._thread.is_alive():
                show(self._progress)
        if self._error is not None:
            raise self._error
        self._is_taken = True

    def _note(self, progress: PullProgress) -> None:
        self._progress = progress

    def _start(self) -> None:
        try:
            self.runtime.start()
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self._error = error
            return
        finally:
            self._is_asked.set()
        with contextlib.suppress(OhsandboxError):  # the next process says why
            self.runtime.snippet(b":")  # whoever looks at files finds the first process, a worker


def begin_early(what: RunOptions, settings: Settings, where: SandboxOptions) -> EarlyStart | None:
    """Return the sandbox of a new conversation, to be entered; None if a later check could still refuse the run.

    So it is for a task alone, in a new container of an image that ends with the run, without what is read or checked
    later: secrets, instructions, MCP servers, a choice of tools, a limit on cost, a script in a model's place.

    Raises:
        UsageError: one of the workspace and the conversation's directory contains the other.
    """
    full = where.with_settings(settings)
    options_given = (
        full.attach, full.keep, full.copies, full.branch, full.build, full.from_project.services,
        settings.secrets, settings.instructions, settings.mcp_config, settings.max_cost_usd,
    )  # fmt: skip
    if what.task is None or any(options_given) or settings.tools != ToolFlags() or is_offline(settings.model or ""):
        return None
    early_start = EarlyStart(full)
    if early_start.runtime.start_cancel is None:  # it takes no time worth a thread
        return None
    if full.workspace is not None:
        check_apart(conversations_dir() / early_start.conversation_id, full.workspace)
    return early_start
