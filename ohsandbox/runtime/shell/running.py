"""A command of a shell: its state and report, and its processes, which are queried and signalled."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import OhsandboxError, SandboxUnavailable
from ohsandbox.runtime.process.cancellation import ProcessTree
from ohsandbox.runtime.process.invocation import exit_code, limit_mark, quote
from ohsandbox.runtime.shell.output import Capture
from ohsandbox.runtime.shell.wait import CommandWait, WaitOptions, WaitOutcome
from ohsandbox.text import natural_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ohsandbox.runtime.process.worker import CallResult
    from ohsandbox.runtime.shell.session import ShellSession

RUNG_S = 2.0
"""Seconds for a command to end after each step of the kill ladder."""
_CANCEL_RUNG_S = 0.4
"""The same for a cancelled command: its caller waits, and the command must be gone within a second."""
_UNANSWERED_S = 30.0
"""Seconds after which a sandbox that cannot run a line of shell, for example during a fork bomb, is restarted."""
_BEGINS_S = 5.0
"""Seconds within which a shell on a loaded machine begins a command; after that, whatever delays it is interrupted."""
_BEGIN_PERIOD_S = 0.02
_INTERRUPT = b"\x03"
"""The INTR character of every terminal that we open."""
_INTERRUPTED_S = 0.5
"""Seconds for a command to end after a Ctrl-C; a shell that abandons its line is then asked for its report."""
_NO_FOREGROUND = "3"
"""The status of ohs_signal where a terminal's foreground process group is unknown."""
_OTHER_USERS = re.compile(r"([1-9]\d{0,9}) (/dev/pts/\d{1,7}|/dev/console)((?: [1-9]\d{0,9})+)", re.ASCII)
"""What ohs_asks prints of other users, among whom root is none. Nothing else of it gets into a line of shell."""
_MAX_USERS = 2
"""Number of other users who are asked whether their processes wait for input; each needs a worker of its own."""
_NUMBER = re.compile(r"\d{1,10}")


@dataclass
class ShellCommand:
    """One command sent to the shell, and its state."""

    command: str
    text: str = ""
    """What the shell executes instead of the command; empty if it executes the command itself."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that the shell exports before the command."""
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    limit_kib: int = field(default_factory=limit_mark)
    capture: Capture = field(default_factory=Capture)
    began: bool = False
    ended: bool = False
    """Whether the end mark has arrived on the terminal."""
    report: CommandReport | None = None

    @property
    def finished(self) -> bool:
        """Whether the end mark and the report have arrived."""
        return self.ended and self.report is not None


class CommandReport(NamedTuple):
    """The shell's report about a command that has ended."""

    nonce: str
    exit_code: int
    how: str
    """'kept'; 'lost' if the old directory was gone before the command; 'left' if the shell exits."""
    background_pid: int
    """`$!`, or 0; in the greeting, the shell's own process id."""
    bash: bool
    cwd: str

    @classmethod
    def parse(cls, record: bytes) -> CommandReport | None:
        """Parse a record of the `out` FIFO; return None for a record that is not ours."""
        parts = record.decode("utf-8", "surrogateescape").split(" ", 5)
        if len(parts) != 6 or not all(_NUMBER.fullmatch(parts[at]) for at in (1, 3)):  # noqa: PLR2004 - of ohs_tell
            return None
        return cls(parts[0], exit_code(parts[1]), parts[2], int(parts[3]), parts[4] != "none", parts[5])


class RunningCommand(ProcessTree):
    """A command that has not ended, and its processes, which the functions of processes.sh query."""

    def __init__(
        self,
        snippet: Callable[[bytes], CallResult],
        session: ShellSession,
        call: ShellCommand,
        *,
        mark: str,
        timeout_s: float | None,
        snippet_as: Callable[[bytes, int], CallResult],
    ) -> None:
        """Store the arguments. snippet_as runs a line of worker shell as the user with that id."""
        super().__init__(snippet, session.pid, mark, began=time.monotonic(), limit_kib=call.limit_kib)
        self.session, self.call, self._snippet_as = session, call, snippet_as
        self.timeout_s = timeout_s
        """Time limit of the call that began it; it counts anew in each later call without a limit of its own."""
        self._unanswered_since = 0.0
        self._commands = quote(f"/proc/{session.keeper_pid}/fd/4")
        self._shell = b"%d %s %s" % (session.pid, quote(session.tty), self._commands)

    def probe(self) -> str:
        """Return what the session's terminal does: 'idle', 'input', 'busy', 'spins' or 'gone'."""
        reply = self._snippet(b"ohs_probe %s" % self._shell).stdout.decode("utf-8", "replace").strip()
        # processes of other users (`su`), into which only these may look; a process of the agent may forge this reply
        if (others := _OTHER_USERS.fullmatch(reply)) is None:
            return reply
        body = b"ohs_asks %d %s 0" % (int(others[1]), others[2].encode())
        for user in others[3].split()[:_MAX_USERS]:
            with contextlib.suppress(OhsandboxError):
                if self._snippet_as(body, int(user)).stdout.strip() == b"input":
                    return "input"
        return "busy"

    def probe_patiently(self, is_alive: Callable[[], bool]) -> str:
        """Return `probe`'s result; 'busy' if a loaded sandbox does not answer it.

        Raises:
            SandboxUnavailable: it has not answered for _UNANSWERED_S, or is_alive() returned False.
        """
        try:
            reply = self.probe()
        except SandboxUnavailable:
            now = time.monotonic()
            self._unanswered_since = self._unanswered_since or now
            if now - self._unanswered_since > _UNANSWERED_S or not is_alive():
                raise
            return "busy"
        self._unanswered_since = 0.0
        return reply

    def replacement(self) -> str:
        """Return the name of the program that the command has put in the shell's place by `exec`; "" if none."""
        reply = self._snippet(b"ohs_replaced %d %s" % (self.session.pid, self._commands))
        return reply.stdout.decode("utf-8", "replace").strip()

    def interrupt(self) -> None:
        """Send SIGINT to the terminal's foreground process group, as Ctrl-C does, in any terminal mode.

        Where that group is unknown, as under gVisor, a Ctrl-C is typed.
        """
        if self._snippet(b"ohs_signal INT %d" % self.session.pid).status == _NO_FOREGROUND:
            self._type_interrupt()

    def _type_interrupt(self) -> None:
        """Type a Ctrl-C where nothing is known of the foreground, and ask for the report that it may cost."""
        with contextlib.suppress(OSError, SandboxUnavailable):
            self.session.terminal.write(_INTERRUPT)
            with self.session.changed:
                self.session.changed.wait_for(lambda: self.call.finished or not self.session.alive, _INTERRUPTED_S)
            if not self.call.finished:
                self.session.recover()

    def type(self, data: bytes) -> None:
        """Write to the terminal; resend an INTR whose signal came between two commands and was lost."""
        if data != _INTERRUPT:
            self.session.terminal.write(data)
            return
        # an INTR before the command would discard the shell's input line, and the command with it
        deadline = time.monotonic() + _BEGINS_S
        with self.session.changed:
            while not self.call.began and self.session.alive and time.monotonic() < deadline:
                self.session.changed.wait(
                    _BEGIN_PERIOD_S
                )  # the begin is not reported as an event: most commands end right after it
        front = self._snippet(b"ohs_front %d" % self.session.pid).stdout.strip()
        if front == b"0":
            self._type_interrupt()
            return
        self.session.terminal.write(data)
        if (group := natural_number(front)) is not None:
            self._snippet(b"ohs_insist %s %d" % (self._shell, group))

    def end(self, *, quickly: bool = False) -> None:
        """Climb the kill ladder: SIGINT to the foreground, SIGTERM to all, SIGKILL to all, then kill the shell.

        quickly skips SIGTERM, makes one pass of SIGKILL before the last one, and shortens each step.

        Raises:
            SandboxUnavailable: no process can be started in the sandbox to send signals.
        """
        self.session.relay_to(None)  # otherwise a full relay would stop the reader before the command's end
        rungs: Sequence[Callable[[], object]] = (self.interrupt, partial(self.signal, "TERM"), self.kill)
        if quickly:
            rungs = (self.interrupt, partial(self.signal, "KILL"))
        for rung in rungs:
            rung()
            if self._ends(quickly=quickly):
                break
        else:
            self.session.terminal.kill()
            self._ends(quickly=quickly)  # the command may start another process until then
        self.kill()

    def _ends(self, *, quickly: bool) -> bool:
        """Return whether the command has ended after a step."""
        options = WaitOptions(_CANCEL_RUNG_S if quickly else RUNG_S)
        watch = CommandWait(self.session, self.call, self.probe, options, ignore_input=True)
        return watch.outcome() in (WaitOutcome.FINISHED, WaitOutcome.LEFT)
