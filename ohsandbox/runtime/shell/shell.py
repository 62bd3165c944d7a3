"""`Shell`: a named session with time limits, and with restarts after failures; notices explain both."""

from __future__ import annotations

import contextlib
import math
import re
import secrets
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import OhsandboxError, SandboxUnavailable, UsageError
from ohsandbox.runtime.aio import Begun, is_short
from ohsandbox.runtime.channel import KILLED
from ohsandbox.runtime.files.operations import read_body
from ohsandbox.runtime.process.cancellation import LOOK_EVERY_S, ProcessTree
from ohsandbox.runtime.process.invocation import quote
from ohsandbox.runtime.results import CommandObservation
from ohsandbox.runtime.shell.output import ListenerFailed, OutputRelay, OverflowFile
from ohsandbox.runtime.shell.running import RunningCommand, ShellCommand
from ohsandbox.runtime.shell.session import ShellSession, ShellUnusable
from ohsandbox.runtime.shell.terminal import clean, keystrokes
from ohsandbox.runtime.shell.wait import CommandWait, WaitOptions, WaitOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.process.worker import CallResult

_UNSEEN_BYTES = 4096
"""Bytes at the end of the output that are checked for a question, which is shorter."""
_TOLD_QUEUE_S = 1.0
"""Seconds of waiting behind another call from which a notice reports it."""
_COMMAND_BY_FILE_BYTES = 16 * 1024
"""Size in bytes from which a command is passed in a file: shells read a pipe byte by byte, so 1 MiB took 0.5 s through
the FIFO and 20 ms from a file."""
_SNIPPET_S = 5.0
"""Time limit in seconds for a line of shell; the kill ladder restarts a sandbox that exceeds it."""
ENV_SNAPSHOT_BYTES = 1024 * 1024
_LAST_PLAIN_CODE = 127
"""Exit codes above this mean that a signal ended the program, perhaps before it restored the terminal."""
_MISREAD = (2, 126, 127)
"""Exit codes of a command that a shell cannot read, or whose program it cannot run."""
NEEDED = ("cat", "mkdir", "mkfifo")
"""Programs that a session needs to start; it works without rm, stty, tty and sleep."""

_SETS_TERMINAL = re.compile(r"\b(?:stty|reset|tput|script|screen)\b")
_RUNS_ON = frozenset({WaitOutcome.IDLE, WaitOutcome.EXPECTED, WaitOutcome.INPUT, WaitOutcome.YIELDED})
_ENDED_BY_US = frozenset({WaitOutcome.TIMEOUT, WaitOutcome.CANCELLED})


class SessionOptions(NamedTuple):
    """Initial settings of a session."""

    env: Mapping[str, str]
    workdir: str
    user: str | int | None
    is_reopened: bool = False
    """An earlier process had the session, and left it in workdir."""


class Shell:
    """A persistent shell that runs one command at a time; other threads queue."""

    def __init__(self, host: Runtime, name: str, options: SessionOptions) -> None:
        self.name = name
        self._host, self._options = host, options
        self._lock = threading.Lock()
        self._holder = 0
        """Id of the thread whose call is running; 0 if there is none."""
        self._session: ShellSession | None = None
        self._generation = 0
        """The sandbox's generation when the session was opened."""
        self._begun: Begun[CommandObservation] | None = None
        """The call that an event loop began and that holds the turn, perhaps without a thread."""
        self._running: RunningCommand | None = None
        self._descendants: ProcessTree | None = None
        """All processes started since the first shell began."""
        self._spool: OverflowFile | None = None
        self._cwd = options.workdir
        self._notices: list[str] = []
        self._mark = secrets.token_hex(8)
        self._background = self._restored = ""
        self._taken_over, self._again = options.is_reopened, False
        """_again: whether the command was already sent to a second shell."""
        self._new_env: deque[tuple[str, str]] = deque()
        """Variables that the shell exports before its next command."""
        self._untidy = False
        """Whether the last command may have left the terminal in another mode, because it was interactive or was
        killed.
        """
        self._was_used = False

    # --- methods for the caller ---

    @property
    def user(self) -> str | int | None:
        """The user that the shell runs as; None for the sandbox's own user."""
        return self._options.user

    @property
    def is_open(self) -> bool:
        """Whether the shell was started and is alive."""
        return self._session is not None and self._session.alive

    @property
    def is_unused(self) -> bool:
        """Whether the shell was started in advance and has had no command yet."""
        return self._session is not None and not self._was_used

    def execute(
        self,
        command: str,
        wait: WaitOptions,
        *,
        is_input: bool,
        text: str = "",
        listener: Callable[[str], object] | None = None,
    ) -> CommandObservation:
        """Run a command as `Runtime.execute` does; the shell executes text instead of the command."""
        called_at, queued_s = time.monotonic(), 0.0
        if not self._lock.acquire(blocking=False):
            if self._holder == threading.get_ident():
                raise UsageError(
                    f"on_output cannot call the session {self.name!r}, whose output it receives. Use another session."
                )
            has_turn = self._queue(wait)
            queued_s = time.monotonic() - called_at
            if not has_turn:
                return self._not_begun(command, wait, queued_s=queued_s)
        self._holder = threading.get_ident()
        try:
            if wait.cancel is not None and wait.cancel.is_set():
                return self._not_begun(command, wait, queued_s=queued_s)
            if queued_s and wait.yield_s is not None:
                wait = wait._replace(yield_s=max(0.0, wait.yield_s - queued_s))
            self._again = False
            observation = self._execute(command, wait, is_input=is_input, text=text, listener=listener)
        except ListenerFailed as failed:
            raise failed.error from None
        finally:
            self._holder = 0
            self._lock.release()
        if not queued_s:
            return observation
        notice = observation.notice
        if queued_s >= _TOLD_QUEUE_S:
            waited = f"Waited {queued_s:.1f} s for another call in this session to return"
            notice = f"{waited}; {notice}" if notice else waited
        return observation.model_copy(update={"queued_s": round(queued_s, 3), "notice": notice})

    def _queue(self, wait: WaitOptions) -> bool:
        """Wait for the running call to return; return False if this caller's time ends or it is cancelled first."""
        until = math.inf if wait.yield_s is None else time.monotonic() + wait.yield_s
        while not (wait.cancel and wait.cancel.is_set()) and (left_s := until - time.monotonic()) > 0:
            if self._lock.acquire(timeout=min(LOOK_EVERY_S, left_s)):
                return True
            if (pending := self._begun) is not None:  # its event loop may be waiting for this thread
                pending.start()
        return False

    def begin(self, command: str, wait: WaitOptions) -> Begun[CommandObservation] | None:
        """Send command from an event loop's thread; return None, with nothing sent, if that might block."""
        if is_short(wait.timeout_s) or len(command) > _COMMAND_BY_FILE_BYTES or not command.strip():
            return None
        if not self._lock.acquire(blocking=False):
            return None
        session, pending = self._session, None
        try:
            if session is not None and session.accepts_immediately and not (self._running or self._untidy):
                self._again = False
                running = self._begin(command, wait, at_once=session)
                watch = self._watch(running, wait)
                self._begun = pending = Begun(session.ended, lambda: self._finish(running, wait, watch))
        except BrokenPipeError:
            pass
        finally:
            if pending is None:
                self._lock.release()
        return pending

    def _finish(self, running: RunningCommand, wait: WaitOptions, watch: CommandWait) -> CommandObservation:
        """Wait for the command of `begin`, and release the turn."""
        try:
            return self._watched(running, wait, watch=watch)
        finally:
            self._begun = None
            self._lock.release()

    def start(self) -> None:
        """Start the shell before its first command."""
        with self._lock:
            self._ready()

    def set_env(self, env: Mapping[str, str]) -> None:
        """Set variables for the next command and all later shells; from any thread."""
        self._options = self._options._replace(env={**self._options.env, **env})
        self._new_env.extend(env.items())

    def interrupt(self) -> None:
        """Send SIGINT to the running command, from any thread; does nothing if none runs."""
        if (running := self._running) is not None:
            running.interrupt()

    def last_output(self, limit_bytes: int) -> bytes:
        """Return the end of the running command's output, from any thread; empty if none runs."""
        if (running := self._running) is None:
            return b""
        with running.session.changed:
            return running.call.capture.last(limit_bytes)

    def close(self, *, kill: bool = True) -> None:
        """Kill the shell and all its processes; with kill=False, only close its channels, since the sandbox ends."""
        if kill and self._descendants is not None:
            with contextlib.suppress(OhsandboxError, OSError):
                self._descendants.kill()
        if self._session is not None:
            self._session.close(kill=kill)
            self._session = None

    # --- running a command ---

    def _execute(
        self, command: str, wait: WaitOptions, *, is_input: bool, text: str, listener: Callable[[str], object] | None
    ) -> CommandObservation:
        self._ready()
        running = self._running
        if is_input or not command.strip():
            if running is None:
                self._notices.append("Nothing is running, so nothing was typed" if is_input else "Nothing is running")
                background = self._session.pop_background_output(self._host.secrets.masker) if self._session else ""
                notice = self._pop_notices()
                return self._observation(command, notice, nothing_ran=True, background_output=background)
            if is_input and (command.strip() or self._awaits_enter(running)):
                running.type(keystrokes(command))
        elif running is None:
            running = self._begin(command, wait, text)
        else:
            notice = (
                "Not run: the previous command still runs here. Poll it with an empty command, answer it with "
                "is_input, interrupt it with C-c, or use another session"
            )
            return self._observation(command, notice, running=True)
        return self._watched(running, wait, listener)

    def _awaits_enter(self, running: RunningCommand) -> bool:
        """Whether Enter replies to output that the caller has seen: the program waits and has printed nothing since."""
        with running.session.changed:
            unseen = bool(clean(running.call.capture.last(_UNSEEN_BYTES)).strip())
        if not unseen and running.probe() == "input":
            return True
        why = "asked something that you had not seen yet" if unseen else "did not wait for input"
        self._notices.append(f"Enter was not pressed: the program {why}")
        return False

    def _begin(
        self, command: str, wait: WaitOptions, text: str = "", *, at_once: ShellSession | None = None
    ) -> RunningCommand:
        """Send the command; with at_once to this idle session, without blocking: BrokenPipeError if it has ended."""
        session, by_file = at_once or self._ready(), False
        self._was_used = True
        self._background += session.pop_background_output(self._host.secrets.masker)
        call = ShellCommand(command, text, dict(self._new_env.popleft() for _ in range(len(self._new_env))))
        running = RunningCommand(
            self._snippet, session, call, mark=self._mark, timeout_s=wait.timeout_s, snippet_as=self._snippet_as
        )
        if self._untidy:
            self._snippet(b"ohs_tidy %s" % quote(session.tty))
        self._untidy = bool(_SETS_TERMINAL.search(command))
        if len(text or command) > _COMMAND_BY_FILE_BYTES:
            # where another user has taken the name, a link could lead what we write elsewhere
            check = b"[ -O %s ] && [ ! -L %s ] && { [ ! -e %s ] || [ -O %s ]; }"
            name, file = quote(session.directory), quote(f"{session.directory}/command")
            by_file = self._snippet(check % (name, name, file, file)).status == "0"
        if by_file:
            data = (text or command).encode("utf-8", "surrogateescape")
            self._host.write_bytes(f"{session.directory}/command", data, mode=0o600, user=self._options.user)
        try:
            session.send(running.call, by_file=by_file)
        except BrokenPipeError:  # the shell ended unnoticed and has not read the command
            self._new_env.extendleft(reversed(call.env.items()))
            if at_once:
                raise
            self._restart(session, "The shell had ended and was started again")
            return self._begin(command, wait, text)
        self._running = running
        return running

    def _watched(
        self, running: RunningCommand, wait: WaitOptions, listener: Callable[[str], object] | None = None, *,
        watch: CommandWait | None = None,
    ) -> CommandObservation:  # fmt: skip
        masker, changed = self._host.secrets.masker, running.session.changed
        relay = None if listener is None else OutputRelay(listener, masker, changed=changed)
        running.session.relay_to(relay)
        try:
            outcome = self._outcome(watch or self._watch(running, wait, relay))
            if not self._again and self._never_ran(running, outcome):
                self._new_env.extendleft(reversed(running.call.env.items()))
                self._restart(running.session, "The shell no longer took commands and was started again")
                self._again = True
                return self._watched(self._begin(running.call.command, wait, running.call.text), wait, listener)
            if outcome in _ENDED_BY_US:
                self._kill(running, quickly=outcome is WaitOutcome.CANCELLED)
            observation = self._observe(running, outcome)
            if relay is not None and observation.running:
                relay.hand_on()
            elif relay is not None:
                relay.finish(farewell=running.session.has_printed_exit)
        except (KeyboardInterrupt, ListenerFailed):
            if self._running is running:
                self._kill(running)
                self._observe(running, WaitOutcome.TIMEOUT)
            raise
        finally:
            running.session.relay_to(None)
        return observation

    def _never_ran(self, running: RunningCommand, outcome: WaitOutcome) -> bool:
        """Whether the shell never read the command, so that it may be sent to a new one: the sandbox has gone on."""
        if outcome is WaitOutcome.LOST:
            return not running.call.began
        never_began = outcome is WaitOutcome.LEFT and running.session.never_began(running.call)
        return never_began and self._generation == self._host.generation and self._host.is_alive()

    def _watch(self, running: RunningCommand, wait: WaitOptions, relay: OutputRelay | None = None) -> CommandWait:
        if wait.timeout_s is None:
            wait = wait._replace(timeout_s=running.timeout_s)
        probe = partial(running.probe_patiently, self._host.is_alive)
        return CommandWait(running.session, running.call, probe, wait, relay=relay)

    def _outcome(self, watch: CommandWait) -> WaitOutcome:
        """Return the outcome; if the sandbox cannot be asked what runs in it, restart it and return LOST."""
        try:
            outcome = watch.outcome()
        except SandboxUnavailable as failure:
            self._notices.append(self._host.restart(failure))
            outcome = WaitOutcome.LOST
        if watch.notice:
            self._notices.append(watch.notice)
        return outcome

    def _kill(self, running: RunningCommand, *, quickly: bool = False) -> None:
        """Call `RunningCommand.end`; if that is impossible, end the whole sandbox."""
        try:
            running.end(quickly=quickly)
        except SandboxUnavailable as failure:  # no process can be started: pids are used up, or it is frozen
            self._notices.append(self._host.restart(failure))

    # --- results ---

    def _observe(self, running: RunningCommand, outcome: WaitOutcome) -> CommandObservation:
        session, call = running.session, running.call
        runs_on = outcome in _RUNS_ON
        exit_code = call.report.exit_code if call.report else None
        if outcome is WaitOutcome.LOST or (outcome in _ENDED_BY_US and not call.finished):
            self._restart(session, "The shell did not return from this command and was restarted")
            exit_code = None
        elif outcome is WaitOutcome.LEFT:
            exit_code = self._left(session, call)
        elif outcome is WaitOutcome.INPUT and "exec" in call.command and (program := running.replacement()):
            self._notices.append(
                f"`exec` put {program!r} in place of this session's shell: type to it with is_input, or end it "
                "(`exit`, C-d) for a new shell"
            )
        elif call.report and call.report.how == "lost":
            self._notices.append(f"The working directory was gone; the command ran in {self._host.workdir}")
        if exit_code in _MISREAD and "\r\n" in call.command:
            self._notices.append(
                "The command has CRLF line ends, and a shell takes CR for a character: send it with LF"
            )
        if exit_code == KILLED and (limit := self._host.ran_out_of_memory()):
            self._notices.append(
                f"The sandbox's memory, {limit}, was used up and the kernel killed the largest process: use less, or "
                "ask for a sandbox with more (--memory, SandboxLimits)"
            )
        session.relay_to(None)
        with session.changed:
            captured = call.capture.read(final=not runs_on, masker=self._host.secrets.masker)
        self._untidy |= outcome is not WaitOutcome.FINISHED or (exit_code or 0) > _LAST_PLAIN_CODE
        spool = self._spool
        if not runs_on:
            self._cwd, session.call, self._running, self._spool = session.cwd, None, None, None
        output_path = None if spool is None else spool.path if runs_on else spool.finish()
        background, self._background = self._background, ""
        return self._observation(
            call.command,
            self._pop_notices(),
            output=session.own_output(captured.text, call),
            exit_code=None if runs_on or outcome in _ENDED_BY_US else exit_code,
            timed_out=outcome is WaitOutcome.TIMEOUT,
            cancelled=outcome is WaitOutcome.CANCELLED,
            running=runs_on,
            waiting_for_input=outcome is WaitOutcome.INPUT,
            truncated=captured.omitted_bytes > 0,
            output_bytes=captured.output_bytes,
            omitted_bytes=captured.omitted_bytes,
            output_path=output_path if captured.omitted_bytes else None,
            background_output=background,
        )

    def _left(self, session: ShellSession, call: ShellCommand) -> int | None:
        """Discard a shell that ended, perhaps with the sandbox; return its command's exit code, None if unknown."""
        exit_code = session.last_exit_code(self._snippet)
        lost = exit_code == KILLED and (self._generation != self._host.generation or not self._host.is_alive())
        failure = session.failure or (SandboxUnavailable("The shell ended with the sandbox.") if lost else None)
        if failure is not None:
            self._notices.append(self._host.recover(failure, self._generation))
            exit_code = None
        self._restart(session, "The shell ended" + ("" if exit_code is None else f" with code {exit_code}"))
        if exit_code is None or call.began:  # the command may have ended before its shell
            return call.report.exit_code if call.finished and call.report else exit_code
        self._notices.append("The command was not seen to begin")
        return None

    def _observation(self, command: str, notice: str | None, **facts: Any) -> CommandObservation:
        facts = {"output": "", "exit_code": None, **facts}
        return CommandObservation(command=command, cwd=self._cwd, session=self.name, notice=notice, **facts)

    def _not_begun(self, command: str, wait: WaitOptions, *, queued_s: float) -> CommandObservation:
        """Return the result for a caller whose turn did not come; change nothing, since another call holds the lock."""
        cancelled = wait.cancel is not None and wait.cancel.is_set()
        why = (
            "Cancelled before it began; nothing of it ran"
            if cancelled
            else f"Not run: it waited {queued_s:.1f} s, and another call in this session still waits for its command. "
            "Call again later, interrupt that one, or use another session"
        )
        return self._observation(command, why, cancelled=cancelled, running=not cancelled, queued_s=round(queued_s, 3))

    def _pop_notices(self) -> str | None:
        if notice := self._host.take_notices():
            self._notices.insert(0, notice)
        notices, self._notices = self._notices, []
        return "; ".join(notices) or None

    # --- the session ---

    def _ready(self) -> ShellSession:
        """Return the live session, started if necessary."""
        if self._session is not None and not self._session.alive and self._running is None:
            self._restart(self._session, "The shell had ended and was started again")
        if self._session is None:
            self._session = self._host.with_recovery(self._open, ShellUnusable)
        return self._session

    def _open(self) -> ShellSession:
        host, options = self._host, self._options
        self._generation = host.generation
        prefix = f"{host.state_dir}/{''.join(c for c in self.name if c.isascii() and c.isalnum())[:32] or 'session'}"
        if self._taken_over:
            self._restored = self._left_behind(f"{prefix}.env")
        try:
            session = ShellSession(
                partial(host.channel, user=options.user), f"{prefix}-{secrets.token_hex(4)}",
                mark=self._mark, home=host.workdir, workdir=self._cwd, env=options.env,
                restored=self._restored, unsaved=host.secrets.names, on_overflow=self._spool_for,
            )  # fmt: skip
        except ShellUnusable as failure:
            if (missing := self._missing_programs_error()) is not None:
                raise missing from failure
            raise
        if self._descendants is None:
            self._descendants = ProcessTree(self._snippet, session.pid, self._mark, began=time.monotonic())
        if self._taken_over:
            location = f"in {session.cwd}" if session.cwd == self._cwd else f"in {session.cwd}: {self._cwd} is gone"
            env_note = "its exported environment is restored" if self._restored else "its environment is lost"
            self._notices.append(
                f"The shell is new, {location}; {env_note}; functions, aliases, unexported variables and background "
                "programs of the shell before it are lost"
            )
            self._taken_over, self._restored = False, ""
        elif session.is_elsewhere:
            self._notices.append(f"The working directory {self._cwd} cannot be entered; the shell is in {session.cwd}")
        self._cwd = session.cwd
        return session

    def _missing_programs_error(self) -> SandboxUnavailable | None:
        """Return the error that names what is missing, without which no shell starts; None if nothing is."""
        jobs = b'case $(set -o) in *monitor*);;*)echo "no jobs";readlink -f /bin/sh;;esac'
        body = b'[ "$PATH" ] || echo "no PATH";ohs_lacks %s;command -v bash || %s' % (" ".join(NEEDED).encode(), jobs)
        lacking_lines = self._snippet(body).stdout.splitlines()
        if b"no jobs" in lacking_lines:
            name = lacking_lines[-1].decode("utf-8", "replace").rpartition("/")[2]
            return SandboxUnavailable(
                f"The sandbox's /bin/sh is {name}, which has no job control: no shell can be kept open in it.",
                remedy="Use an image that has bash, dash or busybox, or start each process by run().",
            )
        lacking = [f"`{name}`" for name in NEEDED if name.encode() in lacking_lines]
        if not lacking:
            return None
        if b"no PATH" in lacking_lines:
            return SandboxUnavailable(
                "No shell can start: the sandbox's PATH, which its image or env= sets, is empty.",
                remedy="Use an image that sets a PATH, or pass env={'PATH': '/usr/local/bin:/usr/bin:/bin'}.",
            )
        return SandboxUnavailable(
            f"The sandbox has no {', '.join(lacking)}, without which no shell starts. Its files are kept.",
            remedy="Use an image that has it, or go back with `ohsandbox undo`.",
        )

    def _left_behind(self, path: str) -> str:
        """Return the environment that an earlier process's keeper saved (keeper.sh), with this shell's mark."""
        with contextlib.suppress(OhsandboxError, OSError):
            mine = self._snippet(b"[ -f %s ] && [ -O %s ]" % (quote(path), quote(path)))
            if mine.status == "0" and (text := self._snapshot(path)):  # another user may have put a file at that path
                return f"{text}\nexport OHSANDBOX_SESSION={self._mark}"
        return ""

    def _restart(self, session: ShellSession, why: str) -> None:
        """Discard a dead or lost shell; the next command gets a new one with its directory and exported environment."""
        self._restored = self._snapshot(f"{session.directory}/env", session.directory)
        self._cwd = session.cwd
        session.close()
        self._session = None
        env_note = "its exported environment was kept" if self._restored else "its environment was lost"
        self._notices.append(f"{why}, in {self._cwd}; {env_note}, functions, aliases and unexported variables are lost")

    def _snapshot(self, path: str, directory: str = "") -> str:
        """Return shell text that restores the environment of a shell that is gone; empty if it cannot be read.

        It is evaluated, so nothing is read where the directory or the file may be another user's.
        """
        names = [quote(name) for name in (directory, path) if name]
        owned = b"".join(b"[ ! -L %s ] && [ -O %s ] && " % (name, name) for name in names)
        body = owned + b"[ -f %s ] && " % quote(path) + read_body(path, ENV_SNAPSHOT_BYTES)
        with contextlib.suppress(OhsandboxError, OSError):
            outcome = self._snippet(body, ENV_SNAPSHOT_BYTES)
            return outcome.stdout.decode("utf-8", "surrogateescape") if outcome.status == "0" else ""
        return ""

    def _snippet_as(self, body: bytes, user: int) -> CallResult:
        return self._host.snippet(body, user=user, timeout_s=_SNIPPET_S, recovers=False)

    def _snippet(self, body: bytes, limit_bytes: int = 65536) -> CallResult:
        return self._host.snippet(body, user=self._options.user, limit_bytes=limit_bytes, timeout_s=_SNIPPET_S)

    def _spool_for(self, nonce: str) -> Callable[[bytes], None]:
        path = f"{self._host.scratch_dir}/ohsandbox-output-{nonce[:8]}.log"
        self._spool = OverflowFile(lambda argv: self._host.channel(argv, user=self._options.user), path)
        return self._spool.write
