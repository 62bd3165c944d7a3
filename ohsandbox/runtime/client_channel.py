"""`ClientChannel`: a process elsewhere over a client program of this host, for backends that have a shell there."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shlex
import subprocess
import time
from typing import TYPE_CHECKING, Protocol

from ohsandbox import host_programs
from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.channel import Chunk, Stream
from ohsandbox.runtime.local import LocalChannel
from ohsandbox.runtime.process.invocation import check_entered, script_on_stdin, start_script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

START_S = 20.0
"""Of `ssh`, a connection takes 0.1 to 2 s, a process over an open one some 50 ms and what the login shell reads at its
start."""
ASK_S = 10.0
_FAREWELL_S = 1.0
"""Between the end of a client's output and what it says of the reason."""
NOISE_BYTES = 64 * 1024
"""Of what start-up files of a login shell may print before our hello."""

_SUPERVISOR = "exec 3>&2 4<&0 2>/dev/null </dev/null; (exec %s <&4 2>&3 3>&- 4<&-); exit $?"
"""The parent of the process: it ends with 128 + N where signal N ended that, of which `ssh` would only say 255."""
_HELLO = '[ ! -t 0 ] || stty raw -echo; printf "%s\\000" "$0$$";'
"""Said before our script is read from stdin, so that no argument and no variable of the process stands in an argv that
others on the machine see. A terminal in its usual mode would cut the script at 4,095 bytes."""
_MODES = "[ ! -t 0 ] || stty 38400 sane\n"
"""A client without a terminal of its own may give the other one no modes at all, so no Ctrl-C (OpenSSH 9.2, shared)."""
_RESIZE = """
for ohs_f in "/proc/$0/fd/0" "/proc/$0/fd/1" "/proc/$0/fd/2"; do
  [ -t 3 ] 3<"$ohs_f" && exec stty cols "$1" rows "$2" <"$ohs_f"
done 2>/dev/null
exit 1"""
"""A client passes only the size of its own terminal. Another process sets that of a terminal as well."""
_KILL = 'kill -9 "-$0" 2>/dev/null || kill -9 "$0"'


class ShellClient(Protocol):
    """A program of this host that runs shell scripts elsewhere, such as `ssh HOST`. `str` is its name in messages."""

    @property
    def lost_code(self) -> int:
        """The program's own exit code after it lost its connection; a process may end with it, too."""

    def argv(self, script: str, *arguments: str, tty: bool = False) -> list[str]:
        """The words that run the script with `/bin/sh` there, in a terminal where tty is set.

        `$0` is the first argument. The script's standard streams are those of the program.
        """

    def loss(self) -> SandboxUnavailable | None:
        """The error that says what became of the connection; None while it stands."""


class ClientChannel(LocalChannel):
    """A process elsewhere, whose streams a client program carries: any machine or container that has a shell.

    The process leads its process group, and its session where it has no terminal. `wait` returns once nothing holds
    the process's streams any more, for clients such as `ssh` tell the exit code only then.
    """

    def __init__(
        self, client: ShellClient, argv: Sequence[str], *, tty: bool = False, env: Mapping[str, str], workdir: str
    ) -> None:
        """Start argv in workdir with env beside what the shell there has. A shell's greeting is skipped.

        Raises:
            UsageError: argv or env cannot be passed to a process.
            WorkdirError: workdir cannot be entered.
            SandboxUnavailable: the client starts no process there.
        """
        nonce = f"ohs-{secrets.token_hex(8)}:"
        (*shell, reader), script = script_on_stdin(_MODES * tty + start_script(argv, env, workdir))
        process = shlex.join([*["setsid"][tty:], *shell, _HELLO + reader, nonce])
        self._client, self._tty = client, tty
        name, *words = client.argv(_SUPERVISOR % process, tty=tty)
        super().__init__([host_programs.program(name), *words], tty=False, env=host_programs.environment(), workdir=".")
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
        complaint = " ".join(self._read_stderr(_FAREWELL_S).decode("utf-8", "replace").split())[-300:].rstrip(".")
        raise self._client.loss() or SandboxUnavailable(
            f"{self._client} started no process: {complaint or 'no answer'}.",
            remedy="Make that command work without a question about keys, hosts or passwords.",
        )

    def _read_stderr(self, timeout_s: float) -> bytes:
        stderr, complaint = [*self._streams][1], b""
        while select.select([stderr], [], [], timeout_s)[0] and (data := os.read(stderr, NOISE_BYTES)):
            complaint += data
        return complaint

    def _read_one(self, fd: int) -> Chunk | None:
        chunk = super()._read_one(fd)
        return None if self._tty and chunk and chunk.stream is Stream.STDERR else chunk  # that is the client's own

    @property
    def ended(self) -> bool:
        """The client has ended."""
        return self._process.poll() is not None

    def wait(self, timeout_s: float | None = None) -> int:
        """See `Channel.wait`."""
        code = super().wait(timeout_s)
        if (code == self._client.lost_code or self._process.returncode < 0) and (loss := self._client.loss()):
            raise loss
        return code

    def resize(self, columns: int, rows: int) -> bool:
        """See `Channel.resize`. Another process does it, 50 ms over `ssh`; the machine needs `stty`."""
        return self._tty and self._ask(_RESIZE, str(self.pid), str(columns), str(rows))

    def kill(self) -> None:
        """See `Channel.kill`."""
        self._ask(_KILL, str(self.pid))

    def _ask(self, script: str, *arguments: str) -> bool:
        """Run a script beside the process, unless that has ended; whether it succeeded."""
        if self.ended:
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            words = self._client.argv(script, *arguments)
            ran = host_programs.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_S, check=False)
            return ran.returncode == 0
        return False

    def close(self) -> None:
        """See `Channel.close`."""
        super().close()
        if not self.ended:
            self._process.terminate()  # without it a terminal would stay open there
