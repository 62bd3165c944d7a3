"""The seccomp filter of our sandboxes: our own allow-list, pinned in `seccomp.json`.

It is stricter than the default of any engine from 20.10 on, which a test checks by calling every number under both:

- sockets of four families only (Unix, IPv4, IPv6, netlink): no AF_VSOCK (allowed by engines before 23), no AF_ALG
  (allowed before 29, CVE-2026-31431), no packet, Bluetooth or CAN sockets;
- no io_uring (allowed before 25), whose operations no filter sees;
- nothing newer than futex_waitv (449): runc returns ENOSYS for those, so that libc falls back;
- no reserving of space: fallocate and FS_IOC_RESVSP take any size of a disk at once, faster than any monitor reacts;
  EOPNOTSUPP, as on file systems without them, makes glibc and databases write instead. Punching holes works;
- native calls only: a 32-bit program on a 64-bit engine is killed with SIGSYS, since `socketcall` hides the family of a
  socket behind a pointer.

Of common tools and operations it prevents 32-bit programs, `perf`, `unshare`, mounts and NUMA placement. gdb and strace
work.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from ohsandbox.strict_json import load_json

ARCHITECTURES = ("amd64", "arm64")
"""Architectures for which the file's argument positions are correct (s390's clone has others); other architectures use
the engine's filter."""

SETUID_BIT = 0o4000
SETGID_BIT = 0o2000
_O_CREAT_OR_TMPFILE = 0o100 | 0o20000000
"""asm-generic/fcntl.h; the same on x86_64 and arm64. Without these flags open's mode is an undefined register."""
_MODE_ARGUMENT = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "creat": 1, "mknod": 1, "mknodat": 2}
_OPEN_ARGUMENTS = {"open": (1, 2), "openat": (2, 3)}
"""Argument positions of flags and mode, by system call."""
_ENOSYS = 38
_EOPNOTSUPP = 95
_PUNCH_HOLE, _COLLAPSE_RANGE = 0x02, 0x08
"""Modes of fallocate(2) that reserve nothing: linux/falloc.h."""
_OTHER_TYPES = (
    (0x20, 0x20), (0x10, 0), (0x02, 0x02), (0x01, 0x01),
    (0xC0, 0), (0xC0, 0xC0), (0x0C, 0), (0x0C, 0x0C), (0x48, 0x40), (0x48, 0x08),
)  # fmt: skip
"""Mask and bits, one of which each type of ioctl request matches except 'X' (0x58: what XFS began) and 0x94 (Btrfs)."""
_READS = 0x80000000
"""The direction of a request that only reads (_IOR, linux/ioctl.h), under the mask _IS_READ."""
_IS_READ = 0xC000FF00
_CLONES = (0x40049409, 0x4020940D, 0xC0189436)
"""FICLONE, FICLONERANGE and FIDEDUPERANGE, linux/fs.h."""


@cache
def profile_json(forbidden_mode: int = 0) -> str:
    """Return the filter as JSON text for SecurityOpt.

    Args:
        forbidden_mode: file mode bits that no call may set. With a host directory bound, a setuid file created in the
            sandbox would be one on the host too.
    """
    profile = load_json((files(__package__) / "seccomp.json").read_text())
    profile["syscalls"] = _without_reserving(_without_tracing_the_keeper(profile["syscalls"]))
    if forbidden_mode:
        profile["syscalls"] = _without_mode(profile["syscalls"], forbidden_mode)
    return json.dumps(profile, separators=(",", ":"))


def _without_tracing_the_keeper(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Allow ptrace(request, pid) for any pid except 1, the process that keeps the sandbox running.

    The kernel reads only the low 32 bits of pid, but a filter's "not equal" compares 64; so allow pid 0, as in
    PTRACE_TRACEME, or any pid with one of bits 1 to 31 set.
    """
    kept_rules = [rule for rule in rules if rule["names"] != ["ptrace"]]
    others = [_allow("ptrace", _bits(1, 1 << bit, 1 << bit)) for bit in range(1, 32)]
    return [*kept_rules, _allow("ptrace", _bits(1, 0xFFFFFFFF, 0)), *others]


def _without_reserving(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Allow fallocate(fd, mode) only for modes that free space; of the ioctls of file systems, reading and cloning.

    FS_IOC_RESVSP and an extent size hint (FS_IOC_FSSETXATTR) reserve space that no write is charged with; Btrfs has
    requests that set a subvolume read-only for its owner. A filter cannot say "none of these", so a request passes if
    its type, bits 8 to 15, is another one.
    """
    kept_rules = [{**rule, "names": [n for n in rule["names"] if n not in {"fallocate", "ioctl"}]} for rule in rules]
    frees = _PUNCH_HOLE | _COLLAPSE_RANGE
    return [
        *kept_rules,
        _allow("fallocate", _bits(1, _PUNCH_HOLE, _PUNCH_HOLE)),
        _allow("fallocate", _bits(1, frees, _COLLAPSE_RANGE)),
        {**_allow("fallocate", _bits(1, frees, 0)), "action": "SCMP_ACT_ERRNO", "errnoRet": _EOPNOTSUPP},
        *(_allow("ioctl", _bits(1, mask << 8, bits << 8)) for mask, bits in _OTHER_TYPES),
        *(_allow("ioctl", _bits(1, _IS_READ, _READS | kind << 8)) for kind in (0x58, 0x94)),
        *(_allow("ioctl", _bits(1, 0xFFFFFFFF, request)) for request in _CLONES),
    ]


def _without_mode(rules: list[dict[str, Any]], bits: int) -> list[dict[str, Any]]:
    taken = {*_MODE_ARGUMENT, *_OPEN_ARGUMENTS, "openat2"}
    kept_rules = [{**rule, "names": [name for name in rule["names"] if name not in taken]} for rule in rules]
    kept_rules += [_allow(name, _bits(position, bits, 0)) for name, position in _MODE_ARGUMENT.items()]
    for name, (flags, mode) in _OPEN_ARGUMENTS.items():
        kept_rules += [_allow(name, _bits(flags, _O_CREAT_OR_TMPFILE, 0)), _allow(name, _bits(mode, bits, 0))]
    # openat2 hides its mode behind a pointer; ENOSYS makes callers fall back to openat
    kept_rules.append({"names": ["openat2"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS})
    return [rule for rule in kept_rules if rule["names"]]


def _allow(name: str, *args: dict[str, Any]) -> dict[str, Any]:
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": list(args)}


def _bits(position: int, mask: int, wanted: int) -> dict[str, Any]:
    """Match an argument whose bits under mask equal wanted."""
    return {"index": position, "value": mask, "valueTwo": wanted, "op": "SCMP_CMP_MASKED_EQ"}
