"""Cancellation of calls: calls and transfers take `cancel`, a `threading.Event`; signals end the processes of a call.

    stop = threading.Event()
    threading.Timer(5, stop.set).start()
    sandbox.run(["make"], cancel=stop).cancelled

The event is polled: setting it never blocks, and one event may be passed to many calls.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from typing import TYPE_CHECKING

from ohsandbox.errors import CallCancelledError, OhsandboxError
from ohsandbox.runtime.process.invocation import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.channel import Channel
    from ohsandbox.runtime.process.worker import CallResult

LOOK_EVERY_S = 0.05
"""Seconds between checks of `cancel`: twenty checks a second cost 0.1 % of a core, and a cancelled process must be gone
within a second."""

SWEEPS = 5
"""Passes over a process tree that forks while it is killed; the container's pids limit stops a fork bomb."""
_TICKS_PER_S = 100
"""The unit of process start times in user space, on every Linux (proc(5))."""
_SLACK_TICKS = 2
"""Start times are truncated to a tick on both sides of the comparison."""

_SECONDS = re.compile(rb"\d{1,12}(?:\.\d{1,9})?")


class ProcessTree:
    """The processes of one call or command: all that its shell or worker has started since the call began."""

    def __init__(
        self, snippet: Callable[[bytes], CallResult], leader: int, mark: str, *, began: float, limit_kib: int = 0
    ) -> None:
        """Store the arguments; snippet runs as the user of the processes, because root lacks CAP_SYS_PTRACE.

        Args:
            snippet: runs a line of worker shell to its end.
            leader: the id of the shell or worker that started the processes; it gets no signal.
            mark: text in their environment.
            began: time.monotonic() before the first of them started.
            limit_kib: their soft limit (`limit_mark`), 0 if they have none; a process with another limit is not theirs.
        """
        self._snippet, self._leader, self._mark, self._limit_kib = snippet, leader, mark, limit_kib
        self._began = began
        self._since: int | None = None

    def signal(self, name: str) -> bool:
        """Send a signal to all of them; return whether there were any."""
        if self._since is None:
            # the sandbox's clock at that moment: asked, since its kernel may be another machine's
            match = _SECONDS.match(self._snippet(b"read -r ohs_up _ </proc/uptime;echo $ohs_up").stdout)
            booted_s = float(match[0] if match else 0) - (time.monotonic() - self._began)
            self._since = int(booted_s * _TICKS_PER_S) - _SLACK_TICKS
        words = (name.encode(), self._leader, quote(self._mark), self._since, 1024 * self._limit_kib)
        return re.search(rb"\d", self._snippet(b"ohs_kill %s %d %s %d %d" % words).stdout) is not None

    def kill(self) -> None:
        """Send SIGKILL until no process is left, for at most SWEEPS passes."""
        for _ in range(SWEEPS):
            if not self.signal("KILL"):
                break


def check_not_cancelled(cancel: threading.Event | None, doing: str) -> None:
    """Raise CallCancelledError if cancel is set. doing is a phrase such as "pulling image 'x'"."""
    if cancel is not None and cancel.is_set():
        raise CallCancelledError(f"{doing[:1].upper()}{doing[1:]} was cancelled.")


@contextlib.contextmanager
def once_cancelled(cancel: threading.Event | None, act: Callable[[], object]) -> Iterator[None]:
    """Call act() in a thread once cancel is set, every LOOK_EVERY_S until it returns True; a context manager."""
    over = threading.Event()

    def watch(cancel: threading.Event) -> None:
        while not over.wait(LOOK_EVERY_S):
            if cancel.is_set() and act() is True:
                return

    if cancel is not None:
        threading.Thread(target=watch, args=(cancel,), name="ohsandbox-cancel", daemon=True).start()
    try:
        yield
    finally:
        over.set()


@contextlib.contextmanager
def killing(cancel: threading.Event | None) -> Iterator[Callable[[Channel], Channel]]:
    """Yield a function that registers a channel; when cancel is set, the registered channels' processes are killed.

    Raises:
        CallCancelledError: cancel was set before the start, or the body failed after it was set.
    """
    channels: list[Channel] = []

    def registered(channel: Channel) -> Channel:
        channels.append(channel)
        return channel

    def kill() -> bool:
        for channel in channels:
            with contextlib.suppress(OhsandboxError, OSError):
                channel.kill()
        return bool(channels)

    if cancel is not None and cancel.is_set():
        raise CallCancelledError("Cancelled before it began; nothing was copied.")
    try:
        with once_cancelled(cancel, kill):
            yield registered
    except (OhsandboxError, OSError) as error:
        if cancel is not None and cancel.is_set():
            raise CallCancelledError("Cancelled while it was copied; a part of it may have arrived.") from error
        raise
