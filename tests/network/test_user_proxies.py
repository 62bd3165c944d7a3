"""Which requests go through the user's proxy."""

from __future__ import annotations

import pytest

from ohsandbox.network.user_proxies import proxy_fault, proxy_url

PROXIES = {"http": "plain.corp:3128", "all": "socks5://all.corp:1080"}


@pytest.mark.parametrize(
    ("no_proxy", "host"),
    [
        ("example.org", "example.org"),
        (".example.org", "example.org"),
        ("example.org", "API.example.org"),
        ("*.example.org", "api.example.org"),
        ("other,  example.org.", "example.org."),
        ("other example.org", "example.org"),
        ("example.org:8443", "example.org"),
        ("*", "example.org"),
        ("10.1.2.3", "10.1.2.3"),
        ("10.0.0.0/8", "10.1.2.3"),
        ("[fd00::1]", "fd00::1"),
        ("[fd00::1]:80", "fd00::1"),
        ("fe80::/10", "fe80::7"),
        ("[fe80::]/10", "fe80::7%eth0"),
        ("", "localhost"),
        ("", "app.localhost"),
        ("", "127.0.0.2"),
        ("", "::1"),
    ],
)
def test_a_host_of_no_proxy_and_loopback_are_reached_directly(no_proxy: str, host: str) -> None:
    assert proxy_url("https", host, PROXIES | {"no": no_proxy}) is None


@pytest.mark.parametrize(
    ("no_proxy", "host"),
    [
        ("example.org", "notexample.org"),
        ("api.example.org", "example.org"),
        ("10.0.0.0/8", "11.1.2.3"),
        ("10.0.0.0/8", "10.example.org"),
        ("fe80::/10", "10.1.2.3"),
        ("[::1", "example.org"),
        ("/,:,[]", "10.1.2.3"),
    ],
)
def test_another_host_is_reached_through_the_proxy(no_proxy: str, host: str) -> None:
    assert proxy_url("https", host, PROXIES | {"no": no_proxy}) == "socks5://all.corp:1080"
    assert proxy_url("http", host, PROXIES | {"no": no_proxy}) == "http://plain.corp:3128"


def test_a_proxy_that_cannot_be_used_is_named_without_its_password() -> None:
    text = str(proxy_fault("socks4://me:secret@all.corp:1080", ValueError()))
    assert "socks4://all.corp:1080" in text
    assert "secret" not in text
