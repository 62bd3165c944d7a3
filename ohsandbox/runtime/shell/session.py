"""One persistent shell: two channels, one thread that reads both, and the state of the running command.

The keeper (no terminal) passes commands in and reports out over two FIFOs; the terminal carries the programs' output
and input. A command has ended when its end mark has arrived on the terminal *and* its report on the keeper. A program
cannot forge either one by its output. If one is lost (`printf` redefined, shell killed), `ShellSession.recover` detects
it.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import select
import threading
import time
from collections import deque
from importlib.resources import files
from typing import TYPE_CHECKING

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.aio import AT_ONCE_BYTES, Signal
from ohsandbox.runtime.channel import KILLED, POLL_MS
from ohsandbox.runtime.process.invocation import NEWLINE, exports, quote, script_on_stdin
from ohsandbox.runtime.shell.output import FAREWELL, Capture
from ohsandbox.runtime.shell.running import CommandReport
from ohsandbox.runtime.shell.terminal import Mark, MarkSplitter, clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.channel import Channel
    from ohsandbox.runtime.process.worker import CallResult
    from ohsandbox.runtime.shell.output import OutputRelay
    from ohsandbox.runtime.shell.running import ShellCommand
    from ohsandbox.secrets import Masker

_SCRIPTS = files("ohsandbox.runtime").joinpath("scripts")
_KEEPER = _SCRIPTS.joinpath("keeper.sh").read_text("utf-8")
TERMINAL = _SCRIPTS.joinpath("terminal.sh").read_text("utf-8")
SESSION = _SCRIPTS.joinpath("session.sh").read_text("utf-8")

_BACKGROUND_BYTES = 64 * 1024
"""Bytes kept of the output that background jobs print between two commands."""

_SETTLE_S = 10.0
"""Seconds to wait for the keeper's answer or end, which shows how a shell ended: normally 3 ms; on a machine with six
runnable processes per processor the end of a stream took over 200 ms."""

_LAST_WORDS_BYTES = 300
"""Bytes of a shell's output that are quoted if it ends as it comes up."""
START_S = 10.0
"""Seconds to wait at least for a shell's greeting, which comes within 10 ms of its exec; a /bin/sh that is not a shell
sends none."""
_START_RATIO, _MAX_START_S = 20, 120.0
"""Where opening the session's two streams took long, as on a loaded machine, the wait for the greeting is that many
times as long, up to the maximum: measured, the greeting took a third of that time."""
REAP_S = 1.0
"""Seconds until the engine knows the exit code of a process that has ended."""

_JOB_STARTED = re.compile(r"(?m)^\[\d+\][ \t](\d{1,10})\n")
_JOB_ENDED = re.compile(
    r"(?m)^\[\d+\] {0,4}[+-]? +(?:[Dd]one|[Ee]xit \d+|[Tt]erminated|[Kk]illed|[Hh]angup)(?:\(\d+\))? +(\S.*)\n"
)
_LAYOUT = re.compile(r"[\s;&]")
"""Characters that bash adds or omits when it prints a job that was written in several lines."""
_HERE_DOCUMENT = re.compile(r"(?m)^(bash: warning: here-document) at line \d+(?= delimited by end-of-file)")
"""bash counts every line that it was sent, including ours, and the line number of an interactive bash cannot be set."""
_JOB_COMMANDS = 50
"""Number of commands with a `&` that are remembered, to recognise bash's messages about their jobs."""

_EXIT = re.compile(r"\b(?:EXIT|0)\b")
"""The condition of an EXIT trap, as the `trap` command names it."""

_FAREWELL = FAREWELL.decode()
"""The text that bash prints when it exits; the output of an EXIT trap follows it."""

_LINE_EDITING = re.compile(r"(?m)^(?=.*\b(?:set|shopt)\b).*\b(?:vi|emacs)\b")
"""A command that may turn on line editing, which bash has to execute as a sourced file (session.sh: ohs_source). Tried
once a line: each try reads the line to its end."""

_LATE = 'command eval "$ohs_late"'
"""When an interrupt or an error makes an interactive shell abandon its line, it reads this next line, which sends the
missing report. bash reads a pipe byte by byte, so it gets this line directly after each command. dash and ash read
ahead: dash discards it at an interrupt, and busybox's applets, forked without exec, would read it as their own stdin.
For those shells `recover` sends it."""


class ShellUnusable(SandboxUnavailable):
    """The processes of a session started, but there is no working shell."""


class ShellSession:
    """The two channels of a shell. It runs one command at a time; the owner serialises calls."""

    def __init__(
        self,
        open_channel: Callable[..., Channel],
        directory: str,
        *,
        mark: str,
        home: str,
        workdir: str,
        env: Mapping[str, str],
        restored: str = "",
        unsaved: Sequence[str] = (),
        on_overflow: Callable[[str], Callable[[bytes], None]] | None = None,
    ) -> None:
        """Start the shell in workdir; `restored` is shell text that sets its environment first.

        A copy of its exported variables, except `unsaved`, is kept in its directory for its successor.

        open_channel(argv, tty=, env=) opens a channel as the session's user. directory belongs to this session alone
        and does not exist yet. mark is in the environment of all processes that the shell starts. home is the directory
        that a shell enters if its own was removed. on_overflow(nonce) returns the sink for a command's whole output.

        Raises:
            SandboxUnavailable: no shell can be started in the sandbox.
        """
        self.cwd = workdir
        self.is_elsewhere = False
        """Whether the shell could not enter workdir."""
        self.directory = directory
        self.pid = self.keeper_pid = 0
        """Process ids in the sandbox of the shell and of its keeper, which does not end with the shell."""
        self.tty = ""
        """Path of the terminal in the sandbox."""
        self.call: ShellCommand | None = None
        self.exit_code: int | None = None
        """The shell's exit code; None until it has ended, or if the code is unknown."""
        self.failure: SandboxUnavailable | None = None
        self.changed = threading.Condition()
        self._tell: Callable[[], None] | None = None
        """Called once the running command, or the shell, has ended."""
        self._relay: OutputRelay | None = None
        self._on_overflow = on_overflow
        self._background = Capture(limit_bytes=_BACKGROUND_BYTES)
        self._background_pid = 0
        self._job_commands: deque[str] = deque(maxlen=_JOB_COMMANDS)
        self._bash = False
        self._exit_trap = False
        """Whether the agent may have set an EXIT trap: it prints when the shell exits, with a command's redirections
        undone.
        """
        self._prefix = f"ohsandbox_{secrets.token_hex(4)}_"
        """Prefix of our names in the shell, where commands may set any names; random, so that no other name begins with
        it.
        """
        self._records = b""
        self._splitter = MarkSplitter()
        self._keeper_ended = self._terminal_ended = self._closed = False
        self._keeper_failure: Exception | None = None
        began = time.monotonic()
        self._keeper, self.terminal = self._open(open_channel, {**env, "OHSANDBOX_SESSION": mark})
        self._start_s = max(START_S, min(_MAX_START_S, _START_RATIO * (time.monotonic() - began)))
        self._greeting, self._question = secrets.token_hex(16), secrets.token_hex(16)
        self._answered = False
        """Whether the keeper has passed on our question, before which it passes on every report of the shell."""
        self._begin(self._setup(workdir, home, restored, unsaved))

    def _begin(self, setup: bytes) -> None:
        """Send the shell its first lines, and wait until it answers."""
        with contextlib.suppress(BrokenPipeError):  # the keeper has ended, which the reader will report
            self._keeper.write(setup)
        threading.Thread(target=self._read, name="ohsandbox-shell", daemon=True).start()
        with self.changed:
            self.changed.wait_for(lambda: self.pid or not self.alive, self._start_s)
        if not self.pid:
            self.close()
            raise self._not_up()

    def _setup(self, workdir: str, home: str, restored: str, unsaved: Sequence[str]) -> bytes:
        """Return the lines that the shell reads before the first command."""
        lines = self._own(f"{NEWLINE}\n{SESSION}\n")
        lines += self._own("ohs_dir=%s ohs_home=%s\n") % (self._quote(self.directory), self._quote(home))
        if unsaved:
            lines += self._own("ohs_save='(command unset -v %s;command export -p)'\n") % " ".join(unsaved).encode()
        if restored:
            eval_restored = self._own('{ command eval %s;command eval "$ohs_plain"; } 2>/dev/null\n')
            lines += eval_restored % self._quote(restored)
        greet = self._own('command cd -- %s || ohs_w=lost\nohs_n=%s; command eval "$ohs_greet"\n')
        return lines + greet % (self._quote(workdir), self._greeting.encode())

    def _own(self, text: str) -> bytes:
        """Return our shell text with the placeholder names replaced by this shell's own."""
        return text.replace("ohs_", self._prefix).encode()

    def _quote(self, text: str) -> bytes:
        return quote(text, newline=self._own("ohs_nl"))

    def _not_up(self) -> SandboxUnavailable:
        if type(self.failure) is SandboxUnavailable:  # restarted as the shell came up: try again
            return ShellUnusable(str(self.failure))
        if self.failure:
            return self.failure
        if self.exit_code is None:
            return ShellUnusable(f"No shell came up in the sandbox within {self._start_s:.0f} s.")
        words = clean(self._background.last(_LAST_WORDS_BYTES)).strip().rpartition("\n")[2]
        said = f" and said {words!r}" if words else ""
        return ShellUnusable(f"The sandbox's shell ended with code {self.exit_code} as it came up{said}.")

    def _open(self, open_channel: Callable[..., Channel], env: dict[str, str]) -> tuple[Channel, Channel]:
        argv, script = script_on_stdin(_KEEPER, "ohsandbox", self.directory)
        opened: dict[str, Channel] = {}
        failed: list[BaseException] = []

        def open_keeper() -> None:
            try:
                opened["keeper"] = open_channel(argv, tty=False, env={"OHSANDBOX_KEEPER": "1"})
                with contextlib.suppress(BrokenPipeError):
                    opened["keeper"].write(script)
            except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
                failed.append(error)

        # no pool: its threads cannot start once the main thread has ended, while others still use the sandbox
        other = threading.Thread(target=open_keeper, name="ohsandbox-keeper")
        other.start()
        try:
            argv_of_terminal = ["/bin/sh", "-c", TERMINAL, "terminal", self.directory]
            opened["terminal"] = open_channel(argv_of_terminal, tty=True, env=env)
        except BaseException as error:  # noqa: BLE001 - as above
            failed.insert(0, error)
        finally:
            other.join()
        if failed:
            for channel in opened.values():
                channel.close()
            raise failed[0]
        return opened["keeper"], opened["terminal"]

    # --- methods for the caller ---

    @property
    def alive(self) -> bool:
        """Whether the shell can take a command."""
        return self.exit_code is None and self.failure is None

    @property
    def has_printed_exit(self) -> bool:
        """Whether an interactive bash has exited, so that its 'exit' ends the output."""
        return self._bash and not self.alive

    @property
    def accepts_immediately(self) -> bool:
        """Whether the shell can take a short command without blocking the caller."""
        return self.alive and self._keeper.filenos() is not None

    async def ended(self, signal: Signal) -> bool:
        """Wait for the end of the running command; return whether it came and can be handled without blocking."""
        with self.changed:
            self._tell = signal.set
            if not self.alive or self.call is None or self.call.finished:
                signal.set_here()
        await signal.wait(at_once=True)
        if (call := self.call) is None or not call.ended or call.report is None:
            return False
        return call.report.exit_code != KILLED and call.capture.size <= AT_ONCE_BYTES

    def send(self, call: ShellCommand, *, by_file: bool = False) -> None:
        """Send the shell a command, or the text instead of it; by_file: the file `command` of our directory has it."""
        command = call.command
        if self._on_overflow:
            call.capture = Capture(on_overflow=self._on_overflow(call.nonce))
        text = call.text or command
        if self._bash and (len(text) - len(text.rstrip("\\"))) % 2:
            text += "\\"  # below two evals, bash would join the last line with what we run after the command
        quoted = (
            self._own('"$(command eval "$ohs_text";command echo .)";ohs_c=${ohs_c%.}') if by_file else self._quote(text)
        )
        with self.changed:
            self.call = call
        if (trap := command.find("trap")) >= 0 and _EXIT.search(command, trap):
            self._exit_trap = True
        run = "$ohs_trapped" if self._exit_trap else "$ohs_run"
        source = self._own("$ohs_source;ohs_b=$ohs_c") if self._bash and _LINE_EDITING.search(command) else b""
        begin = self._own("ohs_n=%s;ohs_m=%d;ohs_c=%s;ohs_v=") % (call.nonce.encode(), call.limit_kib, quoted)
        variables = exports(call.env, newline=self._own("ohs_nl"))
        late = self._late() if self._bash else b""
        # as in session.sh; ash and zsh let a function take this name
        evaluate = "command eval" if self._bash else "command unset -f eval 2>/dev/null || :\n\\eval"
        self._keeper.write(variables + begin + source + self._own(f'\n{evaluate} "{run}"\n') + late)

    @property
    def traps_exit(self) -> bool:
        """Whether the agent may have set an EXIT trap, during which a shell that exits stays busy."""
        return self._exit_trap

    def recover(self) -> None:
        """Ask a shell that waits for its next command to send the missing report of the last one."""
        self._keeper.write(self._late())

    def _late(self) -> bytes:
        return self._own(f"{_LATE};exec >/dev/null 2>&1\n" if self._exit_trap else f"{_LATE}\n")

    def relay_to(self, relay: OutputRelay | None) -> None:
        """Relay the running command's output from now on, beginning with what is captured and not taken; None stops."""
        if relay is self._relay:
            return
        with self.changed:
            if relay is not None and self.call is not None and self.call.capture.size:
                relay.feed(*self.call.capture.kept())
            self._relay = relay
            self.changed.notify_all()

    def pop_background_output(self, masker: Masker) -> str:
        """Return what background jobs printed since the last call, masked."""
        with self.changed:
            return self._background.read(final=True, masker=masker).text

    def reap(self) -> None:
        """Detect that the shell has ended although a job it left behind still holds the terminal.

        Raises:
            SandboxUnavailable: the sandbox is gone as well.
        """
        with contextlib.suppress(TimeoutError):
            self._end(self.terminal.wait(REAP_S), None)

    def last_exit_code(self, snippet: Callable[[bytes], CallResult]) -> int | None:
        """Return the exit code of a shell that has ended, once its last report has arrived or cannot; None if unknown.

        A shell whose keeper is gone has read end of file and exited with 0; it counts as KILLED. snippet runs a line of
        shell in the sandbox.
        """
        words: list[bytes] = []
        if self.exit_code != KILLED and not self._is_settled():
            record = quote(f"{self._question} 0 kept 0 none /")
            with contextlib.suppress(SandboxUnavailable):
                body = b"ohs_ask %d %s %s" % (self.keeper_pid, quote(self.directory), record)
                words = snippet(body).stdout.split()
            if words != [b"alive"]:  # else the question cannot be written, and nothing can arrive
                with self.changed:
                    self.changed.wait_for(self._is_settled, _SETTLE_S)
        with self.changed:
            if self.call is not None and self.call.report is not None:
                self.cwd = self.call.report.cwd
                return self.exit_code
            if self._keeper_ended or b"gone" in words:
                return KILLED
            return self.exit_code if self.exit_code == KILLED or self._answered or b"alive" in words else None

    def never_began(self, call: ShellCommand) -> bool:
        """Whether the shell has ended and did not begin the command: its terminal was read to the end."""
        return self._terminal_ended and self.failure is None and not (call.began or call.report)

    def own_output(self, text: str, call: ShellCommand) -> str:
        """Return text without what an interactive shell adds: '[1] 4711' and 'Done' of jobs, and 'exit' of bash."""
        if self._bash and not self.alive:
            text = _without_exit_line(text) if self._exit_trap else text.removesuffix(_FAREWELL)
        if self._bash and "<<" in call.command:
            text = _HERE_DOCUMENT.sub(r"\1", text)
        if "&" in call.command:
            self._job_commands.append(_LAYOUT.sub("", call.command))
        first = max(self._background_pid, self.pid)
        if call.report:
            self._background_pid = call.report.background_pid
        if self._job_commands:
            text = _JOB_STARTED.sub(lambda line: "" if first < int(line[1]) <= self._background_pid else line[0], text)
            text = _JOB_ENDED.sub(lambda line: "" if self._is_job(line[1]) else line[0], text)
        return text

    def _is_job(self, text: str) -> bool:
        job = _LAYOUT.sub("", text)
        return bool(job) and any(job in command for command in self._job_commands)

    def close(self, *, kill: bool = True) -> None:
        """Close the shell's input and terminal; with kill, kill a live shell first."""
        if kill and self.alive:
            with contextlib.suppress(OSError, SandboxUnavailable):
                self.terminal.kill()
        self._closed = True
        self._keeper.close()
        self.terminal.close()

    # --- the reading thread ---

    def _read(self) -> None:
        in_threads = self.terminal.filenos() is None or self._keeper.filenos() is None
        try:
            if in_threads:
                self._read_in_threads()
            else:
                self._poll()
            self._end(self._exit_code(), None)
        except SandboxUnavailable as error:
            self._end(None, error)
        except (OSError, ValueError) as error:  # closed by close() in another thread
            self._end(None, SandboxUnavailable(f"The shell's connection was closed: {error}"))
        if not in_threads:
            with contextlib.suppress(SandboxUnavailable, OSError, ValueError):
                self._poll_keeper()

    def _poll(self) -> None:
        """Read both channels in this thread until the terminal ends."""
        poll = select.poll()
        by_fd = {fd: channel for channel in (self.terminal, self._keeper) for fd in channel.filenos() or ()}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        while self.terminal.filenos():
            for fd, _ in poll.poll(POLL_MS):
                if not self._read_once(by_fd[fd], 0):
                    poll.unregister(fd)
                    if by_fd[fd] is self._keeper and not self._keeper.filenos():
                        self._note_keeper_end()
        self._terminal_ended = True

    def _poll_keeper(self) -> None:
        """Read on until it is certain whether a shell that has ended sent a report; its two streams end separately."""
        while not (self._closed or self._is_settled()):
            if not self._read_once(self._keeper, POLL_MS / 1000):
                self._note_keeper_end()
                return

    def _read_in_threads(self) -> None:
        """Read channels without descriptors: the terminal in this thread, the keeper in another one."""
        threading.Thread(target=self._read_keeper, name="ohsandbox-keeper", daemon=True).start()
        while self._read_once(self.terminal, None):
            pass
        self._terminal_ended = True
        if self._keeper_failure is not None:
            raise self._keeper_failure

    def _read_keeper(self) -> None:
        try:
            while self._read_once(self._keeper, None):
                pass
        except (SandboxUnavailable, OSError, ValueError) as error:
            self._keeper_failure = error
        with contextlib.suppress(SandboxUnavailable, OSError):
            self._note_keeper_end()

    def _note_keeper_end(self) -> None:
        """Kill the shell, which without its keeper (as after `kill -9 -1`) can neither take commands nor report."""
        with self.changed:
            self._keeper_ended = True
            self.changed.notify_all()
        if not (self._terminal_ended or self._closed):
            self.terminal.kill()

    def _is_settled(self) -> bool:
        """Whether no report is missing of a shell that has ended, or none can arrive any more."""
        has_all = self.call is None or self.call.report is not None
        return has_all or self._answered or self._keeper_ended or self.failure is not None

    def _exit_code(self) -> int:
        """Return the exit code of the shell whose terminal has closed; one that still runs is killed.

        A shell whose keeper is gone has read end of file and exited with 0, or was killed by us: both count as KILLED.
        """
        try:
            code = self.terminal.wait(REAP_S)
        except TimeoutError:
            self.terminal.kill()
            code = self.terminal.wait()
        return KILLED if self._keeper_ended else code

    def _read_once(self, channel: Channel, timeout_s: float | None) -> bool:
        """Read once; return False at the end of the stream."""
        if self._relay is not None and channel is self.terminal:
            with self.changed:  # stop reading: the terminal's buffer fills, and writes to it block
                self.changed.wait_for(lambda: self._relay is None or not self._relay.full)
        chunks = channel.read(timeout_s)
        with self.changed:
            for chunk in chunks or ():
                if channel is self.terminal:
                    self._handle_terminal(chunk.data)
                else:
                    self._handle_records(chunk.data)
        self._notify_end()
        return chunks != []

    def _handle_terminal(self, data: bytes) -> None:
        for piece in self._splitter.feed(data):
            if isinstance(piece, Mark):
                if self.call is not None and piece.nonce == self.call.nonce:
                    self.call.began = True
                    self.call.ended = self.call.ended or piece.kind == "end"
                    self._finish()
            elif self.call and self.call.began and not self.call.ended:
                self.call.capture.feed(piece)
                if self._relay is not None:
                    self._relay.feed(piece)
                self.changed.notify_all()
            else:
                self._background.feed(piece)

    def _handle_records(self, data: bytes) -> None:
        *records, self._records = (self._records + data).split(b"\0")
        for record in records:
            report = CommandReport.parse(record)
            if report and report.nonce == self._greeting:
                keeper, self.tty, self.cwd = report.cwd.split(" ", 2)
                self.keeper_pid, self.pid, self._bash = int(keeper), report.background_pid, report.bash
                self.is_elsewhere = report.how == "lost"
                self.changed.notify_all()
            elif report and report.nonce == self._question:
                self._answered = True
                self.changed.notify_all()
            elif report and self.call and report.nonce == self.call.nonce and self.call.report is None:
                self.call.report = report
                self._finish()
                self.changed.notify_all()

    def _finish(self) -> None:
        if self.call and self.call.finished and self.call.report:
            self.cwd = self.call.report.cwd
            self.changed.notify_all()

    def _end(self, exit_code: int | None, failure: SandboxUnavailable | None) -> None:
        with self.changed:
            self.exit_code, self.failure = exit_code, failure
            if self.call and self.call.report:
                self.cwd = self.call.report.cwd
            self.changed.notify_all()
        self._notify_end()

    def _notify_end(self) -> None:
        """Call `_tell`, without holding `changed`, which the callee acquires."""
        if (tell := self._tell) is not None and (not self.alive or self.call is None or self.call.finished):
            self._tell = None
            tell()


def _without_exit_line(text: str) -> str:
    """Remove bash's 'exit', on a line of its own, from text after which an EXIT trap may have printed."""
    lines = [*re.finditer(f"(?m)^{_FAREWELL}", text)]
    start = lines[-1].start() if lines else text.rfind(_FAREWELL)
    return text if start < 0 else text[:start] + text[start + len(_FAREWELL) :]
