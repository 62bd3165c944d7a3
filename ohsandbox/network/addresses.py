"""Normalized host names, and the IP addresses that a sandbox may connect to."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TypeAlias

import idna

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

PRIVATE_ADDRESS = "a private address"
"""The result of `address_problem` for an address that a `private:` rule would allow."""
MAX_HOST_CHARS = 253
"""Maximum length of a name in the DNS (RFC 1035, 2.3.4)."""
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*", re.ASCII)
"""Pattern of a last label that makes a name an IPv4 address (WHATWG URL, 3.5)."""

_METADATA = frozenset(
    ipaddress.ip_address(address)
    for address in ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
"""Addresses outside of 169.254.0.0/16 at which clouds hand out credentials; 168.63.129.16 is public."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_SITE = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fec0::/10"),
        *("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15"),
    )
)
"""Addresses that `private:` opens: those that a site assigns itself (RFC 1918, 6598, 4193, 3879), and those for
documentation and benchmarks, which some sites and local resolvers assign as well."""


class HostNameError(ValueError):
    """A text is not a host name; `str(error)` is a predicate, such as "is empty"."""


def normalized_host(text: str) -> str:
    """Return a host name in its canonical form: lower case, IDNs as A-labels, without a dot at the end.

    Raises:
        HostNameError: the text is empty, an IP address in any spelling, or not a possible DNS name.
    """
    if not text:
        raise HostNameError("is empty")
    name = text.lower() if text.isascii() else _encoded(text)
    name = name.removesuffix(".")
    if ":" in name or "[" in name:
        raise HostNameError("is an IPv6 address; hosts are allowed by name")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        raise HostNameError("is an IP address; hosts are allowed by name")
    if "/" in name and _NUMBER.fullmatch(labels[-1].partition("/")[0]):
        raise HostNameError("is a range of addresses; hosts are allowed by name")
    if len(name) > MAX_HOST_CHARS or not all(map(_LABEL.fullmatch, labels)):
        raise HostNameError("is not a host name")
    return name


def _encoded(text: str) -> str:
    try:
        return idna.encode(text, uts46=True, transitional=False).decode("ascii")
    except UnicodeError as error:  # IDNAError is one
        raise HostNameError("is not a host name") from error


def is_local_name(host: str) -> bool:
    """Whether a normalized name means this machine: localhost, and names below it or below localdomain."""
    return host == "localhost" or host.endswith((".localhost", ".localdomain"))


def address_problem(address: str, *, private: bool) -> str:
    """Return why a sandbox may not connect to this address; "" if it may.

    Args:
        address: an address as a resolver returns it.
        private: whether the site's addresses are allowed; loopback, link-local and metadata addresses never are.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "no IP address"
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.scope_id:
        return "a link-local address"
    return next(filter(None, (_problem(candidate, private=private) for candidate in [parsed, *_embedded(parsed)])), "")


def _embedded(address: IPAddress) -> list[IPAddress]:
    """Return the IPv4 addresses to which packets for an IPv6 address may be delivered."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    addresses: list[IPAddress] = [
        embedded for embedded in (address.ipv4_mapped, address.sixtofour) if embedded is not None
    ]
    if address.teredo is not None:
        addresses.extend(address.teredo)
    if address in _NAT64:
        addresses.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return addresses


def _problem(address: IPAddress, *, private: bool) -> str:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return ""  # the IPv4 address in it is checked instead
    of_site = any(address in network for network in _SITE)
    kinds = (
        (address.is_loopback, "a loopback address"),
        (address.is_link_local or address in _METADATA, "a link-local or metadata address"),
        (address.is_unspecified or address in _COMPATIBLE, "an unspecified address"),
        (address.is_multicast, "a multicast address"),
        (of_site and not private, PRIVATE_ADDRESS),
        (not of_site and not address.is_global, "not a public address"),
        (address.is_reserved and address not in _NAT64, "not a public address"),
    )
    return next((kind for holds, kind in kinds if holds), "")


def is_this_machine(address: str) -> bool:
    """Whether this machine itself has this address: a connection to it would have it as its source.

    No packet is sent: connecting a UDP socket only selects a route.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0]) == address
    except OSError:  # no route there
        return False
