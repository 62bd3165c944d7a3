"""Which addresses an open network leads to, as rules of the kernel and as what shows inside."""

from __future__ import annotations

import ipaddress
import random
import struct
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.network import open_addresses
from ohsandbox.network.addresses import address_problem

if TYPE_CHECKING:
    from pathlib import Path

SUBNET = ipaddress.IPv4Network("172.19.0.0/16")


def decided(address: str, rules: list[str], port: int = 443) -> str:
    """The first rule of a list that holds an address, as the kernel looks for it."""
    for rule in rules:
        kind, _, told = rule.partition(" ")
        network, _, only = told.partition(":")
        is_meant = kind in "au" and told and (not only or int(only) == port)
        if is_meant and ipaddress.IPv4Address(address) in ipaddress.IPv4Network(network):
            return kind
    return "main"


@pytest.mark.slow
def test_what_is_not_public_is_unreachable_and_nothing_else() -> None:
    rules = open_addresses.gateway_rules([], SUBNET, "172.19.0.1", own=["93.184.216.34"])
    chosen = random.Random(15)
    some = [str(ipaddress.IPv4Address(chosen.getrandbits(32))) for _ in range(20_000)]
    edges = [str(one[number]) for one in open_addresses.NOT_PUBLIC for number in (0, -1)]
    assert {decided(one, rules) for one in edges} == {"u"}
    for one in some:
        public = address_problem(one, private=False) == "" or one.startswith("127.")  # stays inside in any case
        assert (decided(one, rules) == "main") is public, one
    assert decided("93.184.216.34", rules) == "u"


def test_of_two_ranges_the_smaller_one_decides() -> None:
    told = ["10.0.0.0/8", "172.16.0.0/12", "172.19.0.1:8080", "192.168.1.5:53"]
    allowed = [open_addresses.parse_exception(one) for one in told]
    rules = open_addresses.gateway_rules(allowed, SUBNET, "172.19.0.1", own=[])
    assert decided("10.1.2.3", rules) == "a"
    assert decided("172.20.0.9", rules) == "a"
    assert decided("172.19.0.9", rules) == "u"  # a sandbox beside this one
    assert decided("172.19.0.1", rules) == "u"
    assert decided("172.19.0.1", rules, 8080) == "a"
    assert [decided("192.168.1.5", rules, port) for port in (53, 54)] == ["a", "u"]


def test_the_name_servers_of_the_namespace_or_those_that_are_told() -> None:
    assert "d" in open_addresses.gateway_rules([], SUBNET, "172.19.0.1", own=[])
    told = open_addresses.gateway_rules([], SUBNET, "172.19.0.1", own=[], resolvers=["10.0.0.53", "10.0.1.53"])
    assert [one for one in told if one.startswith("d")] == ["d 10.0.0.53", "d 10.0.1.53"]


def test_a_rejecting_route_overlaps_nothing_that_is_opened() -> None:
    opened = [ipaddress.IPv4Network("10.9.0.0/16"), SUBNET]
    shown = open_addresses.rejected(opened)
    assert ipaddress.IPv4Network("192.168.0.0/16") in shown
    assert not {ipaddress.IPv4Network("10.0.0.0/8"), ipaddress.IPv4Network("172.16.0.0/12")} & {*shown}
    everything = open_addresses.rejected([ipaddress.IPv4Network("0.0.0.0/0")])
    assert {open_addresses.route_line(one) for one in everything} == open_addresses.PROOF
    little_endian = struct.pack("<I", int(ipaddress.IPv4Address("10.0.0.0"))).hex().upper()
    assert open_addresses.route_line(ipaddress.IPv4Network("10.0.0.0/8")) == f"{little_endian}/000000FF"


def test_a_rejecting_route_of_earlier_rules_is_removed_where_an_address_is_opened() -> None:
    def routes(allowed: list[str]) -> dict[str, str]:
        exceptions = [open_addresses.parse_exception(one) for one in allowed]
        rules = open_addresses.gateway_rules(exceptions, SUBNET, "172.19.0.1", own=[])
        return {network: kind for kind, _, network in (one.partition(" ") for one in rules) if kind in "rn"}

    assert {*routes([])} == {str(one) for one in open_addresses.NOT_PUBLIC}
    assert [routes([])[one] for one in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")] == ["r", "n", "r"]
    opened = routes(["10.0.0.53:53"])
    assert [opened[one] for one in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")] == ["n", "n", "r"]


NO_ADDRESSES = (
    "",
    "example.org",
    "10.0.0.0/33",
    "10.1.2.3/8",
    "10.1.2.3:0",
    "10.1.2.3:65536",
    "10.1.2.3:x",
    "::1",
    "10.1",
)


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_is_no_address_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="write an IPv4 address") as told:
        open_addresses.parse_exception(text)
    assert "\n" not in str(told.value)


def test_the_public_addresses_of_this_machine(tmp_path: Path) -> None:
    fib = tmp_path / "fib_trie"
    fib.write_text(
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 93.184.216.0\n        /24 link UNICAST\nLocal:\n"
        "     |-- 93.184.216.34\n        /32 host LOCAL\n     |-- 192.168.1.5\n        /32 host LOCAL\n"
        "     |-- 93.184.216.255\n        /32 link BROADCAST\n"
    )
    assert open_addresses.own_addresses(fib) == ["93.184.216.34"]
    assert open_addresses.own_addresses(tmp_path / "none") == []
