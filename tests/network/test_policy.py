"""Rules, and what they say of hosts and ports."""

from __future__ import annotations

import re
import threading

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.network.package_hosts import PackageHost, PackageHosts
from ohsandbox.network.policy import NetworkPolicy, parse_rule


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Example.ORG.", "example.org"),
        ("*.example.org", "*.example.org"),
        ("example.org:8443", "example.org:8443"),
        ("PRIVATE:git.example.org:22", "private:git.example.org:22"),
        ("bücher.example.org", "xn--bcher-kva.example.org"),
        ("\uff45xample.org", "example.org"),
        ("packages", "packages"),
        ("private:*.corp", "private:*.corp"),
        ("gitlab", "gitlab"),
    ],
)
def test_rule_has_one_spelling(text: str, shown: str) -> None:
    assert parse_rule(text).text == shown


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "*", "*.", "*.org", "a.*.org", "https://example.org", "example.org/x", "user@example.org", "1.2.3.4",
        "0x7f000001", "127.1", "2130706433", "0177.1", "[::1]", "::1", "example.org:0", "example.org:65536",
        "example.org:+1", "example.org:080", "example.org:http", "localhost", "x.localhost", "a..b", "a b", "a\nb",
        "private:", "private:10.0.0.1", "x" * 64, "a." * 130 + "org", "example.org:", "a\u202eb.org",
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="Invalid network rule") as raised:
        parse_rule(text)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("https://api.example.org/v1?x=1", "rules are for hosts: api.example.org. "),
        ("http://api.example.org:8443", "rules are for hosts: api.example.org:8443. "),
        ("https://1.2.3.4/", "rules are for hosts. "),
        ("https://[::1", "rules are for hosts. "),
        ("package", "'packages' is similar"),
        ("Pakages", "'packages' is similar"),
    ],
)
def test_a_slip_is_told_with_what_was_meant(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        parse_rule(text)


def test_a_name_without_a_dot_may_be_one_of_the_site() -> None:
    assert [parse_rule(text).text for text in ("wiki", "private:package")] == ["wiki", "private:package"]


def test_each_bad_rule_has_its_line_and_none_is_added() -> None:
    policy = NetworkPolicy(["example.org"])
    with pytest.raises(UsageError) as raised:
        policy.allow("other.example.org", "1.2.3.4", "localhost")
    assert len(str(raised.value).splitlines()) == 2
    assert policy.rules == ("example.org",)


def test_a_single_text_is_no_list_of_rules_for_its_letters() -> None:
    with pytest.raises(UsageError, match="'wiki' are a single text"):
        NetworkPolicy("wiki")


def test_a_rule_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="rule of type int"):
        parse_rule(7)  # type: ignore[arg-type] # of a caller without type checks


def test_a_host_that_is_no_name_is_refused_with_the_reason() -> None:
    verdict = NetworkPolicy(["*.example.org"]).decide("a..example.org", 443)
    assert (verdict.allowed, verdict.reason) == (False, "is not a host name")


def test_a_refusal_tells_that_the_hosts_of_package_tools_are_not_known_yet() -> None:
    known = threading.Event()

    class Impatient(PackageHosts):
        def all(self, *, timeout_s: float = 0.01) -> tuple[PackageHost, ...]:
            return super().all(timeout_s=timeout_s)

    def find() -> list[PackageHost]:
        known.wait()
        return []

    policy = NetworkPolicy(["packages"], package_hosts=Impatient(find))
    assert policy.decide("index.example.org", 443).reason.endswith("are not known yet")
    known.set()


@pytest.mark.parametrize(
    ("rule", "allowed", "refused"),
    [
        (
            "example.org",
            ["example.org:443", "example.org:80", "EXAMPLE.org.:443"],
            ["example.org:22", "a.example.org:443"],
        ),
        ("*.example.org", ["a.example.org:443", "a.b.example.org:80"], ["example.org:443", "badexample.org:443"]),
        ("example.org:8443", ["example.org:8443"], ["example.org:443", "example.org:80"]),
        ("private:git.corp:22", ["git.corp:22"], ["git.corp:443"]),
        ("xn--bcher-kva.example.org", ["bücher.example.org:443"], ["bucher.example.org:443", "вücher.example.org:443"]),
    ],
)
def test_rule_allows_what_it_names_and_nothing_else(rule: str, allowed: list[str], refused: list[str]) -> None:
    policy = NetworkPolicy([rule])
    for place in allowed + refused:
        host, _, port = place.rpartition(":")
        assert policy.decide(host, int(port)).allowed == (place in allowed), place


def test_private_addresses_are_for_the_host_that_the_rule_names() -> None:
    policy = NetworkPolicy(["*.example.org", "private:git.example.org"])
    assert policy.decide("git.example.org", 443).private
    assert not policy.decide("www.example.org", 443).private


def test_rule_is_taken_back_by_its_name_and_a_near_one_is_told() -> None:
    policy = NetworkPolicy(["*.example.org", "private:git.corp"])
    with pytest.raises(UsageError, match=r"the rule '\*\.example\.org' allows it"):
        policy.disallow("www.example.org")
    with pytest.raises(UsageError, match=r"Did you mean 'private:git\.corp'"):
        policy.disallow("private:git.com")
    policy.disallow("*.EXAMPLE.org")
    assert policy.rules == ("private:git.corp",)
    assert not policy.decide("www.example.org", 443).allowed


def test_changes_are_told_until_the_listener_is_removed() -> None:
    policy, changes = NetworkPolicy(), list[tuple[str, ...]]()
    remove = policy.on_change(lambda: changes.append(policy.rules))
    policy.allow("example.org")
    policy.disallow("example.org")
    remove()
    policy.allow("example.org")
    assert changes == [("example.org",), ()]
