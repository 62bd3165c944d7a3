"""A sandbox's network in words, and what of it is told while an agent works: each host that was blocked, once."""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.text import safe_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ohsandbox.network.audit import NetworkDecision
    from ohsandbox.runtime.base import Runtime

_MAX_RULES_NAMED = 4
"""As many of the list as a line of the header has room for."""
MAX_HOSTS_COUNTED = 10_000
"""It may ask for new names as long as it runs; what is remembered of them has an end."""
MAX_HOSTS_TOLD = 20
"""A program that asks for a thousand names fills no terminal: the rest is counted."""


def network_words(network: str | None, allowed: Sequence[str]) -> str:
    """The network as a person reads it: `none`, `open`, or what the list holds."""
    if network != "allowlist":
        return network or "none"
    if not allowed:
        return "allowlist, which is empty"
    more = f" and {len(allowed) - _MAX_RULES_NAMED} more" if len(allowed) > _MAX_RULES_NAMED else ""
    return f"{safe_line(', '.join(allowed[:_MAX_RULES_NAMED]))}{more}"


def bar_words(network: str | None) -> str:
    """The same in two words, for the bottom line."""
    return {"open": "network open", "allowlist": "network by list"}.get(network or "", "no network")


class BlockedHosts:
    """Which hosts were blocked in a run: a line for the first request to each, and the counts at its end."""

    def __init__(self, *, command: str) -> None:
        """Count none yet. command is what allows a host, before its name: `/net allow`."""
        self._command = command
        self._counts: Counter[str] = Counter()

    def add(self, decision: NetworkDecision) -> str | None:
        """The line that tells of it; None where it is allowed, or its host was told of already."""
        if decision.allowed:
            return None
        target = target_of(decision)
        if target not in self._counts and len(self._counts) >= MAX_HOSTS_COUNTED:
            return None
        self._counts[target] += 1
        if self._counts[target] > 1 or len(self._counts) > MAX_HOSTS_TOLD:
            return None
        remedy = f" Allow it: {self._command} {shlex.quote(target)}" if is_allowable(decision) else ""
        return safe_line(f"Blocked: {target} ({decision.reason}).{remedy}", limit_chars=500)

    def counts(self) -> Iterator[str]:
        """Of the hosts that were asked for more than once, and of those that were not told; then all begins anew."""
        counts, self._counts = self._counts, Counter()
        told = dict([*counts.items()][:MAX_HOSTS_TOLD])
        if again := [f"{host} {count} times" for host, count in told.items() if count > 1]:
            yield safe_line(f"Blocked in all: {', '.join(again)}", limit_chars=500)
        if len(counts) > len(told):
            more = "at least " if len(counts) == MAX_HOSTS_COUNTED else ""
            yield f"Blocked, too: {more}{len(counts) - len(told)} other hosts. `ohsandbox net` lists them."


@contextlib.contextmanager
def blocked_told_at_end(runtime: Runtime, command: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Tell at the end which hosts were blocked, by tell; in between the terminal is another program's."""
    listen = getattr(runtime, "on_network_decision", None)
    hosts = BlockedHosts(command=command)
    lines: list[str] = []

    def hear(decision: NetworkDecision) -> None:
        if (line := hosts.add(decision)) is not None:
            lines.append(line)

    stop = None if listen is None else listen(hear)
    try:
        yield
    finally:
        if stop is not None:
            stop()
        for line in [*lines, *hosts.counts()]:
            tell(line)


def target_of(decision: NetworkDecision) -> str:
    """The host, as a rule names it: with its port where that is neither of HTTPS nor of HTTP."""
    return decision.host if decision.port in {80, 443} else f"{decision.host}:{decision.port}"


def decision_word(decision: NetworkDecision) -> str:
    """What became of a request: "blocked", "failed" where it was allowed and nothing answered outside, or "allowed"."""
    if not decision.allowed:
        return "blocked"
    by_rule = decision.rule or not decision.host or decision.protocol in {"forward", "host port"}
    return "allowed" if by_rule else "failed"


def is_allowable(decision: NetworkDecision) -> bool:
    """Whether a rule for the host is all that lacks; not so for an address, or a TLS name that is another one."""
    from ohsandbox.network.policy import LACKS_RULE  # noqa: PLC0415 - for the few who are refused

    return not decision.allowed and decision.rule == "" and decision.reason.startswith(LACKS_RULE)
