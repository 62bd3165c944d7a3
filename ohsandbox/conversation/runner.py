"""`RunThread`: a conversation's runs, one at a time, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ohsandbox.conversation.outcome import status_after
from ohsandbox.errors import OhsandboxError
from ohsandbox.events import ConversationStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.conversation.approvals import Approvals
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.conversation.standing import Standing
    from ohsandbox.conversation.work import Work

STOP_TIMEOUT_S = 20.0
"""The runtime's kill ladder is bounded to 15 s; a little more for the event after it."""

_INTERRUPT_EVERY_S = 0.5
"""An interrupt can come before the command it is meant for; it is repeated until the run has ended."""


class RunThread:
    """Begins, stops and awaits a run. Whoever asks `is_on` to decide on something holds the log's guard meanwhile."""

    def __init__(
        self, log: ConversationLog, standing: Standing, approvals: Approvals, work: Work, *, canceled: threading.Event
    ) -> None:
        """None is on. canceled is shared with the work."""
        self._log = log
        self._standing = standing
        self._approvals = approvals
        self._work = work
        self._canceled = canceled
        self._thread: threading.Thread | None = None
        self._spoken_to = False
        self._settled = threading.Event()
        self._settled.set()

    @property
    def is_on(self) -> bool:
        """Whether a run has begun and not ended."""
        return self._thread is not None

    def begin(self) -> None:
        """Begin one; none is on. The caller holds the guard.

        Raises:
            LogWriteError: that it began could not be stored, and it did not.
        """
        self._canceled.clear()
        self._settled.clear()
        try:
            self._standing.begin_run()
        except BaseException:
            self._settled.set()  # nobody is to wait for what never began
            raise
        name = f"ohsandbox-{self._log.conversation_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def begin_where(self, is_due: Callable[[], bool]) -> bool:
        """Begin one where none is on and it is due; whether it did. Callbacks hear of it before this returns.

        Raises:
            LogWriteError: as for `begin`.
        """
        with self._log.guard:
            begins = not self.is_on and is_due()
            if begins:
                self.begin()
        self._log.flush()
        return begins

    def wake(self) -> None:
        """The person has spoken: the run that is on hears it with its next request; where none is, one begins.

        The caller holds the guard.

        Raises:
            LogWriteError: as for `begin`.
        """
        self._spoken_to = True
        if not self.is_on:
            self.begin()

    def wait(self, timeout_s: float | None) -> None:
        """Until none is on and callbacks have heard of its end, or the time is up."""
        self._settled.wait(timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Cancel the one that is on and wait for its end, unless its own thread calls this, or the time is up."""
        with self._log.guard:
            thread = self._thread
            if thread is not None:
                self._canceled.set()
        if thread is None:
            return
        deadline = time.monotonic() + timeout_s
        while not self._settled.is_set():
            self._work.interrupt()
            if thread is threading.current_thread() or time.monotonic() >= deadline:
                break
            self._settled.wait(min(_INTERRUPT_EVERY_S, timeout_s))

    # --- in the run's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_over(*self._run_once()):
                pass  # the person spoke after the model's last request
        finally:
            self._log.flush()
            with self._log.guard:
                if self._thread in {None, threading.current_thread()}:  # else a callback has begun the next
                    self._thread = None
                    self._settled.set()

    def _run_once(self) -> tuple[ConversationStatus, BaseException | None]:
        """What it came to; what ended it otherwise is the error."""
        try:
            status = self._work.run(before_request=self._hear_person)
            if status is ConversationStatus.WAITING_FOR_CONFIRMATION:
                self._ask_person()
            return status, None  # noqa: TRY300 - it belongs to what may fail
        except BaseException as error:  # noqa: BLE001 - the thread's last frame: whatever it is becomes the status
            return status_after(error, canceled=self._canceled.is_set())

    def _is_over(self, status: ConversationStatus, error: BaseException | None) -> bool:
        with self._log.guard:
            if status is ConversationStatus.WAITING_FOR_CONFIRMATION and not self._approvals.pending:
                try:
                    self._standing.become(ConversationStatus.RUNNING)
                except OhsandboxError as failure:  # the log: what ended the run
                    status, error = status_after(failure, canceled=self._canceled.is_set())
                else:
                    return False
            if self._spoken_to and status in {ConversationStatus.IDLE, ConversationStatus.FINISHED}:
                return False
            self._thread = None
            self._standing.end_run(status, error)
            return True

    def _hear_person(self) -> None:
        """What was said so far is in the next request."""
        with self._log.guard:
            self._spoken_to = False

    def _ask_person(self) -> None:
        """Ask the callback, if there is one; the log says meanwhile that an answer is awaited."""
        if self._approvals.callback is not None:
            with self._log.guard:
                self._standing.become(ConversationStatus.WAITING_FOR_CONFIRMATION)
            self._log.flush()
            self._approvals.ask()
