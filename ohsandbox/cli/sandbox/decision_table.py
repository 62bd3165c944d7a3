"""The network decisions of a sandbox as a table, grouped by host, newest first."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.tables import aligned
from ohsandbox.cli.rendering.text import age, safe_line, size
from ohsandbox.cli.sandbox.network_words import decision_word, target_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.text import Text

    from ohsandbox.network.audit import NetworkDecision


def decision_table(decisions: Iterable[NetworkDecision], *, with_age: bool = True) -> Text:
    """Return a table with a row for each host and its decision, newest first; with_age adds the age."""
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
        safe_line(target_of(first)),
        decision_word(first),
        str(sum(one.count for one in group)),
        size(sum(one.sent_bytes for one in group)),
        size(sum(one.received_bytes for one in group)),
        safe_line(why),
        age(datetime.fromtimestamp(newest, UTC)),
    )
