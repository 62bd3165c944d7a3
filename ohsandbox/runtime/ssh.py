"""`SshRuntime`: a machine over OpenSSH. It isolates nothing: the machine is the sandbox.

A process is an `ssh` of this host, over a connection that all share.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ohsandbox.arguments import suggests_names
from ohsandbox.errors import SandboxUnavailable, UnknownUserError, UsageError
from ohsandbox.runtime.base import Runtime
from ohsandbox.runtime.channel import Chunk, Stream
from ohsandbox.runtime.local import QUIET_ENV, LocalChannel
from ohsandbox.runtime.process.invocation import check_entered, check_env, script_on_stdin, start_script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

START_S = 20.0
"""A connection takes 0.1 to 2 s, a process over an open one some 50 ms and what the login shell reads at its start."""
ASK_S = 10.0
_FAREWELL_S = 1.0
"""Between the end of the output of an `ssh` and what it says of the reason."""
NOISE_BYTES = 64 * 1024
"""Of what start-up files of a login shell may print before our hello."""
_CONNECTION_FAILED = 255
"""ssh(1), EXIT STATUS; a process may end with it, too."""

_SUPERVISOR = "exec 3>&2 4<&0 2>/dev/null </dev/null; (exec %s <&4 2>&3 3>&- 4<&-); exit $?"
"""The parent of the process: it ends with 128 + N where signal N ended that, and of which `ssh` would only say 255."""
_HELLO = '[ ! -t 0 ] || stty raw -echo; printf "%s\\000" "$0$$";'
"""Said before our script is read from stdin, so that no argument and no variable of the process stands in an argv that
others on the machine see. A terminal in its usual mode would cut the script at 4,095 bytes."""
_MODES = "[ ! -t 0 ] || stty 38400 sane\n"
"""A multiplexed `ssh` that has no terminal itself gives the other one no modes at all: no Ctrl-C (OpenSSH 9.2)."""
_RESIZE = """
for ohs_f in "/proc/$0/fd/0" "/proc/$0/fd/1" "/proc/$0/fd/2"; do
  [ -t 3 ] 3<"$ohs_f" && exec stty cols "$1" rows "$2" <"$ohs_f"
done 2>/dev/null
exit 1"""
"""A multiplexed `ssh` passes only the size of its own terminal. Another process sets that of a terminal as well."""
_KILL = 'kill -9 "-$0" 2>/dev/null || kill -9 "$0"'


class _SshChannel(LocalChannel):
    """A process on another machine. It leads its process group, and its session where it has no terminal.

    `wait` returns once nothing holds the process's streams any more: only then `ssh` tells the exit code.
    """

    def __init__(
        self, ssh: Sequence[str], argv: Sequence[str], *, tty: bool = False, env: Mapping[str, str], workdir: str,
        loss: Callable[[], SandboxUnavailable | None] = lambda: None,
    ) -> None:  # fmt: skip
        """Start argv. ssh: the words of a command up to the host; loss() tells what became of the connection.

        Raises:
            UsageError: argv or env cannot be passed to a process.
            WorkdirError: workdir cannot be entered.
            SandboxUnavailable: `ssh` starts no process there.
        """
        nonce = f"ohs-{secrets.token_hex(8)}:"
        (*shell, reader), script = script_on_stdin(_MODES * tty + start_script(argv, env, workdir))
        process = shlex.join([*["setsid"][tty:], *shell, _HELLO + reader, nonce])
        self._ssh, self._tty, self._loss = [*ssh], tty, loss
        super().__init__(self._words(_SUPERVISOR % process, tty=tty), tty=False, env=os.environ, workdir=".")
        try:
            while nonce not in (hello := self.read_word()):
                pass
            self.pid = int(hello.rpartition(nonce)[2])
            self._read_stderr(0)
            with contextlib.suppress(BrokenPipeError):  # read_word tells why
                self.write(script)
            check_entered(self.read_word(), workdir)
        except BaseException:
            self.close()
            raise

    def _words(self, script: str, *arguments: str, tty: bool = False) -> list[str]:
        options = ["-o", f"RequestTTY={'force' if tty else 'no'}"]
        return [self._ssh[0], *options, *self._ssh[1:], shlex.join(["exec", "/bin/sh", "-c", script, *arguments])]

    def read_word(self) -> str:
        """What comes on stdout up to a NUL, and not a byte more.

        Raises:
            SandboxUnavailable: none comes within START_S.
        """
        stdout, word, deadline = next(iter(self._streams)), b"", time.monotonic() + START_S
        while len(word) < NOISE_BYTES and select.select([stdout], [], [], max(0, deadline - time.monotonic()))[0]:
            if (byte := os.read(stdout, 1)) == b"\0":
                return word.decode("utf-8", "surrogateescape")
            if not byte:
                break
            word += byte
        said = " ".join(self._read_stderr(_FAREWELL_S).decode("utf-8", "replace").split())[-300:].rstrip(".")
        raise self._loss() or SandboxUnavailable(
            f"{shlex.join([self._ssh[0], self._ssh[-1]])} started no process: {said or 'no answer'}. "
            "Remedy: make that command work without a question about keys, hosts or passwords."
        )

    def _read_stderr(self, timeout_s: float) -> bytes:
        stderr, said = [*self._streams][1], b""
        while select.select([stderr], [], [], timeout_s)[0] and (data := os.read(stderr, NOISE_BYTES)):
            said += data
        return said

    def _read_one(self, fd: int) -> Chunk | None:
        chunk = super()._read_one(fd)
        return None if self._tty and chunk and chunk.stream is Stream.STDERR else chunk  # that is of `ssh` itself

    @property
    def ended(self) -> bool:
        """The `ssh` has ended."""
        return self._process.poll() is not None

    def wait(self, timeout_s: float | None = None) -> int:
        """See `Channel.wait`."""
        code = super().wait(timeout_s)
        if (code == _CONNECTION_FAILED or self._process.returncode < 0) and (loss := self._loss()):
            raise loss
        return code

    def resize(self, columns: int, rows: int) -> bool:
        """See `Channel.resize`. Another `ssh` does it, in some 50 ms; the machine needs `stty`."""
        return self._tty and self._ask(_RESIZE, str(self.pid), str(columns), str(rows))

    def kill(self) -> None:
        """See `Channel.kill`."""
        self._ask(_KILL, str(self.pid))

    def _ask(self, script: str, *arguments: str) -> bool:
        """Run a script beside the process, unless that has ended; whether it succeeded."""
        if self.ended:
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            words = self._words(script, *arguments)
            ran = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_S, check=False)
            return ran.returncode == 0
        return False

    def close(self) -> None:
        """See `Channel.close`."""
        super().close()
        if not self.ended:
            self._process.terminate()  # without it a terminal would stay open there


_HOST = re.compile(r"(?:ssh://)?(?:[\w.+][\w.+-]*@)?[\w\[][\w.:%\]-]*", re.ASCII)
"""No leading `-`, which `ssh` would read as an option, and nothing for the shell of a ProxyCommand (CVE-2023-51385)."""
_OPTIONS = (
    "BatchMode=yes", "LogLevel=ERROR", "EscapeChar=none", "ConnectTimeout=10", "ServerAliveInterval=15",
    "ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no", "RemoteCommand=none",
    "ControlPersist=no",
)  # fmt: skip
"""Nobody is asked, a dead network is noticed in a minute, and the machine gets no way back to this one. Host keys,
identities, ports and jump hosts are the person's own configuration."""
_LEAVE_S = 2.0

_LIFE = """umask 077
[ -r /proc/self/stat ] && command -v setsid >/dev/null || { echo "it has no /proc or no setsid" >&2; exit 1; }
ohs_d=$(mktemp -d "${TMPDIR:-/tmp}/ohsandbox-XXXXXXXX") || exit 1
trap 'rm -rf "$ohs_d"' EXIT
printf '%s\\000' "$(id -u)" "$(id -un)" "$ohs_d" "$PWD"
cat >/dev/null"""
"""The connection's first process. It ends with the connection, and removes the directory of the sessions."""


class SshRuntime(Runtime):
    """Commands and files of a Linux machine that `ssh HOST` reaches without a question.

    They are not isolated: a command does there what the account may do, and reaches what the machine reaches.
    Name a machine that may be lost, such as a virtual machine for this one task. What a process leaves on the machine
    stays there. A connection that breaks is made again at the next command: files are kept, sessions begin anew.
    """

    isolated = False
    private_processes = False

    @suggests_names
    def __init__(
        self, host: str, workdir: str = "", *, config: Path | str | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Name a machine.

        Args:
            host: `[USER@]HOST`, `ssh://[USER@]HOST[:PORT]`, or a Host of the person's configuration.
            workdir: a directory there, from the account's home; it must exist.
            config: what `ssh` reads in the place of `~/.ssh/config`.
            env: variables of every process.

        Raises:
            UsageError: host cannot be meant.
        """
        super().__init__()
        check_env(env)
        if not _HOST.fullmatch(host):
            raise UsageError(f"Invalid host {host!r}: expected [USER@]HOST or ssh://[USER@]HOST[:PORT]")
        self._host, self._workdir, self._env = host, workdir, {**QUIET_ENV, **(env or {})}
        self._config = [] if config is None else ["-F", str(Path(config).resolve())]
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._life: _SshChannel | None = None
        self._users: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The machine as it was named."""
        return f"ssh-{self._host}"

    @property
    def workdir(self) -> str:
        """Where commands start: absolute once the machine has been reached."""
        return self._workdir

    def start(self) -> Self:
        """Connect.

        Raises:
            SandboxUnavailable: `ssh` cannot connect, asks a question, or finds a machine that is not Linux.
            WorkdirError: workdir cannot be entered there.
        """
        if self._life is None:
            # OpenSSH appends 17 characters, and a socket's path ends at 107 bytes (unix(7)): so not below $TMPDIR
            self._directory = tempfile.TemporaryDirectory(prefix="ohs-ssh-", dir="/tmp", ignore_cleanup_errors=True)
            try:
                self._life = life = _SshChannel(
                    self._ssh(master=True), ["/bin/sh", "-c", _LIFE], env={}, workdir=self._workdir
                )
                self._users = (life.read_word(), life.read_word())
                self.state_dir, self._workdir = life.read_word(), life.read_word()
            except BaseException:
                self._close()
                raise
        return self

    def _ssh(self, *, master: bool = False) -> list[str]:
        """The words of a command up to the host. More sessions than the server allows connect by themselves."""
        if self._directory is None:
            raise SandboxUnavailable("The SshRuntime is not started. Call start(), or use a `with` block.")
        options = (*_OPTIONS, f"ControlMaster={'yes' if master else 'no'}", f"ControlPath={self._directory.name}/s")
        return ["ssh", *self._config, *(word for option in options for word in ("-o", option)), "--", self._host]

    def is_alive(self) -> bool:
        """Whether the connection stands."""
        return self._loss() is None

    def _loss(self) -> SandboxUnavailable | None:
        if self._life is not None and not self._life.ended:
            return None
        return SandboxUnavailable(f"There is no connection to {self._host!r}. Remedy: see whether `ssh` reaches it.")

    def _revive(self) -> str:
        self._close()
        self.start()
        return f"The connection to {self._host} was lost and made again; files are kept, sessions begin anew"

    def open_channel(
        self, argv: Sequence[str], *, tty: bool = False, env: Mapping[str, str] | None = None,
        user: str | int | None = None, workdir: str | None = None,
    ) -> _SshChannel:  # fmt: skip
        """See `Runtime.open_channel`; no other user than the account's own."""
        ssh = self._ssh()
        if loss := self._loss():
            raise loss
        if user is not None and str(user) not in self._users:
            raise UnknownUserError(f"Unknown user {user!r}: commands run as {self._users[1]!r}. Leave user out.")
        environment = {**self._env, **(env or {})}
        return _SshChannel(ssh, argv, tty=tty, env=environment, workdir=workdir or self._workdir, loss=self._loss_soon)

    def _close(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            life.close_stdin()
            life.read(_LEAVE_S)
            life.close()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def describe(self) -> dict[str, str]:
        """Facts for a system prompt."""
        runtime = f"the machine {self._host}, over ssh and with no container"
        return {"runtime": runtime, "working directory": self._workdir, "confinement": "none"}
