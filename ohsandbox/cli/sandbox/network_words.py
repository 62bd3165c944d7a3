"""A sandbox's network for a person: its rules in words, its decisions as a table, each blocked host once."""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.text import age, safe_line, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.text import Text

    from ohsandbox.network.audit import NetworkDecision
    from ohsandbox.runtime.base import Runtime

_MAX_RULES_NAMED = 4
"""Largest number of rules that the header names."""
MAX_HOSTS_COUNTED = 10_000
"""Number of hosts that are remembered; a program may ask for new names endlessly."""
MAX_HOSTS_TOLD = 20
"""Number of blocked hosts that are printed; the rest is counted."""


def network_words(network: str | None, allowed: Sequence[str]) -> str:
    """Describe the network for a person: `none`, `open`, or the allowlist's rules."""
    if network != "allowlist":
        return network or "none"
    if not allowed:
        return "allowlist, which is empty"
    more = f" and {len(allowed) - _MAX_RULES_NAMED} more" if len(allowed) > _MAX_RULES_NAMED else ""
    return f"{safe_line(', '.join(allowed[:_MAX_RULES_NAMED]))}{more}"


def bar_words(network: str | None) -> str:
    """Describe the network in two words, for the bottom line."""
    return {"open": "network open", "allowlist": "network by list"}.get(network or "", "no network")


class BlockedHosts:
    """The blocked hosts of a run: a line for the first request to each, and the counts at the end."""

    def __init__(self, *, command: str) -> None:
        """command, followed by a host's name, allows the host: `/net allow`."""
        self._command = command
        self._counts: Counter[str] = Counter()

    def add(self, decision: NetworkDecision) -> str | None:
        """Return the line about a decision; None if the request was allowed or its host was reported already."""
        if decision.allowed:
            return None
        target = rule_host(decision)
        if target not in self._counts and len(self._counts) >= MAX_HOSTS_COUNTED:
            return None
        self._counts[target] += 1
        if self._counts[target] > 1 or len(self._counts) > MAX_HOSTS_TOLD:
            return None
        remedy = f" Allow it: {self._command} {shlex.quote(target)}" if is_allowable(decision) else ""
        return safe_line(f"Blocked: {target} ({decision.reason}).{remedy}", limit_chars=500)

    def counts(self) -> Iterator[str]:
        """Yield the counts of repeated and of unreported hosts, then reset."""
        counts, self._counts = self._counts, Counter()
        told = dict([*counts.items()][:MAX_HOSTS_TOLD])
        if again := [f"{host} {count} times" for host, count in told.items() if count > 1]:
            yield safe_line(f"Blocked in all: {', '.join(again)}", limit_chars=500)
        if len(counts) > len(told):
            more = "at least " if len(counts) == MAX_HOSTS_COUNTED else ""
            yield f"Blocked, too: {more}{len(counts) - len(told)} other hosts. `ohsandbox net` lists them."


@contextlib.contextmanager
def blocked_reported_at_end(runtime: Runtime, command: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Call tell with the blocked hosts at the end; until then another program has the terminal."""
    listen = getattr(runtime, "on_network_decision", None)
    hosts = BlockedHosts(command=command)
    lines: list[str] = []

    def on_decision(decision: NetworkDecision) -> None:
        if (line := hosts.add(decision)) is not None:
            lines.append(line)

    stop = None if listen is None else listen(on_decision)
    try:
        yield
    finally:
        if stop is not None:
            stop()
        for line in [*lines, *hosts.counts()]:
            tell(line)


def decision_table(decisions: Iterable[NetworkDecision], *, with_age: bool = True) -> Text:
    """Return a table with a row for each host and its decision, newest first; with_age adds the age."""
    from ohsandbox.cli.rendering.tables import aligned  # noqa: PLC0415 - loads rich's console

    rows: list[tuple[str, ...]] = [("HOST", "DECISION", "TIMES", "SENT", "RECEIVED", "WHY", "AGO")]
    rows += [_row(group) for group in grouped(decisions)]
    rows = [(*row[:5], *(row[6:] if with_age else ()), row[5]) for row in rows]
    return aligned(rows, right=(2, 3, 4, 5) if with_age else (2, 3, 4), heading=True)


def grouped(decisions: Iterable[NetworkDecision]) -> list[list[NetworkDecision]]:
    """Group decisions by host, port and reason, the group with the newest decision first."""

    def key(one: NetworkDecision) -> tuple[str, int, str, bool, str, str]:
        return one.host, one.port, one.protocol, one.allowed, one.reason, one.rule

    groups = [[*group] for _, group in groupby(sorted(decisions, key=key), key=key)]
    return sorted(groups, key=lambda group: max(one.time for one in group), reverse=True)


def _row(group: Sequence[NetworkDecision]) -> tuple[str, ...]:
    first, newest = group[0], max(one.time for one in group)
    why = f"by {first.rule}" if first.allowed and first.rule else first.reason
    return (
        safe_line(rule_host(first)),
        decision_word(first),
        str(sum(one.count for one in group)),
        size(sum(one.sent_bytes for one in group)),
        size(sum(one.received_bytes for one in group)),
        safe_line(why),
        age(datetime.fromtimestamp(newest, UTC)),
    )


def rule_host(decision: NetworkDecision) -> str:
    """Return the host as a rule names it: with its port unless that is the port of HTTPS or HTTP."""
    return decision.host if decision.port in {80, 443} else f"{decision.host}:{decision.port}"


def decision_word(decision: NetworkDecision) -> str:
    """Return "blocked", "allowed", or "failed" if the request was allowed but nothing answered."""
    if not decision.allowed:
        return "blocked"
    by_rule = decision.rule or not decision.host or decision.protocol in {"forward", "host port"}
    return "allowed" if by_rule else "failed"


def is_allowable(decision: NetworkDecision) -> bool:
    """Return whether a rule for the host would allow the request; False for an address, or a deviating TLS name."""
    from ohsandbox.network.policy import LACKS_RULE  # noqa: PLC0415 - for the few who are refused

    return not decision.allowed and decision.rule == "" and decision.reason.startswith(LACKS_RULE)
