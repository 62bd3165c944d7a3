"""Set-up of a new container, run once as its root: the user's home and passwd entry, the workdir's owner, files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.docker.container_config import PRIVATE_DIR
from ohsandbox.runtime.docker.resolve import MAPPED_HOME

if TYPE_CHECKING:
    from ohsandbox.runtime.channel import Channel
    from ohsandbox.runtime.docker.mount_policy import Identity

Opener = Callable[[Sequence[str]], "Channel"]
"""Starts a process as root."""

_TIMEOUT_S = 60.0

_MAPPED_HOME = """
uid=$1 gid=$2 name=$3 home=$4
known=
while IFS=: read -r n x u rest; do
    [ "$u" = "$uid" ] && known=1
    [ "$n" = "$name" ] && [ "$u" != "$uid" ] && name=sandbox$uid
done </etc/passwd
[ "$known" ] || printf '%s:x:%s:%s::%s:/bin/sh\\n' "$name" "$uid" "$gid" "$home" >>/etc/passwd
known=
while IFS=: read -r n x g rest; do [ "$g" = "$gid" ] && known=1; done </etc/group
[ "$known" ] || printf '%s:x:%s:\\n' "$name" "$gid" >>/etc/group
mkdir -p "$home" && chmod 1777 "$home" || exit
"""
"""Root without capabilities can still write files of uid 0. Mode 1777, since it cannot chown."""

_MOUNTS = """
cat /proc/self/mountinfo 2>/dev/null || while read -r n; do printf '%s\\n' "$n"; done </proc/self/mountinfo
"""
"""A shell reads byte by byte: 0.3 s for 900 mounts, where cat takes 5 ms."""
_OWN_WORKDIR = """
workdir=$1 user=$2 home=$3 uid=${2%%:*}
[ -e "$workdir" ] || mkdir -p "$workdir"
[ "$(ls -A "$workdir")" ] || chown "$user" "$workdir"
case $uid in *[!0-9]*) exit 0 ;; esac
while IFS=: read -r n x u rest; do [ "$u" = "$uid" ] && exit 0; done </etc/passwd
printf 'sandbox:x:%s:0::%s:/bin/sh\\n' "$uid" "$home" >>/etc/passwd
mkdir -p "$home" && chown "$user" "$home"
"""
"""A non-empty directory belongs to the image and keeps its owner. A bare id without a passwd entry would have HOME=/
and no name."""

_WRITE_FILE = 'mkdir -p "${1%/*}" && cat >"$1" && chmod 644 "$1"'


def make_mapped_home(open_root: Opener, identity: Identity) -> str:
    """Add a passwd and group entry, so that `whoami` works, and create a home that the user can write.

    Returns:
        The contents of /proc/self/mountinfo.

    Raises:
        SandboxUnavailable: the image lacks mkdir or chmod, or its /etc is read-only.
    """
    return _do(open_root, _MAPPED_HOME + _MOUNTS, str(identity.uid), str(identity.gid), identity.name, MAPPED_HOME)


def mounts_of_workspace(open_root: Opener) -> str:
    """Return the contents of /proc/self/mountinfo, one line per mount.

    Raises:
        SandboxUnavailable: no process can be started.
    """
    return _do(open_root, _MOUNTS)


def own_workdir(open_root: Opener, workdir: str, user: str) -> None:
    """Give an empty working directory to the user of the sandbox, and an id without a passwd entry a name and a home.

    Raises:
        SandboxUnavailable: the image lacks chown, or the user does not exist.
    """
    _do(open_root, _OWN_WORKDIR, workdir, user, MAPPED_HOME)


def open_private_dir(open_root: Opener) -> None:
    """Give every user access to our tmpfs in a sandbox made from a checkpoint.

    runc gives a tmpfs the mode of the directory below it, and a commit leaves one with 0755 (engine 20.10).

    Raises:
        SandboxUnavailable: the image lacks chmod.
    """
    _do(open_root, 'chmod 1777 "$1"', PRIVATE_DIR)


def write_file(open_root: Opener, path: str, data: bytes) -> None:
    """Write a file owned by root, over standard input: the archive API is not used on running containers.

    Raises:
        SandboxUnavailable: it cannot be written.
    """
    _do(open_root, _WRITE_FILE, path, stdin=data)


def _do(open_root: Opener, script: str, *arguments: str, stdin: bytes = b"") -> str:
    heard = b""
    with open_root(["/bin/sh", "-c", script, "sh", *arguments]) as channel:
        if stdin:
            channel.write(stdin)
        channel.close_stdin()
        while chunks := channel.read(_TIMEOUT_S):
            heard += b"".join(chunk.data for chunk in chunks)
        code = channel.wait(_TIMEOUT_S)
    if code:
        words = " ".join(heard.decode(errors="replace").split())[:200]
        raise SandboxUnavailable(
            f"The sandbox could not be set up (exit code {code}): {words}. Remedy: try another image."
        )
    return heard.decode("utf-8", "surrogateescape")
