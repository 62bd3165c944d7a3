"""Which host directories may be bound into a sandbox, and as whom its files are made."""

from __future__ import annotations

import os
import pwd
import re
import stat
from pathlib import Path
from typing import NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker.lease import state_dir

SYSTEM_TREES = ("/etc", "/proc", "/sys", "/dev", "/boot", "/run", "/var/run", "/usr", "/bin", "/sbin", "/lib", "/lib64")
"""Never, and nothing below them: whoever writes there is the host."""
SYSTEM_ROOTS = (
    "/",
    "/home",
    "/root",
    "/var",
    "/var/lib",
    "/opt",
    "/srv",
    "/mnt",
    "/media",
    "/tmp",  # noqa: S108
    "/Users",
    "/private",
)
"""Never as a whole; a directory below may do. /var/lib/docker is below the next list."""
ENGINE_TREES = ("/var/lib/docker", "/var/lib/containerd", "/var/lib/rancher", "/var/lib/kubelet")
SECRET_NAMES = (".ssh", ".aws", ".docker", ".config", ".gnupg", ".kube", ".azure", ".netrc", ".local/share/keyrings")
"""In the home directory: what an agent could steal or plant."""


class Identity(NamedTuple):
    """As whom the processes of a mapped sandbox run."""

    uid: int
    gid: int
    name: str

    @property
    def user(self) -> str:
        """For an exec's User."""
        return f"{self.uid}:{self.gid}"


def vet(directory: str | os.PathLike[str]) -> str:
    """The real path of a directory that may be bound read-write into a sandbox.

    Raises:
        UsageError: it is not there, is no directory, or is (a link to) a place that no agent may write.
    """
    try:
        path = Path(directory).expanduser().resolve(strict=True)
        mode = path.stat().st_mode
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"The workspace {str(directory)!r} cannot be used: {reason}. Remedy: make it first."
        ) from error
    if not stat.S_ISDIR(mode):
        raise UsageError(f"The workspace {str(directory)!r} is no directory. Remedy: name a directory.")
    if why := _forbidden(path):
        raise UsageError(f"The workspace {str(path)!r} is refused: {why}. Remedy: name a project's own directory.")
    return str(path)


def _forbidden(path: Path) -> str | None:
    for tree in SYSTEM_TREES + ENGINE_TREES:
        if path.is_relative_to(Path(tree).resolve()) or path == Path(tree):
            return f"it lies in {tree}, which belongs to the host"
    if any(path == Path(root).resolve() for root in SYSTEM_ROOTS):
        return "it is a directory of the host's system"
    home = Path.home().resolve()
    if home.is_relative_to(path):
        return "it is or holds your home directory"
    for name in SECRET_NAMES:
        if path.is_relative_to((home / name).resolve()):
            return f"it lies in ~/{name}, which holds secrets"
    state = state_dir().resolve()
    if path.is_relative_to(state) or state.is_relative_to(path):
        return "it touches ohsandbox's own state directory"
    return None


def identity(workspace: str, *, rootless: bool) -> Identity:
    """As whom the sandbox runs so that files in workspace belong to the calling user.

    An ordinary caller: that uid and gid. Root: the directory's owner, since under sudo the tree is somebody's. A tree
    that is root's own is worked on as uid 0 without any capability, and the `mapped` system-call filter lets nobody
    set a setuid or setgid bit, which is what made finding 18 a hole. A rootless engine maps its uid 0 to the caller.
    """
    found = Path(workspace).stat()
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        uid, gid = found.st_uid, found.st_gid
    name = _login(uid)
    return Identity(0, 0, name) if rootless else Identity(uid, gid, name)


def _login(uid: int) -> str:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return "sandbox"
    return name if re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", name) else "sandbox"
