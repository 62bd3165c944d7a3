"""The addresses that a name may lead to."""

from __future__ import annotations

import pytest

from ohsandbox.network.addresses import HostNameError, address_problem, is_this_machine, normalized_host

PUBLIC = ["8.8.8.8", "2606:4700::1", "::ffff:8.8.8.8", "2002:808:808::1", "64:ff9b::808:808"]
SITE = """10.1.2.3 172.16.0.1 192.168.1.1 100.64.0.1 fd12::1 ::ffff:10.0.0.1 64:ff9b::a00:1 2002:a00:1::1
    192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1 fec0::1"""
NEVER = """127.0.0.1 127.8.8.8 ::1 ::ffff:127.0.0.1 ::ffff:7f00:1 2002:7f00:1::1 64:ff9b::7f00:1 0.0.0.0 :: ::127.0.0.1
    169.254.169.254 ::ffff:169.254.169.254 fe80::1 fe80::1%eth0 64:ff9b::a9fe:a9fe fd00:ec2::254 100.100.100.200
    168.63.129.16 224.0.0.1 ff02::1 ff0e::1 240.0.0.1 255.255.255.255
    0.1.2.3 192.0.0.192 2001:db8::1 64:ff9b:1::1 2001:0:808:808::5601:5601 2001:0:a00:1::f7f7:f7f7 ::8.8.8.8 100::1
    nonsense 1.2.3"""


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_passes(address: str) -> None:
    assert (address_problem(address, private=False), address_problem(address, private=True)) == ("", "")


@pytest.mark.parametrize("address", SITE.split())
def test_address_of_a_site_passes_for_a_private_host_alone(address: str) -> None:
    assert address_problem(address, private=False) == "a private address"
    assert address_problem(address, private=True) == ""


@pytest.mark.parametrize("address", NEVER.split())
def test_address_of_this_machine_the_link_or_a_cloud_never_passes(address: str) -> None:
    assert address_problem(address, private=False)
    assert address_problem(address, private=True)


def test_this_machine_is_known_by_its_own_addresses() -> None:
    assert is_this_machine("127.0.0.1")
    assert not is_this_machine("8.8.8.8")


@pytest.mark.parametrize(
    "text", ["1.2.3.4", "0x7f.1", "127.1", "2130706433", "0177.0.0.1", "①②⑦.⓪.⓪.①", "1.2.3.4.", "[::1]", "::1", "a.0x"]
)
def test_address_in_any_spelling_is_no_host_name(text: str) -> None:
    with pytest.raises(HostNameError, match="address; hosts are allowed by name"):
        normalized_host(text)
