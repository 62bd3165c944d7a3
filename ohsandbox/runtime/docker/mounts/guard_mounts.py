"""The nested mounts with which `guard` protects a bound directory, and their check from inside the sandbox."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.mount_text import WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Iterable

Git = Literal["guarded", "ro", "rw"]
"""`guarded`: commits work; config, hooks and info are read-only. `ro`: all of `.git` is read-only. `rw`: no guard."""


HardLinks = Literal["separate", "keep"]
"""What is done about files that have names outside of what is bound: `separate` gives them copies; `keep` nothing."""


class LinkedFile(NamedTuple):
    """A name of a regular file that has several, as a walk of a bound directory found it."""

    root: str
    """The bound directory."""
    path: str
    """Path below root, with slashes."""
    device: int
    inode: int
    links: int
    """Number of the file's names, here and elsewhere."""
    size_bytes: int
    """Bytes that a copy of it takes: without holes."""
    is_guarded: bool = False
    """Whether the sandbox cannot write to it by this name."""


class GuardMount(NamedTuple):
    """A nested bind mount."""

    path: str
    """Path below the workspace, with slashes."""
    read_only: bool
    source: str = ""
    """File that is mounted there instead; empty: the path itself."""


def verify_mounts(
    guarded: Iterable[GuardMount], mountinfo: str, *, target: str = WORKSPACE, read_only: bool = False
) -> None:
    """Compare the requested mounts with the sandbox's mounts (proc(5), mountinfo).

    A name that was replaced by a link between our check and the engine's mount has another root. target is where the
    directory with the guarded paths is mounted, and read_only whether all of it is.

    Raises:
        SandboxUnavailable: a mount is missing, writable, or of another file.
    """
    there = {}
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 5:  # noqa: PLR2004 - the mount options are the sixth field
            there[decode_mountinfo(fields[4])] = (fields[2], decode_mountinfo(fields[3]), fields[5].split(","))
    device, root, _ = there.get(target, ("", "", []))
    below = [point for point in there if point == target or point.startswith(f"{target}/")] if read_only else []
    if weak := next((point for point in below if there[point][1] and "ro" not in there[point][2]), None):
        raise SandboxUnavailable(
            f"The sandbox is not as strict as asked: {weak} is not mounted read-only. "
            "End what mounts file systems there, and try again; `ohsandbox doctor` looks at the engine."
        )
    for mount in guarded:
        found = there.get(f"{target}/{mount.path}")
        moved = found is None
        if found is not None and mount.source:  # a mount's root is the path on its own file system
            moved = not mount.source.endswith(found[1])
        elif found is not None:
            moved = found[0] == device and found[1] != f"{root.rstrip('/')}/{mount.path}"
        if found is None or moved or (mount.read_only and "ro" not in found[2]):
            raise SandboxUnavailable(
                f"The sandbox is not as strict as asked: {mount.path!r} of {target} is not guarded. "
                "End what else changes that directory, and try again; `ohsandbox doctor` looks at the engine."
            )


def decode_mountinfo(field: str) -> str:
    """Decode a field of mountinfo, which writes space, tab, newline and backslash as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)
