"""The ports on which programs of a sandbox listen, from its kernel's table of sockets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

LIST_LISTENERS = (
    b"for ohs_f in tcp tcp6;do ohs_n=0;while read -r _ ohs_a _ ohs_s _;do "
    b'case $ohs_s in 0A)echo "$ohs_a";;*)ohs_n=$((ohs_n+1));[ $ohs_n -lt 64 ]||break;;esac;'
    b'done <"/proc/net/$ohs_f";done 2>/dev/null'
)
"""Worker shell: a local address a line, as in proc_net_tcp(5). It starts no process. Linux lists listeners before
connections, so that a sandbox with many connections is read no longer; gVisor mixes them."""
MAX_LISTENERS_BYTES = 64 * 1024
"""1,400 listeners."""
_ADDRESS = re.compile(rb"([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4})")
_ENGINES_DNS = b"0B00007F"
"""127.0.0.11: the engine's own resolver listens there, in the sandbox's network namespace."""


def parse_listeners(listed: bytes, *, without: Collection[int] = ()) -> tuple[int, ...]:
    """The ports in the output of `LIST_LISTENERS`, in order, but for those of without. What is no address is skipped.

    The output comes from the sandbox: a program there can make it say anything.
    """
    found = (_ADDRESS.fullmatch(line.strip()) for line in listed.split(b"\n"))
    ports = {int(one[2], 16) for one in found if one is not None and one[1] != _ENGINES_DNS}
    return tuple(sorted(ports - {0, *without}))
