"""`Shell`: a named session, with time limits, restart after a failure, and notices that explain both."""

from __future__ import annotations

import contextlib
import math
import re
import secrets
import shlex
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import OhsandboxError, SandboxUnavailable, UsageError
from ohsandbox.runtime.channel import KILLED
from ohsandbox.runtime.files.operations import read_body
from ohsandbox.runtime.process.cancellation import LOOK_EVERY_S
from ohsandbox.runtime.process.quoting import quote
from ohsandbox.runtime.results import CommandObservation
from ohsandbox.runtime.shell.capture import OverflowFile
from ohsandbox.runtime.shell.process_control import INTERRUPT, CommandProcesses
from ohsandbox.runtime.shell.relay import ListenerFailed, OutputRelay
from ohsandbox.runtime.shell.session import ShellCommand, ShellSession, ShellUnusable
from ohsandbox.runtime.shell.terminal import clean, keystrokes
from ohsandbox.runtime.shell.wait import CommandWait, WaitOptions, WaitOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.process.worker import CallResult

UNSEEN_BYTES = 4096
"""How much of the output since the last result is checked: a question is shorter."""
RUNG_S = 2.0
"""How long a command has to end after one rung of the kill ladder."""
CANCEL_RUNG_S = 0.4
"""The same for a cancelled command: its caller waits, and it has to be gone within a second."""
TOLD_QUEUE_S = 1.0
"""The shortest wait behind another call that gives a notice."""
COMMAND_BY_FILE_BYTES = 16 * 1024
"""Shells read a pipe byte by byte: 1 MiB took 0.5 s through the FIFO and 20 ms from a file."""
SNIPPET_S = 5.0
"""The kill ladder restarts a sandbox that cannot run a line of shell in this time."""
UNANSWERED_S = 30.0
"""A sandbox that cannot run a line of shell for this long, as under a fork bomb, is restarted."""
ENV_SNAPSHOT_BYTES = 1024 * 1024
LAST_PLAIN_CODE = 127
"""Above it a signal ended the program, perhaps before it restored the terminal."""
NEEDED = ("cat", "mkdir", "mkfifo")
"""Programs that a session needs to start; it works without rm, stty, tty and sleep."""
_SETS_TERMINAL = re.compile(r"\b(?:stty|reset|tput|script|screen)\b")


_RUNS_ON = frozenset({WaitOutcome.IDLE, WaitOutcome.EXPECTED, WaitOutcome.INPUT, WaitOutcome.YIELDED})
_ENDED_BY_US = frozenset({WaitOutcome.TIMEOUT, WaitOutcome.CANCELLED})


class SessionOptions(NamedTuple):
    """How a session begins."""

    env: Mapping[str, str]
    workdir: str
    user: str | int | None


class RunningCommand(NamedTuple):
    """A command that has not ended."""

    session: ShellSession
    call: ShellCommand
    foreground: CommandProcesses


class Shell:
    """A persistent shell, one command at a time; threads queue."""

    def __init__(self, host: Runtime, name: str, options: SessionOptions) -> None:
        self.name = name
        self._host, self._options = host, options
        self._lock = threading.Lock()
        self._holder = 0
        """Id of the thread whose call is running; 0 for none."""
        self._session: ShellSession | None = None
        self._running: RunningCommand | None = None
        self._descendants: CommandProcesses | None = None
        """All processes started since the first shell."""
        self._background = ""
        self._again = False
        self._spool: OverflowFile | None = None
        self._cwd = options.workdir
        self._notices: list[str] = []
        self._mark = secrets.token_hex(8)
        self._restored = ""
        self._taken_over = False
        self._unanswered_since = 0.0
        self._untidy = False
        """The last command may have left the terminal in another mode: it was interactive or was killed."""

    # --- methods for the caller ---

    @property
    def user(self) -> str | int | None:
        """The user that the shell runs as; None for the sandbox's own user."""
        return self._options.user

    def execute(
        self,
        command: str,
        wait: WaitOptions,
        *,
        is_input: bool,
        text: str = "",
        listener: Callable[[str], object] | None = None,
    ) -> CommandObservation:
        """See `Runtime.execute`; the shell executes text in place of the command."""
        called_at = time.monotonic()
        if self._lock.acquire(blocking=False):
            queued_s = 0.0
        elif self._holder == threading.get_ident():
            raise UsageError(f"on_output cannot call the session {self.name!r}, whose command it hears; use another")
        elif self._queue(wait):
            queued_s = time.monotonic() - called_at
        else:
            return self._not_begun(command, wait, queued_s=time.monotonic() - called_at)
        self._holder = threading.get_ident()
        try:
            if wait.cancel is not None and wait.cancel.is_set():
                return self._not_begun(command, wait, queued_s=queued_s)
            if queued_s:
                left_s = None if wait.yield_s is None else max(0.0, wait.yield_s - queued_s)
                wait = wait._replace(yield_s=left_s)
            observation = self._execute(command, wait, is_input=is_input, text=text, listener=listener)
        except ListenerFailed as failed:
            raise failed.error from None
        finally:
            self._holder = 0
            self._lock.release()
        return _with_queue(observation, queued_s) if queued_s else observation

    def _execute(
        self, command: str, wait: WaitOptions, *, is_input: bool, text: str, listener: Callable[[str], object] | None
    ) -> CommandObservation:
        self._ready()
        if is_input or not command.strip():
            if self._running is None:
                return self._nothing_runs(command, is_input=is_input)
            if is_input and (command.strip() or self._awaits_enter(self._running)):
                self._type(self._running, keystrokes(command))
            return self._watched(self._running, wait, listener)
        if self._running is not None:
            return self._refused(command)
        return self._watched(self._begin(command, text), wait, listener)

    def _type(self, running: RunningCommand, data: bytes) -> None:
        if data == INTERRUPT:
            running.foreground.type_interrupt()
        else:
            running.session.type(data)

    def _awaits_enter(self, running: RunningCommand) -> bool:
        """Whether Enter answers what the caller has seen: the program waits for input and has printed nothing since."""
        with running.session.changed:
            unseen = bool(clean(running.call.capture.last(UNSEEN_BYTES)).strip())
        if not unseen and running.foreground.probe() == "input":
            return True
        self._notices.append(
            "Enter was not pressed: the program asked something that you had not seen yet"
            if unseen
            else "Enter was not pressed: the program did not wait for input"
        )
        return False

    def _queue(self, wait: WaitOptions) -> bool:
        """Wait for the running call to return; False if this caller's time ends or it is cancelled first."""
        if wait.cancel is None:
            return self._lock.acquire(timeout=-1 if wait.yield_s is None else min(wait.yield_s, threading.TIMEOUT_MAX))
        until = math.inf if wait.yield_s is None else time.monotonic() + wait.yield_s
        while not wait.cancel.is_set() and (left_s := until - time.monotonic()) > 0:
            if self._lock.acquire(timeout=min(LOOK_EVERY_S, left_s)):
                return True
        return False

    def start(self) -> None:
        """Start the shell before its first command."""
        with self._lock:
            self._ready()

    def take_over(self, workdir: str) -> None:
        """Begin in workdir, where an earlier process's shell of this name was; called before the first command."""
        self._cwd, self._taken_over = workdir, True

    def interrupt(self) -> None:
        """Send SIGINT to the running command, from any thread; does nothing if none runs."""
        if (running := self._running) is not None:
            running.foreground.interrupt()

    def last_output(self, limit_bytes: int) -> bytes:
        """Return the end of the running command's output, from any thread; empty if none runs."""
        if (running := self._running) is None:
            return b""
        with running.session.changed:
            return running.call.capture.last(limit_bytes)

    def close(self, *, kill: bool = True) -> None:
        """Kill the shell and all it started; without kill only close its channels, as before the sandbox's own end."""
        if kill and self._descendants is not None:
            with contextlib.suppress(OhsandboxError, OSError):
                self._descendants.sweep()
        if self._session is not None:
            self._session.close(kill=kill)
            self._session = None

    # --- running a command ---

    def _begin(self, command: str, text: str = "") -> RunningCommand:
        session = self._ready()
        self._background = session.take_background(self._host.secrets.masker)
        call = ShellCommand(command, text)
        foreground = CommandProcesses(self._snippet, session, mark=self._mark, limit_kib=call.limit_kib)
        if self._untidy:
            foreground.tidy_terminal()
        self._untidy = bool(_SETS_TERMINAL.search(command))
        try:
            session.send(call, self._stored(session, text or command))
        except BrokenPipeError:  # the shell ended unnoticed; it has not read the command
            self._restart(session, "The shell had ended and was started again")
            return self._begin(command, text)
        self._running = RunningCommand(session, call, foreground)
        return self._running

    def _stored(self, session: ShellSession, command: str) -> str | None:
        if len(command) <= COMMAND_BY_FILE_BYTES:
            return None
        path = f"{session.directory}/command"
        data = command.encode("utf-8", "surrogateescape")
        self._host.write_bytes(path, data, mode=0o600, user=self._options.user)
        return path

    def _watched(
        self, running: RunningCommand, wait: WaitOptions, listener: Callable[[str], object] | None = None
    ) -> CommandObservation:
        relay = None if listener is None else OutputRelay(listener, self._host.secrets.masker)
        if relay is not None:
            running.session.relay_to(relay)
        try:
            watch = CommandWait(running.session, running.call, lambda: self._probe(running), wait, relay=relay)
            outcome = self._outcome(watch)
            if watch.notice:
                self._notices.append(watch.notice)
            if outcome is WaitOutcome.LOST and not running.call.began and not self._again:
                return self._once_more(running, wait, listener)
            if outcome in _ENDED_BY_US:
                self._kill(running, quickly=outcome is WaitOutcome.CANCELLED)
            observation = self._observe(running, outcome)
            if relay is not None:
                if observation.running:
                    relay.hand_on(relay.take())
                else:
                    relay.finish(relay.take(), farewell=running.session.said_farewell)
        except (KeyboardInterrupt, ListenerFailed):
            if self._running is running:
                self._kill(running)
                self._observe(running, WaitOutcome.TIMEOUT)
            raise
        finally:
            running.session.relay_to(None)
        return observation

    def _outcome(self, watch: CommandWait) -> WaitOutcome:
        """The outcome; LOST, and the sandbox restarted, if the sandbox cannot be asked what runs in it."""
        try:
            return watch.outcome()
        except SandboxUnavailable as failure:
            self._notices.append(self._host.restart(failure))
            return WaitOutcome.LOST

    def _probe(self, running: RunningCommand) -> str:
        """`CommandProcesses.probe`; 'busy' while a loaded sandbox does not answer, up to UNANSWERED_S.

        Raises:
            SandboxUnavailable: it has not answered for UNANSWERED_S, or is gone.
        """
        try:
            said = running.foreground.probe()
        except SandboxUnavailable:
            now = time.monotonic()
            self._unanswered_since = self._unanswered_since or now
            if now - self._unanswered_since > UNANSWERED_S or not self._host.is_alive():
                raise
            return "busy"
        self._unanswered_since = 0.0
        return said

    def _once_more(
        self, running: RunningCommand, wait: WaitOptions, listener: Callable[[str], object] | None
    ) -> CommandObservation:
        """Send the command to a new shell: the old one never read it, so nothing of it ran."""
        self._restart(running.session, "The shell no longer took commands and was started again")
        self._again = True
        try:
            return self._watched(self._begin(running.call.command, running.call.text), wait, listener)
        finally:
            self._again = False

    def _kill(self, running: RunningCommand, *, quickly: bool = False) -> None:
        """Climb the ladder: SIGINT to the foreground, SIGTERM to all, SIGKILL to all, the shell, the whole sandbox.

        Quickly: without SIGTERM, with one pass of SIGKILL before the last one, and each rung is short.
        """
        running.session.relay_to(None)  # a full relay would stop the reader before the command's end
        foreground = running.foreground
        kill, terminate = partial(foreground.signal_all, "KILL"), partial(foreground.signal_all, "TERM")
        rungs: Sequence[Callable[[], object]] = (foreground.interrupt, terminate, foreground.sweep)
        rung_s = RUNG_S
        if quickly:
            rungs, rung_s = (foreground.interrupt, kill), CANCEL_RUNG_S
        try:
            for rung in rungs:
                rung()
                if self._ends(running, rung_s):
                    break
            else:
                running.session.kill()
                self._ends(running, rung_s)  # it may start another process until then
            foreground.sweep()
        except SandboxUnavailable as failure:  # no process can be started: pids are used up, or it is frozen
            self._notices.append(self._host.restart(failure))

    def _ends(self, running: RunningCommand, within_s: float) -> bool:
        watch = CommandWait(
            running.session, running.call, running.foreground.probe, WaitOptions(within_s), ignore_input=True
        )
        return watch.outcome() in (WaitOutcome.FINISHED, WaitOutcome.LEFT)

    # --- results ---

    def _observe(self, running: RunningCommand, outcome: WaitOutcome) -> CommandObservation:
        session, call, report = running.session, running.call, running.call.report
        runs_on = outcome in _RUNS_ON
        exit_code = report.exit_code if report else None
        if outcome is WaitOutcome.LOST or (outcome in _ENDED_BY_US and not call.finished):
            self._restart(session, "The shell did not come back from this command and was restarted")
            exit_code = None
        elif outcome is WaitOutcome.LEFT:
            exit_code = self._left(session)
        elif report and report.how == "lost":
            self._notices.append(f"The working directory was gone; the command ran in {self._host.workdir}")
        if exit_code == KILLED and self._host.ran_out_of_memory():
            self._notices.append("The sandbox ran out of memory and the kernel killed the largest process")
        session.relay_to(None)
        with session.changed:
            captured = call.capture.take(final=not runs_on, masker=self._host.secrets.masker)
        self._untidy |= outcome is not WaitOutcome.FINISHED or (exit_code or 0) > LAST_PLAIN_CODE
        if not runs_on:
            self._cwd, session.call, self._running = session.cwd, None, None
        output_path = self._output_path(running=runs_on)
        background, self._background = self._background, ""
        return CommandObservation(
            command=call.command,
            output=session.own_output(captured.text, call),
            exit_code=None if runs_on or outcome in _ENDED_BY_US else exit_code,
            cwd=self._cwd,
            session=self.name,
            timed_out=outcome is WaitOutcome.TIMEOUT,
            cancelled=outcome is WaitOutcome.CANCELLED,
            running=runs_on,
            waiting_for_input=outcome is WaitOutcome.INPUT,
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
            command=command, output="", exit_code=None, cwd=self._cwd, session=self.name, nothing_ran=True,
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

    def _not_begun(self, command: str, wait: WaitOptions, *, queued_s: float) -> CommandObservation:
        """Result for a caller that gave up its turn. Takes no notices, changes nothing: another call holds the lock."""
        cancelled = wait.cancel is not None and wait.cancel.is_set()
        why = (
            "Cancelled before it began; nothing of it ran"
            if cancelled
            else f"Not run: it waited {queued_s:.1f} s, and another call in this session still waits for its command. "
            "Call again later, interrupt that one, or use another session"
        )
        return CommandObservation(
            command=command, output="", exit_code=None, cwd=self._cwd, session=self.name, cancelled=cancelled,
            running=not cancelled, queued_s=round(queued_s, 3), notice=why,
        )  # fmt: skip

    def _take_notice(self) -> str | None:
        if notice := self._host.take_notices():
            self._notices.insert(0, notice)
        notices, self._notices = self._notices, []
        return "; ".join(notices) or None

    # --- the session ---

    def _ready(self) -> ShellSession:
        """The live session, started if necessary."""
        if self._session is not None and not self._session.alive and self._running is None:
            self._restart(self._session, "The shell had ended and was started again")
        if self._session is None:
            self._session = self._host.with_recovery(self._open, ShellUnusable)
        return self._session

    def _open(self) -> ShellSession:
        directory = f"{self._host.state_dir}/{self._name_part()}-{secrets.token_hex(4)}"
        if self._taken_over:
            self._restored = self._left_behind()
        try:
            session = self._new_session(directory)
        except ShellUnusable as failure:
            raise self._what_is_missing() or failure from failure
        if self._descendants is None:
            self._descendants = CommandProcesses(self._snippet, session, mark=self._mark)
        if self._taken_over:
            self._tell_takeover(session)
        return session

    def _new_session(self, directory: str) -> ShellSession:
        options = self._options
        return ShellSession(
            lambda argv, *, tty, env: self._host.channel(argv, tty=tty, env=env, user=options.user),
            directory,
            mark=self._mark, home=self._host.workdir, workdir=self._cwd, env=options.env,
            restored=self._restored, unsaved=self._host.secrets.names, on_overflow=self._spool_for,
        )  # fmt: skip

    def _what_is_missing(self) -> SandboxUnavailable | None:
        """The error that names the missing programs without which no shell comes up; None if all are there."""
        body = b'[ "$PATH" ] || echo "no PATH";ohs_lacks %s' % " ".join(NEEDED).encode()
        said = self._snippet(body).stdout.splitlines()
        lacking = [f"`{name}`" for name in NEEDED if name.encode() in said]
        if not lacking:
            return None
        if b"no PATH" in said:
            return SandboxUnavailable(
                "The sandbox's PATH is empty: its image, or env=, sets it so, and no shell comes up where no program "
                "is found. Remedy: use an image that sets a PATH, or pass env={'PATH': '/usr/local/bin:/usr/bin:/bin'}."
            )
        return SandboxUnavailable(
            f"The sandbox has no {', '.join(lacking)}, without which no shell comes up. Its files are kept. "
            "Remedy: use an image that has it, or go back with `ohsandbox undo`."
        )

    def _left_behind(self) -> str:
        """The environment that an earlier process's keeper saved (keeper.sh), with our mark in place of its own."""
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
        """Discard a dead or lost shell; the next command gets one with its directory and exported environment."""
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

    def _snippet(self, body: bytes, limit_bytes: int = 65536) -> CallResult:
        return self._host.snippet(body, user=self._options.user, limit_bytes=limit_bytes, timeout_s=SNIPPET_S)

    def _spool_for(self, nonce: str) -> Callable[[bytes], None]:
        path = f"/tmp/ohsandbox-output-{nonce[:8]}.log"  # noqa: S108 - in the sandbox, private by umask
        self._spool = OverflowFile(lambda argv: self._host.channel(argv, user=self._options.user), path)
        return self._spool.write

    def _output_path(self, *, running: bool) -> str | None:
        if self._spool is None:
            return None
        if running:
            return self._spool.path
        spool, self._spool = self._spool, None
        return spool.finish()


def in_subshell(command: str, env: Mapping[str, str], workdir: str | None) -> str:
    """Shell text that runs command in a subshell of the session, with more environment, in another directory."""
    exports = "".join(f"command export {name}={shlex.quote(value)};" for name, value in env.items())
    enter = f"command cd -- {shlex.quote(workdir)}&&" if workdir else ""
    return f"({exports}{enter}command eval {shlex.quote(command)})"


def _with_queue(observation: CommandObservation, queued_s: float) -> CommandObservation:
    told = observation.notice
    if queued_s >= TOLD_QUEUE_S:
        waited = f"Waited {queued_s:.1f} s for another call in this session to return"
        told = f"{waited}; {told}" if told else waited
    return observation.model_copy(update={"queued_s": round(queued_s, 3), "notice": told})
