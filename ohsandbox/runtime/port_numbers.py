"""Port numbers: parses the list of listening ports in a sandbox, and port pairs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.arguments import wrong

if TYPE_CHECKING:
    from collections.abc import Collection

LIST_LISTENERS = (
    b"for ohs_f in tcp tcp6;do ohs_n=0;while read -r _ ohs_a _ ohs_s _;do "
    b'case $ohs_s in 0A)echo "$ohs_a";;*)ohs_n=$((ohs_n+1));[ $ohs_n -lt 64 ]||break;;esac;'
    b'done <"/proc/net/$ohs_f";done 2>/dev/null'
)
"""Worker shell code: prints local addresses, one per line, as in proc_net_tcp(5), without starting a process. Linux
lists listeners before connections, so that many connections do not make it slower; gVisor mixes them."""
MAX_LISTENERS_BYTES = 64 * 1024
"""Enough for 1,400 listeners."""
_ADDRESS = re.compile(rb"([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4})")
_ENGINES_DNS = b"0B00007F"
"""127.0.0.11, on which the engine's own resolver listens in the sandbox's network namespace."""
MAX_PORT = 65535
PROXY_PORT = 3128
"""Port on 127.0.0.1 in a sandbox where the proxy of an allowlist is reached; by convention, proxies use it."""
_MAX_DIGITS = 5


def parse_listeners(listed: bytes, *, without: Collection[int] = ()) -> tuple[int, ...]:
    """Return the ports in the output of `LIST_LISTENERS`, sorted, except those in without.

    Malformed lines are skipped: a program in the sandbox can forge the output.
    """
    matches = (_ADDRESS.fullmatch(line.strip()) for line in listed.split(b"\n"))
    ports = {int(match[2], 16) for match in matches if match is not None and match[1] != _ENGINES_DNS}
    return tuple(sorted(ports - {0, *without}))


class PortPair(NamedTuple):
    """A port of this machine and the port of the sandbox that it leads to."""

    host_port: int
    """The port of this machine; 0 means any free one."""
    port: int

    def __str__(self) -> str:
        return str(self.port) if self.host_port == self.port else f"{self.host_port}:{self.port}"


def parse_port_pair(text: str) -> PortPair:
    """Parse `8000:3000`, the host's port first; `3000` means both sides, and `0:3000` any free port of the host.

    Raises:
        UsageError: the text has none of these forms.
    """
    host, colon, inside = text.rpartition(":")
    numbers = [
        int(number)
        for number in (host, inside)
        if number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS
    ]
    if len(numbers) != 1 + len(colon) or not 0 < numbers[-1] <= MAX_PORT or numbers[0] > MAX_PORT:
        raise wrong("port", text, "Give PORT, or HOST_PORT:PORT with numbers up to 65535, as in 8000:3000.")
    return PortPair(numbers[0], numbers[-1])
