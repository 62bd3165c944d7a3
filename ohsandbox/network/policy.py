"""The user's rules about which hosts a sandbox may connect to; they can change while it runs."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ohsandbox.errors import UsageError
from ohsandbox.network.addresses import HostNameError, is_local_name, normalized_host
from ohsandbox.network.listeners import Listeners
from ohsandbox.network.package_hosts import PackageHosts, shared_package_hosts
from ohsandbox.text import did_you_mean, nearest, quoted_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PACKAGES = "packages"
"""The rule that stands for the hosts of the user's package tools (see `package_hosts`)."""
HTTP_PORT, HTTPS_PORT = 80, 443
DEFAULT_PORTS = frozenset({HTTP_PORT, HTTPS_PORT})
"""Ports of a rule that names no port."""
_PRIVATE = "private:"
_NOT_LISTED, _OTHER_PORTS = LACKS_RULE = ("is not on the list", "is allowed at other ports")
"""How the reason of a refusal begins if a rule for the host would allow it."""
_FORMS = "Write a host (example.org), hosts below it (*.example.org), host:port, private:host, or the word packages."


@dataclass(frozen=True)
class _NetworkRule:
    """One rule.

    Attributes:
        text: the canonical spelling, which also identifies the rule.
        host: the host's name, or the parent domain of the names below; "" for `packages`.
        below: whether the rule covers the names below host, and not host itself.
        port: the only port; None for 80 and 443.
        private: whether the host may have an address of the site.
    """

    text: str
    host: str = ""
    below: bool = False
    port: int | None = None
    private: bool = False

    def matches(self, host: str, port: int) -> bool:
        """Whether the rule covers a normalized host and port; False for `packages`."""
        if not self.host or (port != self.port if self.port is not None else port not in DEFAULT_PORTS):
            return False
        return host.endswith(f".{self.host}") if self.below else host == self.host


@dataclass(frozen=True)
class NetworkVerdict:
    """The answer of the rules about a host and port.

    Attributes:
        allowed: whether a connection may be tried; the host's addresses are checked after that.
        reason: why, as the predicate of a sentence whose subject is the host.
        rule: the rule that allows it; "" if none does.
        private: whether its addresses may be those of a site.
    """

    allowed: bool
    reason: str
    rule: str = ""
    private: bool = False


def parse_rule(text: str) -> _NetworkRule:
    """Return the rule in a text: `host`, `*.host`, `host:port`, `private:host[:port]` or `packages`.

    Raises:
        UsageError: the text is not a rule; one line that quotes it.
    """
    if not isinstance(text, str):
        raise UsageError(f"Invalid network rule of type {type(text).__name__}. {_FORMS}")
    stripped = text.strip()
    if stripped.lower() == PACKAGES:
        return _NetworkRule(PACKAGES)
    private = stripped.lower().startswith(_PRIVATE)
    name, colon, port_text = stripped[len(_PRIVATE) * private :].partition(":")
    below = name.startswith("*.")
    if "://" in stripped:
        raise _invalid(text, f"it is a URL, and rules are for hosts{_host_of(stripped)}")
    try:
        host = normalized_host(name[2 * below :])
        port = _port(port_text) if colon else None
    except HostNameError as error:
        raise _invalid(text, f"it {error}") from None
    except ValueError:
        raise _invalid(text, "what follows the colon is not a port") from None
    if is_local_name(host):
        raise _invalid(text, "it is this machine; to open one of its ports, use --expose-host PORT")
    if below and "." not in host and not private:
        raise _invalid(text, "it would allow a whole top-level domain")
    if "." not in host and not private and nearest(host, [PACKAGES]):
        raise _invalid(text, f"no public host has a name without a dot, and {PACKAGES!r} is similar")
    rule_text = f"{_PRIVATE * private}{'*.' * below}{host}{'' if port is None else f':{port}'}"
    return _NetworkRule(rule_text, host, below, port, private)


def _host_of(url: str) -> str:
    """Return a colon and the host of a URL, as a proposal; "" if the URL has none."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        return f": {normalized_host(parts.hostname or '')}{f':{parts.port}' if parts.port else ''}"
    return ""


def _invalid(text: str, problem: str) -> UsageError:
    return UsageError(f"Invalid network rule {quoted_line(text, limit_chars=80)!r}: {problem}. {_FORMS}")


def _port(text: str) -> int:
    """Return the number of a TCP port, which must be written without sign, blank or leading zero.

    Raises:
        ValueError: the text is not a port.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and not text.startswith("0")):  # noqa: PLR2004
        raise ValueError(text)
    port = int(text)
    if port > 0xFFFF:  # noqa: PLR2004 - 16 bits
        raise ValueError(text)
    return port


class NetworkPolicy:
    """The rules of one sandbox. Thread-safe.

    Args:
        rules: the first rules; see `parse_rule`.
        package_hosts: the hosts that `packages` stands for; None for those of this machine's package tools, which are
            asked in the background once `packages` is a rule.

    Raises:
        UsageError: rules are invalid; one line for each.
    """

    def __init__(self, rules: Iterable[str] = (), *, package_hosts: PackageHosts | None = None) -> None:
        if isinstance(rules, str):
            raise UsageError(f"Network rules {rules[:80]!r} are a single text; give a list of rules.")
        self._guard = threading.Lock()
        self._package_hosts = package_hosts
        self._rules: dict[str, _NetworkRule] = {}
        self._listeners: Listeners[[]] = Listeners()
        self.allow(*rules)

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules in their canonical spelling, in the order in which they were added."""
        with self._guard:
            return tuple(self._rules)

    def allow(self, *rules: str) -> None:
        """Add rules; those that exist already stay.

        Raises:
            UsageError: rules are invalid, one line for each; none is added.
        """
        parsed = _all_parsed(rules)
        with self._guard:
            self._rules = {**self._rules, **{rule.text: rule for rule in parsed if rule.text not in self._rules}}
        if PACKAGES in self._rules:
            self.package_hosts.start_soon()
        self._listeners.notify()

    def disallow(self, *rules: str) -> None:
        """Remove rules.

        Raises:
            UsageError: rules are invalid or do not exist, one line for each; none is removed.
        """
        parsed = _all_parsed(rules)
        with self._guard:
            missing = [rule for rule in parsed if rule.text not in self._rules]
            if not missing:
                removed_texts = {rule.text for rule in parsed}
                self._rules = {text: rule for text, rule in self._rules.items() if text not in removed_texts}
        if missing:
            raise UsageError("\n".join(self._no_such_rule(rule) for rule in missing))
        self._listeners.notify()

    def _no_such_rule(self, rule: _NetworkRule) -> str:
        verdict = self.decide(rule.host, rule.port or HTTPS_PORT) if rule.host and not rule.below else None
        if verdict is not None and verdict.allowed:
            return f"Unknown rule {rule.text!r}: the rule {verdict.rule!r} allows it. Remove that one."
        return f"Unknown rule {rule.text!r}.{did_you_mean(rule.text, self.rules)}"

    def decide(self, host: str, port: int) -> NetworkVerdict:
        """Return what the rules say about a name, without resolving it.

        While `packages` is a rule and its hosts are not known yet, this waits for them, at most `package_hosts.WAIT_S`
        seconds; see `ready`.
        """
        try:
            name = normalized_host(host)
        except HostNameError as error:
            return NetworkVerdict(allowed=False, reason=str(error))
        if is_local_name(name):
            return NetworkVerdict(
                allowed=False, reason="is the machine itself, of which only exposed ports can be reached"
            )
        rules = self._rules  # replaced as a whole, never changed
        matching = [rule for rule in rules.values() if rule.matches(name, port)]
        package_host = self.package_hosts.find(name, port) if PACKAGES in rules else None
        if matching:
            rule_text = min(matching, key=lambda rule: rule.below).text
            private = package_host is not None or any(rule.private for rule in matching)
            return NetworkVerdict(allowed=True, reason=f"is allowed by {rule_text!r}", rule=rule_text, private=private)
        if package_host is not None:
            reason = f"is allowed by {PACKAGES!r}: {package_host.tool} has it from {package_host.source}"
            return NetworkVerdict(allowed=True, reason=reason, rule=PACKAGES, private=True)
        return NetworkVerdict(allowed=False, reason=self._refusal(name, port, rules))

    def _refusal(self, name: str, port: int, rules: dict[str, _NetworkRule]) -> str:
        if port not in DEFAULT_PORTS and (self._at_another_port(name, rules) is not None):
            return f"{_OTHER_PORTS}, not at {port}"
        if PACKAGES in rules and not self.package_hosts.ready:
            return f"{_NOT_LISTED} so far: the hosts of this machine's package tools are not known yet"
        return f"{_NOT_LISTED} of allowed hosts"

    def _at_another_port(self, name: str, rules: dict[str, _NetworkRule]) -> _NetworkRule | None:
        return next(
            (rule for rule in rules.values() if rule.host and rule.matches(name, rule.port or HTTPS_PORT)), None
        )

    @property
    def ready(self) -> bool:
        """Whether `decide` returns without waiting."""
        return PACKAGES not in self._rules or self.package_hosts.ready

    @property
    def package_hosts(self) -> PackageHosts:
        """The hosts that `packages` stands for."""
        if self._package_hosts is None:
            self._package_hosts = shared_package_hosts()
        return self._package_hosts

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call listener after each change, in the thread that made it; return a function that removes the listener."""
        return self._listeners.add(listener)


def _all_parsed(rules: Iterable[str]) -> list[_NetworkRule]:
    parsed: list[_NetworkRule] = []
    problems: list[str] = []
    for text in rules:
        try:
            parsed.append(parse_rule(text))
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("\n".join(problems))
    return parsed
