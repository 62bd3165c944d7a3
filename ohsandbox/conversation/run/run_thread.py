"""`RunThread`: starts and stops the runs of a conversation, each in its own thread."""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from ohsandbox import events
from ohsandbox.arguments import check_wait
from ohsandbox.conversation.run.limits import INTERRUPT_EVERY_S
from ohsandbox.conversation.storage.metadata import keep_metadata
from ohsandbox.errors import LimitReachedError, OhsandboxError
from ohsandbox.events import ConversationStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.conversation.approvals.decisions import Approvals
    from ohsandbox.conversation.config import ConversationConfig
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.conversation.run.runner import Runner
    from ohsandbox.conversation.storage.metadata import ConversationStore
    from ohsandbox.events import EventBody

STOP_TIMEOUT_S = 20.0
"""Seconds to wait for a stopped run: ending its processes takes at most 15 s, and storing the event a little more."""


class RunThread:
    """Starts, stops and awaits runs; has the status, and the error that ended the last run."""

    def __init__(
        self,
        runner: Runner,
        config: ConversationConfig,
        log: ConversationLog,
        *,
        approvals: Approvals,
        store: ConversationStore,
    ) -> None:
        """Create it with status IDLE. store gets the metadata at each change of the status."""
        self.status = ConversationStatus.IDLE
        self.error: BaseException | None = None
        self._runner = runner
        self._config = config
        self._log = log
        self._approvals = approvals
        self._store = store
        self._thread: threading.Thread | None = None
        self._spoken_to = self._compacts = False
        self._settled = threading.Event()
        self._settled.set()

    @property
    def is_on(self) -> bool:
        """Whether a run is active."""
        return self._thread is not None

    def restore_status(self, stored: ConversationStatus, *, is_finished: bool, is_waiting: bool) -> None:
        """Set the status that the log of an earlier process implies.

        Args:
            stored: the last one in the log.
            is_finished: whether the last call ended the task.
            is_waiting: whether calls wait for a person.
        """
        if is_waiting:
            self.status = ConversationStatus.WAITING_FOR_CONFIRMATION
        elif stored is ConversationStatus.RUNNING:
            self.status = ConversationStatus.FINISHED if is_finished else ConversationStatus.IDLE
        else:
            self.status = stored

    def wake(self) -> None:
        """Have a new message answered: by the next request of the active run, else by a new run.

        Raises:
            LogWriteError: the start could not be stored, so no run begins.
        """
        with self._log.lock:
            self._spoken_to = True
            if not self.is_on:
                self._begin()

    def begin_if(self, is_due: Callable[[], bool]) -> bool:
        """Begin a run if none is active and it is due; return whether it began. Callbacks hear of it first.

        Raises:
            LogWriteError: as for `wake`.
        """
        with self._log.lock:
            begins = not self.is_on and is_due()
            if begins:
                self._begin()
        return begins

    def compact(self) -> bool:
        """Begin a run that only condenses; return False if one is active.

        Raises:
            LogWriteError: as for `wake`.
        """
        with self._log.lock:
            if self.is_on:
                return False
            self._compacts = True
            self._begin()
            return True

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until no run is active and callbacks have heard of its end; return False if that takes too long."""
        check_wait(timeout_s=timeout_s)
        return self._settled.wait(timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Cancel the active run and wait for its end, at most timeout_s; the run's own thread does not wait."""
        check_wait(timeout_s=timeout_s)
        with self._log.lock:
            thread = self._thread
            if thread is not None:
                self._runner.canceled.set()
        if thread is None:
            return
        deadline = time.monotonic() + timeout_s
        while not self._settled.is_set():
            self._runner.interrupt()
            if thread is threading.current_thread() or time.monotonic() >= deadline:
                break
            self._settled.wait(min(INTERRUPT_EVERY_S, timeout_s))

    def _begin(self) -> None:
        self._runner.canceled.clear()
        self._settled.clear()
        self.error = None
        try:
            self._set_status(ConversationStatus.RUNNING)
        except BaseException:
            self._settled.set()  # nobody must wait for a run that never began
            raise
        name = f"ohsandbox-{self._log.conversation_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _set_status(self, status: ConversationStatus) -> None:
        """Store another status in the log and in the metadata.

        Raises:
            LogWriteError: it could not be stored; the status is unchanged.
        """
        with self._log.lock:
            location = self._runner.place() if status is ConversationStatus.RUNNING else {}
            body = events.status_update(status, model=self._config.llm.name, user_id=self._config.user_id, **location)
            self._log.emit(body)
            self.status = status
            keep_metadata(self._store, self._log.metadata())

    def _end(self, status: ConversationStatus, error: BaseException | None) -> None:
        """Set the status and error of a run that has ended, even if the log cannot store them."""
        self.error = error
        self.status = status
        with contextlib.suppress(OhsandboxError):  # if the log failed, `error` says so already
            if error is not None:
                self._log.emit(_error_event(error))
            self._set_status(status)

    # --- in the run's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        over = False
        try:
            while not over:  # again if the user sent a message after the model's last request
                error: BaseException | None = None
                try:
                    compacts, self._compacts = self._compacts, False
                    run = partial(self._runner.run, before_request=self._mark_messages_read)
                    status = self._runner.compact() if compacts else run()
                    if status is ConversationStatus.WAITING_FOR_CONFIRMATION:
                        self._ask_person()
                except BaseException as failure:  # noqa: BLE001 - the thread's last frame: it becomes the status
                    status, error = _status_after(failure, canceled=self._runner.canceled.is_set())
                over = self._is_over(status, error)
        finally:
            with self._log.lock:
                if self._thread in {None, threading.current_thread()}:  # else a callback has begun another run
                    self._thread = None
                    self._settled.set()

    def _is_over(self, status: ConversationStatus, error: BaseException | None) -> bool:
        with self._log.lock:
            if status is ConversationStatus.WAITING_FOR_CONFIRMATION and not self._approvals.pending:
                try:
                    self._set_status(ConversationStatus.RUNNING)
                except OhsandboxError as failure:  # the log failed
                    status, error = _status_after(failure, canceled=self._runner.canceled.is_set())
                else:
                    return False
            if self._spoken_to and status in {ConversationStatus.IDLE, ConversationStatus.FINISHED}:
                return False
            self._thread = None
            self._end(status, error)
            return True

    def _mark_messages_read(self) -> None:
        """Note that the next request contains all messages so far."""
        with self._log.lock:
            self._spoken_to = False

    def _ask_person(self) -> None:
        """Call the callback, if there is one; meanwhile the log says that calls wait."""
        if self._approvals.callback is not None:
            with self._log.lock:
                self._set_status(ConversationStatus.WAITING_FOR_CONFIRMATION)
            self._approvals.ask()


def _status_after(error: BaseException, *, canceled: bool) -> tuple[ConversationStatus, BaseException | None]:
    """Return the status after an error, and the error, unless it was caused by a stop."""
    from ohsandbox.llm import ModelCanceledError  # noqa: PLC0415 - the model's package is loaded by now

    if isinstance(error, KeyboardInterrupt) or (canceled and isinstance(error, ModelCanceledError)):
        return ConversationStatus.CANCELED, None
    return ConversationStatus.ERROR, error


def _error_event(error: BaseException) -> EventBody:
    """Return the event that reports an error."""
    if not isinstance(error, OhsandboxError):
        return events.error(code=type(error).__name__, message=f"{type(error).__name__}: {error}")
    code = error.code if isinstance(error, LimitReachedError) else type(error).__name__
    return events.error(code=code, message=str(error), exit_code=error.exit_code)
