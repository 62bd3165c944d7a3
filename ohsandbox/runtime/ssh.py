"""`SshRuntime`: a machine over OpenSSH. It isolates nothing: the machine is the sandbox.

Each process is started by an `ssh` on this host; all share one connection.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ohsandbox.arguments import suggests_names
from ohsandbox.errors import SandboxUnavailable, UnknownUserError, UsageError
from ohsandbox.runtime.base import Runtime
from ohsandbox.runtime.client_channel import ClientChannel
from ohsandbox.runtime.local import QUIET_ENV
from ohsandbox.runtime.process.invocation import check_env

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_HOST = re.compile(r"(?:ssh://)?(?:[\w.+][\w.+-]*@)?[\w\[][\w.:%\]-]*", re.ASCII)
"""No leading `-`, which `ssh` would read as an option, and no special characters of a ProxyCommand's shell
(CVE-2023-51385)."""
_OPTIONS = (
    "BatchMode=yes", "LogLevel=ERROR", "EscapeChar=none", "ConnectTimeout=10", "ServerAliveInterval=15",
    "ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no", "RemoteCommand=none",
    "ControlPersist=no",
)  # fmt: skip
"""`ssh` asks no questions and notices a dead network within a minute, and the machine cannot connect back to this one.
Host keys, identities, ports and jump hosts are those of the person's own configuration."""
_LEAVE_S = 2.0

_LIFE = """umask 077
[ -r /proc/self/stat ] && command -v setsid >/dev/null || { echo "it has no /proc or no setsid" >&2; exit 1; }
ohs_d=$(mktemp -d "${TMPDIR:-/tmp}/ohsandbox-XXXXXXXX") || exit 1
trap 'rm -rf "$ohs_d"' EXIT
printf '%s\\000' "$(id -u)" "$(id -un)" "$ohs_d" "$PWD"
cat >/dev/null"""
"""The connection's first process. It ends with the connection, and then removes the directory of the sessions."""


class _SshClient:
    """An `ssh` to one machine; see `ShellClient`."""

    lost_code = 255
    """ssh(1), EXIT STATUS."""

    def __init__(self, ssh: Sequence[str], loss: Callable[[], SandboxUnavailable | None] = lambda: None) -> None:
        """Store ssh, the words of a command up to the host, and loss(), which returns why the connection is gone."""
        self._ssh, self.loss = ssh, loss

    def argv(self, script: str, *arguments: str, tty: bool = False) -> list[str]:
        """See `ShellClient.argv`. The account's login shell reads the last word."""
        options = ["-o", f"RequestTTY={'force' if tty else 'no'}"]
        return [self._ssh[0], *options, *self._ssh[1:], shlex.join(["exec", "/bin/sh", "-c", script, *arguments])]

    def __str__(self) -> str:
        return shlex.join([self._ssh[0], self._ssh[-1]])


class SshRuntime(Runtime):
    """Commands and files of a Linux machine that `ssh HOST` reaches without a question.

    They are not isolated: a command has the rights of the account and the network of the machine. Name a machine that
    may be lost, such as a virtual machine for this one task. Files that a process leaves on the machine stay there. A
    connection that breaks is restored at the next command: files are kept, sessions start again.
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
            workdir: an existing directory there; a relative path starts from the account's home.
            config: a file that `ssh` reads instead of `~/.ssh/config`.
            env: variables of every process.

        Raises:
            UsageError: host has no such form.
        """
        super().__init__()
        check_env(env)
        if not _HOST.fullmatch(host):
            raise UsageError(f"Invalid host {host!r}. Give [USER@]HOST or ssh://[USER@]HOST[:PORT].")
        self._host, self._workdir, self._env = host, workdir, {**QUIET_ENV, **(env or {})}
        self._config = [] if config is None else ["-F", str(Path(config).resolve())]
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._life: ClientChannel | None = None
        self._users: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """`ssh-` and the machine as it was named."""
        return f"ssh-{self._host}"

    @property
    def workdir(self) -> str:
        """The directory in which commands start; absolute once the machine has been reached."""
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
                client = _SshClient(self._ssh(master=True))
                self._life = life = ClientChannel(client, ["/bin/sh", "-c", _LIFE], env={}, workdir=self._workdir)
                self._users = (life.read_word(), life.read_word())
                self.state_dir, self._workdir = life.read_word(), life.read_word()
            except BaseException:
                self._close()
                raise
        return self

    def _ssh(self, *, master: bool = False) -> list[str]:
        """Return the words of a command up to the host. Sessions beyond the server's limit connect by themselves."""
        if self._directory is None:
            raise SandboxUnavailable("The SshRuntime is not started. Call start(), or use a `with` block.")
        options = (*_OPTIONS, f"ControlMaster={'yes' if master else 'no'}", f"ControlPath={self._directory.name}/s")
        return ["ssh", *self._config, *(word for option in options for word in ("-o", option)), "--", self._host]

    def is_alive(self) -> bool:
        """Whether the connection is alive."""
        return self._loss() is None

    def _loss(self) -> SandboxUnavailable | None:
        if self._life is not None and not self._life.ended:
            return None
        return SandboxUnavailable(f"The connection to {self._host!r} is closed. Check that `ssh` reaches it.")

    def _revive(self) -> str:
        self._close()
        self.start()
        return f"The connection to {self._host} was lost and restored; files are kept, sessions start again"

    def open_channel(
        self, argv: Sequence[str], *, tty: bool = False, env: Mapping[str, str] | None = None,
        user: str | int | None = None, workdir: str | None = None,
    ) -> ClientChannel:  # fmt: skip
        """See `Runtime.open_channel`; the user is always the account's own."""
        client = _SshClient(self._ssh(), self._loss_soon)
        if loss := self._loss():
            raise loss
        if user is not None and str(user) not in self._users:
            raise UnknownUserError(f"Unknown user {user!r}: commands run as {self._users[1]!r}. Leave user out.")
        environment = {**self._env, **(env or {})}
        return ClientChannel(client, argv, tty=tty, env=environment, workdir=workdir or self._workdir)

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
