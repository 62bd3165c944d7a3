"""`Shell`: a named session as its callers know it. It restarts, times out and explains itself."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import OhsandboxError, SandboxUnavailable
from ohsandbox.runtime.calls.quoting import quote
from ohsandbox.runtime.channel import KILLED
from ohsandbox.runtime.files import read_body
from ohsandbox.runtime.results import CommandObservation
from ohsandbox.runtime.shell.keys import keystrokes
from ohsandbox.runtime.shell.processes import Foreground
from ohsandbox.runtime.shell.session import Call, ShellSession
from ohsandbox.runtime.shell.spool import Spool
from ohsandbox.runtime.shell.watch import Outcome, Wait, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.calls.worker import Outcome as CallOutcome

RUNG_S = 2.0
"""How long a command has to obey one rung of the kill ladder."""
COMMAND_BY_FILE_BYTES = 16 * 1024
"""Shells read a pipe byte by byte: 1 MiB took 0.5 s through the FIFO and 20 ms from a file."""
SNIPPET_S = 5.0
"""A sandbox that cannot run a line of shell in this time is restarted by the ladder."""
ENV_SNAPSHOT_BYTES = 1024 * 1024
LAST_PLAIN_CODE = 127
"""Above it a signal ended the program, perhaps before it restored the terminal."""
_SETS_TERMINAL = re.compile(r"\b(?:stty|reset|tput|script|screen)\b")


class SessionOptions(NamedTuple):
    """How a session begins."""

    env: Mapping[str, str]
    workdir: str
    user: str | int | None


class Running(NamedTuple):
    """A command that has not ended."""

    session: ShellSession
    call: Call
    foreground: Foreground


class Shell:
    """A persistent shell, one command at a time; threads queue."""

    def __init__(self, host: Runtime, name: str, options: SessionOptions) -> None:
        self.name = name
        self._host, self._options = host, options
        self._lock = threading.Lock()
        self._session: ShellSession | None = None
        self._running: Running | None = None
        self._descendants: Foreground | None = None
        """All that began since the first shell did."""
        self._background = ""
        self._again = False
        self._spool: Spool | None = None
        self._cwd = options.workdir
        self._notices: list[str] = []
        self._mark = secrets.token_hex(8)
        self._restored = ""
        self._taken_over = False
        self._untidy = False
        """The last command may have left the terminal in another mode: it was interactive or was killed."""

    # --- what callers do ---

    def execute(self, command: str, wait: Wait, *, is_input: bool) -> CommandObservation:
        """See `Runtime.execute`."""
        with self._lock:
            self._ready()
            if is_input or not command.strip():
                if self._running is None:
                    return self._nothing_runs(command, is_input=is_input)
                if is_input:
                    self._running.session.type(keystrokes(command))
                return self._watched(self._running, wait)
            if self._running is not None:
                return self._refused(command)
            return self._watched(self._begin(command), wait)

    def start(self) -> None:
        """Have the shell running before its first command."""
        with self._lock:
            self._ready()

    def take_over(self, workdir: str) -> None:
        """Begin where an earlier process's shell of this name stood; said before the first command."""
        self._cwd, self._taken_over = workdir, True

    def interrupt(self) -> None:
        """SIGINT to what runs, from any thread; nothing when nothing runs."""
        if (running := self._running) is not None:
            running.foreground.interrupt()

    def last_output(self, limit_bytes: int) -> bytes:
        """The end of what runs has printed, from any thread; nothing when nothing runs."""
        if (running := self._running) is None:
            return b""
        with running.session.changed:
            return running.call.capture.last(limit_bytes)

    def close(self, *, kill: bool = True) -> None:
        """End the shell and all it ever started; without kill only let go of it, as before the sandbox's own end."""
        if kill and self._descendants is not None:
            with contextlib.suppress(OhsandboxError, OSError):
                self._descendants.sweep()
        if self._session is not None:
            self._session.close(kill=kill)
            self._session = None

    # --- a command's way ---

    def _begin(self, command: str) -> Running:
        session = self._ready()
        self._background = session.take_background(self._host.secrets.masker)
        foreground = Foreground(self._snippet, session, mark=self._mark, private=self._host.private_processes)
        if self._untidy:
            foreground.tidy_terminal()
        self._untidy = bool(_SETS_TERMINAL.search(command))
        try:
            call = session.send(command, self._stored(session, command))
        except BrokenPipeError:  # the shell went while nobody looked; it has not read the command
            self._restart(session, "The shell had ended and was started again")
            return self._begin(command)
        self._running = Running(session, call, foreground)
        return self._running

    def _stored(self, session: ShellSession, command: str) -> str | None:
        if len(command) <= COMMAND_BY_FILE_BYTES:
            return None
        path = f"{session.directory}/command"
        data = command.encode("utf-8", "surrogateescape")
        self._host.write_bytes(path, data, mode=0o600, user=self._options.user)
        return path

    def _watched(self, running: Running, wait: Wait) -> CommandObservation:
        try:
            outcome = Watch(running.session, running.call, running.foreground.probe, wait).outcome()
            if outcome is Outcome.LOST and not running.call.began and not self._again:
                return self._once_more(running, wait)
            if outcome is Outcome.TIMEOUT:
                self._kill(running)
        except KeyboardInterrupt:
            self._kill(running)
            self._observe(running, Outcome.TIMEOUT)
            raise
        return self._observe(running, outcome)

    def _once_more(self, running: Running, wait: Wait) -> CommandObservation:
        """The shell never took the command, so nothing of it ran: give it to a new shell."""
        self._restart(running.session, "The shell no longer took commands and was started again")
        self._again = True
        try:
            return self._watched(self._begin(running.call.command), wait)
        finally:
            self._again = False

    def _kill(self, running: Running) -> None:
        """The ladder: INT to the foreground, TERM to all, KILL to all, the shell, and at last the whole sandbox."""
        foreground = running.foreground
        rungs = (foreground.interrupt, lambda: foreground.signal_all("TERM"), foreground.sweep)
        try:
            for rung in rungs:
                rung()
                if self._ends(running):
                    break
            else:
                running.session.kill()
            foreground.sweep()
        except SandboxUnavailable as failure:  # no process can be started: pids are used up, or it is frozen
            self._notices.append(self._host.restart(failure))

    def _ends(self, running: Running) -> bool:
        watch = Watch(running.session, running.call, running.foreground.probe, Wait(RUNG_S), ignore_input=True)
        return watch.outcome() in (Outcome.FINISHED, Outcome.LEFT)

    # --- what came of it ---

    def _observe(self, running: Running, outcome: Outcome) -> CommandObservation:
        session, call, report = running.session, running.call, running.call.report
        runs_on = outcome in (Outcome.IDLE, Outcome.EXPECTED, Outcome.INPUT)
        exit_code = report.exit_code if report else None
        if outcome is Outcome.LOST or (outcome is Outcome.TIMEOUT and not call.finished):
            self._restart(session, "The shell did not come back from this command and was restarted")
            exit_code = None
        elif outcome is Outcome.LEFT:
            exit_code = self._left(session)
        elif report and report.how == "lost":
            self._notices.append(f"The working directory was gone; the command ran in {self._host.workdir}")
        if exit_code == KILLED and self._host.ran_out_of_memory():
            self._notices.append("The sandbox ran out of memory and the kernel killed the largest process")
        with session.changed:
            captured = call.capture.take(final=not runs_on, masker=self._host.secrets.masker)
        self._untidy |= outcome is not Outcome.FINISHED or (exit_code or 0) > LAST_PLAIN_CODE
        if not runs_on:
            self._cwd, session.call, self._running = session.cwd, None, None
        output_path = self._output_path(running=runs_on)
        background, self._background = self._background, ""
        return CommandObservation(
            command=call.command,
            output=session.own_output(captured.text, call),
            exit_code=None if runs_on or outcome is Outcome.TIMEOUT else exit_code,
            cwd=self._cwd,
            session=self.name,
            timed_out=outcome is Outcome.TIMEOUT,
            running=runs_on,
            waiting_for_input=outcome is Outcome.INPUT,
            truncated=captured.omitted_bytes > 0,
            output_bytes=captured.output_bytes,
            omitted_bytes=captured.omitted_bytes,
            output_path=output_path if captured.omitted_bytes else None,
            notice=self._take_notice(),
            background_output=background,
        )

    def _left(self, session: ShellSession) -> int | None:
        if session.failure is not None:
            self._notices.append(self._host.recover(session.failure))
        code = session.exit_code
        self._restart(session, "The shell ended" if code is None else f"The shell ended with code {code}")
        return code

    def _nothing_runs(self, command: str, *, is_input: bool) -> CommandObservation:
        self._notices.append("Nothing is running, so nothing was typed" if is_input else "Nothing is running")
        background = self._session.take_background(self._host.secrets.masker) if self._session else ""
        return CommandObservation(
            command=command, output="", exit_code=None, cwd=self._cwd, session=self.name,
            notice=self._take_notice(), background_output=background,
        )  # fmt: skip

    def _refused(self, command: str) -> CommandObservation:
        notice = (
            "Not run: the previous command still runs here. Poll it with an empty command, answer it with is_input, "
            "interrupt it with C-c, or use another session"
        )
        return CommandObservation(
            command=command, output="", exit_code=None, cwd=self._cwd, session=self.name, running=True, notice=notice
        )

    def _take_notice(self) -> str | None:
        if notice := self._host.take_notice():
            self._notices.insert(0, notice)
        notices, self._notices = self._notices, []
        return "; ".join(notices) or None

    # --- the shell behind it ---

    def _ready(self) -> ShellSession:
        """The live session; a new one when there is none."""
        if self._session is not None and not self._session.alive and self._running is None:
            self._restart(self._session, "The shell had ended and was started again")
        if self._session is None:
            self._session = self._open()
        return self._session

    def _open(self) -> ShellSession:
        options = self._options
        directory = f"{self._host.state_dir}/{self._name_part()}-{secrets.token_hex(4)}"
        if self._taken_over:
            self._restored = self._left_behind()
        session = ShellSession(
            lambda argv, *, tty, env: self._host.channel(argv, tty=tty, env=env, user=options.user),
            directory,
            mark=self._mark, home=self._host.workdir, workdir=self._cwd, env=options.env,
            restored=self._restored, unsaved=self._host.secrets.names, on_overflow=self._spool_for,
        )  # fmt: skip
        if self._descendants is None:
            self._descendants = Foreground(self._snippet, session, mark=self._mark, private=False)
        if self._taken_over:
            self._tell_takeover(session)
        return session

    def _left_behind(self) -> str:
        """What the keeper of an earlier process's shell left (keeper.sh), with our mark in place of its own."""
        with contextlib.suppress(OhsandboxError, OSError):
            path = f"{self._host.state_dir}/{self._name_part()}.env"
            mine = self._snippet(b"[ -f %s ] && [ -O %s ]" % (quote(path), quote(path)))
            if mine.status != "0":  # another user of the sandbox may put a file there
                return ""
            outcome = self._snippet(read_body(path, ENV_SNAPSHOT_BYTES), ENV_SNAPSHOT_BYTES)
            if outcome.status == "0" and outcome.stdout:
                text = outcome.stdout.decode("utf-8", "surrogateescape")
                return f"{text}\nexport OHSANDBOX_SESSION={self._mark}"
        return ""

    def _tell_takeover(self, session: ShellSession) -> None:
        self._taken_over = False
        where = f"in {session.cwd}" if session.cwd == self._cwd else f"in {session.cwd}, for {self._cwd} is gone"
        kept = "its exported environment is restored" if self._restored else "its environment is lost"
        self._cwd, self._restored = session.cwd, ""
        self._notices.append(
            f"The shell is new, {where}; {kept}; functions, aliases, unexported variables and background programs of "
            "the shell before it are lost"
        )

    def _name_part(self) -> str:
        return "".join(c for c in self.name if c.isascii() and c.isalnum())[:32] or "session"

    def _restart(self, session: ShellSession, why: str) -> None:
        """Forget a dead or lost shell; the next command gets one with its directory and exported environment."""
        restored = self._snapshot(session)
        self._cwd = session.cwd
        session.close()
        kept = "its exported environment was kept" if restored else "its environment was lost"
        self._notices.append(f"{why}, in {self._cwd}; {kept}, functions, aliases and unexported variables are lost")
        self._session = None
        self._restored = restored

    def _snapshot(self, session: ShellSession) -> str:
        with contextlib.suppress(OhsandboxError, OSError):
            outcome = self._snippet(read_body(f"{session.directory}/env", ENV_SNAPSHOT_BYTES), ENV_SNAPSHOT_BYTES)
            return outcome.stdout.decode("utf-8", "surrogateescape") if outcome.status == "0" else ""
        return ""

    def _snippet(self, body: bytes, limit_bytes: int = 65536) -> CallOutcome:
        return self._host.snippet(body, user=self._options.user, limit_bytes=limit_bytes, timeout_s=SNIPPET_S)

    def _spool_for(self, nonce: str) -> Callable[[bytes], None]:
        path = f"/tmp/ohsandbox-output-{nonce[:8]}.log"  # noqa: S108 - in the sandbox, private by umask
        self._spool = Spool(lambda argv: self._host.channel(argv, user=self._options.user), path)
        return self._spool.write

    def _output_path(self, *, running: bool) -> str | None:
        if self._spool is None:
            return None
        if running:
            return self._spool.path
        spool, self._spool = self._spool, None
        return spool.finish()
