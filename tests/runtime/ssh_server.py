"""An OpenSSH server of the tests' own: on loopback, as the user who runs them, with keys and files in one directory."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S = 60.0
PROGRAM = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")

_SERVER = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {directory}/host
AuthorizedKeysFile {directory}/person.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
SetEnv HOME={directory}
"""
_CLIENT = """\
Host machine
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {directory}/person
  IdentitiesOnly yes
  UserKnownHostsFile {directory}/known_hosts
Host stranger
  HostName 127.0.0.1
  Port {port}
  UserKnownHostsFile /dev/null
"""


@contextlib.contextmanager
def ssh_server(directory: Path) -> Iterator[Path]:
    """A configuration for `ssh -F` whose host `machine` is the server, and whose `stranger` has a key nobody knows."""
    if PROGRAM is None:
        raise FileNotFoundError("sshd is not installed")
    for name in ("host", "person"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = (directory / "host.pub").read_text()
    (directory / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}")
    (directory / "sshd_config").write_text(_SERVER.format(directory=directory, port=port))
    (directory / "ssh_config").write_text(_CLIENT.format(directory=directory, port=port, user=getpass.getuser()))
    if os.getuid() == 0:  # its privilege separation directory, which Debian's service makes
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen([PROGRAM, "-D", "-e", "-f", directory / "sshd_config"], stderr=log)
    try:
        _wait_for(port, server)
        yield directory / "ssh_config"
    finally:
        server.terminate()
        server.wait()


def ssh_program(directory: Path, config: Path) -> Path:
    """A directory for PATH whose `ssh` reads this configuration, and whatever else it is told."""
    directory.mkdir()
    program = directory / "ssh"
    real = shutil.which("ssh")
    lines = ["#!/bin/sh", f'case " $* " in *" -F none "*) exec {real} "$@" ;; esac', f'exec {real} -F {config} "$@"']
    program.write_text("\n".join(lines) + "\n")
    program.chmod(0o755)
    return directory


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), START_S):
            return
        time.sleep(0.05)
    raise TimeoutError("sshd does not listen; see the file log")
