"""Which addresses an open network leads to: the public ones of IPv4, a name server, and those that a person named."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError
from ohsandbox.text import quoted_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NOT_PUBLIC = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
        "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    )
)  # fmt: skip
"""IANA's special-purpose ranges (RFC 6890) but for loopback, multicast, and the one public address at which a cloud
hands out settings to a machine. Ranges of documentation count: nothing of the internet is there."""
_NEVER = {NOT_PUBLIC[0], *NOT_PUBLIC[-2:]}
"""Addresses that no host has."""
_NO_PORT = 0
_HOST_ADDRESS = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")
_FORM = "With the open network write an IPv4 address or range, with a port if only that is meant: 192.168.1.5:8080."


@dataclass(frozen=True)
class _AddressException:
    """A range of addresses that a person opened.

    Attributes:
        network: the range; of one address, one with the length 32.
        port: the only one, of TCP and UDP; 0 for all.
    """

    network: ipaddress.IPv4Network
    port: int = _NO_PORT

    def __str__(self) -> str:
        return f"{self.network}:{self.port}" if self.port else str(self.network)


def parse_exception(text: str) -> _AddressException:
    """Return the exception in a text: `ADDRESS` or `ADDRESS/LENGTH`, either with `:PORT`.

    Raises:
        UsageError: the text is neither; one line that quotes it.
    """
    name, colon, port = text.strip().partition(":")
    is_port = not colon or (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 2**16)  # noqa: PLR2004 - 16 bits
    try:
        network = ipaddress.IPv4Network(name)
    except ValueError:
        is_port = False
    if not is_port:
        raise UsageError(f"{quoted_line(text, limit_chars=80)!r} is not an address. {_FORM}")
    return _AddressException(network, int(port) if colon else _NO_PORT)


def gateway_rules(
    exceptions: Iterable[_AddressException],
    subnet: ipaddress.IPv4Network,
    gateway: str,
    *,
    own: Iterable[str],
    resolvers: Sequence[str] = (),
) -> list[str]:
    """Return the arguments of `programs/gateway.c`. Of two ranges that contain an address, the smaller one decides.

    Args:
        exceptions: the addresses that a user opened.
        subnet: the subnet of the bridge: other sandboxes and the engine's machine.
        gateway: the address of the engine's machine in it.
        own: the public addresses of that machine.
        resolvers: the addresses of name servers; none for those of the container that sets the rules.
    """
    opened = [*exceptions]
    ranked = [(-rule.network.prefixlen, rule.port == _NO_PORT, 0, f"a {rule}") for rule in opened]
    closed = {*NOT_PUBLIC, subnet, *(ipaddress.IPv4Network(address) for address in own)}
    ranked.append((-subnet.max_prefixlen, True, 1, f"g {gateway}"))
    ranked += [(-network.prefixlen, True, 1, f"u {network}") for network in closed]
    rejecting = rejected([subnet, *(network.network for network in opened)])
    return [
        *(f"b {address}" for address in {subnet.broadcast_address, subnet.network_address}),
        *([f"d {address}" for address in resolvers] or ["d"]),
        *(rule for *_, rule in sorted(ranked)),
        *(f"{'r' if network in rejecting else 'n'} {network}" for network in NOT_PUBLIC),
    ]


def rejected(opened: Iterable[ipaddress.IPv4Network]) -> list[ipaddress.IPv4Network]:
    """Return the non-public ranges that get a rejecting route: those without any opened address."""
    ranges = [*opened]
    return [
        network for network in NOT_PUBLIC if network in _NEVER or not any(network.overlaps(other) for other in ranges)
    ]


def route_line(network: ipaddress.IPv4Network) -> str:
    """Return `DESTINATION/MASK` of a range as in /proc/net/route: hexadecimal, in little-endian byte order."""
    parts = (network.network_address, network.netmask)
    return "/".join(part.packed[::-1].hex().upper() for part in parts)


PROOF = frozenset(map(route_line, _NEVER))
"""Routes that /proc/net/route in the sandbox must show: they prove that the rules are set."""


def own_addresses(fib: Path = Path("/proc/net/fib_trie")) -> list[str]:
    """Return the public IPv4 addresses of this machine, sorted; an empty list if the kernel does not list them."""
    try:
        addresses = set(_HOST_ADDRESS.findall(fib.read_text()))
    except (OSError, ValueError):
        return []
    return sorted(address for address in addresses if ipaddress.IPv4Address(address).is_global)
